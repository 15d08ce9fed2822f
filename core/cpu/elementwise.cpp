// Elementwise kernels: the functors of functors.h in the loops of loops.h. Also in-place arithmetic and dropout.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "../formats/cast_counts.h"
#include "../formats/cast_element.h"
#include "../kernels/copies.h"
#include "../kernels/functors.h"
#include "../kernels/loops.h"
#include "../kernels/scalar_operand.h"
#include "../ops/ops.h"
#include "../support/multiversion.h"
#include "../support/philox.h"
#include "kernels.h"

namespace gradual::cpu {
namespace {

// --- the loop -------------------------------------------------------------------------------------------------------

// out[i] = f(in[0][i], in[1][i], ..) for n elements. out may be one of the inputs.
template <class C> using BlockFn = void (*)(const void* functor, C* out, const C* const* in, std::int64_t n);

template <class C, int N, class F> void block_of(const void* functor, C* out, const C* const* in, std::int64_t n) {
  const F f = *static_cast<const F*>(functor);
  [&]<std::size_t... K>(std::index_sequence<K...>) {
    vectorized([=] {
      const C* const x[] = {in[K]...};
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) out[i] = f(x[K][i]...);
    });
  }(std::make_index_sequence<N>{});
}

// Rounds n values into the loop's first operand. Integers that the dtype cannot hold wrap, as in C.
template <class C> void put(const Loop& loop, std::int64_t position, std::int64_t n, C* values, CastCounts* counts) {
  alignas(64) std::uint64_t scratch[kBlock];
  const DType dtype = loop.view[0].dtype;
  if constexpr (std::is_same_v<C, std::int64_t>) {
    for (std::int64_t i = 0; i < n && dtype == DType::u8; ++i) values[i] = static_cast<std::uint8_t>(values[i]);
    for (std::int64_t i = 0; i < n && dtype == DType::i32; ++i) values[i] = static_cast<std::int32_t>(values[i]);
  }
  char* p = together(loop, 0, position, n);
  cast_and_store(dtype, values, p ? static_cast<void*>(p) : scratch, 1, n, counts);
  if (!p) move_raw(loop, 0, position, n, scratch, Move::scatter);
}

template <class C>
void run_chunk(const Loop& loop, C scalar, BlockFn<C> fn, const void* functor, std::int64_t begin, std::int64_t end,
               CastCounts* counts) {
  alignas(64) C buffers[kMaxOperands][kBlock];
  const C* in[kMaxOperands];
  for (int i = 1; i < loop.operands; ++i) {
    const View& v = loop.view[i];
    if (!v.constant) continue;
    C value = scalar;
    if (v.data) fetch_and_cast(v.dtype, v.data, 1, &value, 1);
    std::fill_n(buffers[i], std::min(kBlock, end - begin), value);
    in[i - 1] = buffers[i];
  }
  const bool same = loop.view[0].dtype == dtype_of<C>;
  for (std::int64_t at = begin, n = 0; at < end; at += n) {
    n = loop.block(at, end);
    for (int i = 1; i < loop.operands; ++i)
      if (!loop.view[i].constant) in[i - 1] = fetch(loop, i, at, n, buffers[i]);
    C* direct = same ? reinterpret_cast<C*>(together(loop, 0, at, n)) : nullptr;
    fn(functor, direct ? direct : buffers[0], in, n);
    if (!direct) put(loop, at, n, buffers[0], counts);
  }
}

// Runs fn over out and up to three inputs. An undefined input stands for `scalar`.
template <class C>
void run_blocks(Tensor& out, const Tensor* const* inputs, int n, C scalar, BlockFn<C> fn, const void* functor) {
  const std::int64_t numel = out.numel();
  if (numel == 0) return;
  const C* in[kMaxOperands];
  const auto lies_dense = [numel](const Tensor& t) {
    return t.defined() && t.is_contiguous() && t.dtype() == dtype_of<C> && t.numel() == numel;
  };
  // A small op needs no loop if all its operands are contiguous and of type C: then `dense` reaches n.
  int dense = numel <= kGrain && lies_dense(out) ? 0 : n + 1;
  for (; dense < n && lies_dense(*inputs[dense]); ++dense) in[dense] = static_cast<const C*>(inputs[dense]->raw());
  if (dense == n) return fn(functor, static_cast<C*>(out.raw()), in, numel);
  const Tensor* operands[kMaxOperands] = {&out};
  std::copy_n(inputs, n, operands + 1);
  const Loop loop = make_loop(out.sizes(), {operands, static_cast<std::size_t>(n) + 1}, out.is_contiguous());
  const DType from = is_floating(out.dtype()) ? dtype_of<C> : out.dtype();  // wrapped integers are not counted
  parallel_counted(numel, kGrain, from, out.dtype(), [&](std::int64_t begin, std::int64_t end, CastCounts* counts) {
    run_chunk(loop, scalar, fn, functor, begin, end, counts);
  });
}

template <class C, int N, class F>
void run(Tensor& out, const Tensor* const* inputs, const F& f, std::type_identity_t<C> scalar = {}) {
  run_blocks<C>(out, inputs, N, scalar, block_of<C, N, F>, &f);
}

// --- kernels --------------------------------------------------------------------------------------------------------

// A kernel of N operands that computes f in the operands' compute type, or with kFloats in a floating-point one.
template <int N, bool kFloats = false, class F> KernelFn numbers(F) {
  return [](const OpCall& c, Outputs& out) {
    const auto kernel = [&]<class C>(C) { run<C, N>(out[0], c.inputs.data(), F{}, scalar_of<C, N>(c)); };
    if constexpr (kFloats) visit_floating(operand_dtype<N>(c), kernel);
    else visit_compute(operand_dtype<N>(c), kernel);
  };
}
template <int N, class F> KernelFn floats(F f) { return numbers<N, true>(f); }
template <template <class> class F> void with_number(const OpCall& c, Outputs& out) {
  visit_floating(c[0].dtype(), [&]<class C>(C) { run<C, 1>(out[0], c.inputs.data(), F<C>{number<C>(c)}); });
}

struct Cpu {
  template <int N, class F> void numbers(OpId op, F f) const { set_kernel(op, cpu::numbers<N>(f)); }
  template <int N, class F> void floats(OpId op, F f) const { set_kernel(op, cpu::floats<N>(f)); }
  template <class F> void integers(OpId op, F) const {
    set_kernel(op, [](const OpCall& c, Outputs& out) {
      run<std::int64_t, 2>(out[0], c.inputs.data(), F{}, scalar_of<std::int64_t, 2>(c));
    });
  }
  template <template <class> class F> void with_number(OpId op) const { set_kernel(op, cpu::with_number<F>); }
  // Integers are compared with a fraction as doubles.
  template <class F> void comparison(OpId op, F) const {
    set_kernel(op, [](const OpCall& c, Outputs& out) {
      constexpr functors::Flag<F> kFlag;
      if (compares_fraction(c)) return run<double, 2>(out[0], c.inputs.data(), kFlag, c.get<ScalarAttrs>().value);
      cpu::numbers<2>(kFlag)(c, out);
    });
  }
  // Operands of any dtypes; every value but 0 is true. Conversion to double preserves that: large i64 values are
  // rounded, but never to 0.
  template <int N, class F> void logical(OpId op, F) const {
    set_kernel(op, [](const OpCall& c, Outputs& out) {
      run<double, N>(out[0], c.inputs.data(), functors::Truth<F>{}, scalar_of<double, N>(c));
    });
  }
};

void clamp(const OpCall& c, Outputs& out) {
  const auto& a = c.get<ScalarAttrs>();
  visit_compute(c[0].dtype(), [&]<class C>(C) {
    const functors::Clamp<C> f{bound<C>(std::ceil(a.value), a.value), bound<C>(std::floor(a.high), a.high)};
    run<C, 1>(out[0], c.inputs.data(), f);
  });
}

bool any_zero(const Tensor& integers) {  // bool counts as one
  const Tensor dense = integers.contiguous();
  bool found = false;
  visit_dtype(dense.dtype(), [&]<class T> {
    const auto holds_zero = [&](const auto* from) { return std::count(from, from + dense.numel(), 0) > 0; };
    if constexpr (std::is_same_v<T, BoolByte>) found = holds_zero(static_cast<const std::uint8_t*>(dense.raw()));
    else if constexpr (std::is_integral_v<T>) found = holds_zero(dense.data<T>());
  });
  return found;
}

// A quotient or what is left of it. Error where an integer is divided by 0.
template <class F> void divides(const OpCall& c, Outputs& out) {
  if (!is_floating(operand_dtype<2>(c)) && out[0].numel() > 0) {
    const bool by_zero = c[1].defined() ? any_zero(c[1]) : scalar_of<std::int64_t, 2>(c) == 0;
    if (by_zero) throw_error(c, "an integer is divided by 0");
  }
  numbers<2>(F{})(c, out);
}

// Runs the kernel of the exact form of gelu or of its tanh form.
template <int N, class Exact, class Tanh> void gelu_form(const OpCall& c, Outputs& out) {
  (c.get<Gelu>() == Gelu::tanh ? floats<N>(Tanh{}) : floats<N>(Exact{}))(c, out);
}

// The mask is a function of the key and of the element's row-major index, so backward, a recomputation and another
// device draw the same mask. Element i is kept if uniform01(word i), a multiple of 2^-24, is at least p. It is scaled
// by 1 / (1 - p), which preserves the mean.
template <class C> struct Drop {
  RandomKey key;
  std::uint32_t threshold;
  C scale;
  explicit Drop(const DropoutAttrs& a)
      : key(a.key),
        threshold(static_cast<std::uint32_t>(std::ceil(a.p * 0x1p24))),
        scale(a.p < 1 ? static_cast<C>(1 / (1 - a.p)) : C{0}) {}
  // n <= kBlock elements, from row-major index `at` on.
  void operator()(const C* from, std::int64_t at, std::int64_t n, C* to) const {
    std::uint32_t words[kBlock];
    philox_fill(key.seed, key.stream, static_cast<std::uint64_t>(at), words, n);
    vectorized([=, by = scale, least = threshold, word = &words[0]] {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) {
        const C scaled = from[i] * by;
        to[i] = word[i] >> 8 >= least ? scaled : C{0};
      }
    });
  }
};

// dropout and dropout_add. dropout_add rounds, and counts what rounding loses, where dropout followed by add does.
void dropout(const OpCall& c, Outputs& out) {
  const bool adds = c.op == OpId::dropout_add;
  const Tensor& x = c[0];
  const Tensor& y = out[0];
  const Tensor* operands[] = {&y, &x, adds ? &c[1] : nullptr};
  const Loop loop = make_loop(x.sizes(), {operands, adds ? 3u : 2u}, true);
  const auto of_types = [&]<class X, class C>(X, C) {
    const Drop<X> drop(c.get<DropoutAttrs>());
    CastCounts* const narrowing = adds ? counts_for(dtype_of<X>, x.dtype()) : nullptr;
    CastCounts* const storing = counts_for(dtype_of<C>, y.dtype());
    parallel_for(loop.numel, kGrain, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) X in[kBlock], kept[kBlock];
      alignas(64) C wide[kBlock], rest[kBlock];
      alignas(64) std::uint16_t half[kBlock];
      CastCounts counts;
      for (std::int64_t at = begin, n = 0; at < end; at += n) {
        n = loop.block(at, end);
        drop(fetch(loop, 1, at, n, in), at, n, kept);
        if (adds && size_of(x.dtype()) == 2) {
          cast_and_store(x.dtype(), kept, half, 1, n, narrowing ? &counts : nullptr);
          fetch_and_cast(x.dtype(), half, 1, wide, n);
        } else {
          std::copy_n(kept, n, wide);
        }
        if (adds)
          vectorized([=, residual = fetch(loop, 2, at, n, rest), to = &wide[0]] {
#pragma omp simd
            for (std::int64_t i = 0; i < n; ++i) to[i] = residual[i] + to[i];
          });
        put(loop, at, n, wide, storing ? &counts : nullptr);
      }
      if (narrowing || storing) merge_counts(narrowing ? narrowing : storing, counts);
    });
  };
  if (x.dtype() == DType::f64) of_types(double{}, double{});
  else if (y.dtype() == DType::f64) of_types(float{}, double{});
  else of_types(float{}, float{});
}

// --- in place: input 0 is written through its strides ---------------------------------------------------------------

template <class C, class F> void update(const OpCall& c, const F& f, C scalar) {
  Tensor x = c[0];
  const Tensor y = c[1].defined() ? readable(x, c[1]) : c[1];
  const Tensor* inputs[] = {&x, &y};
  run<C, 2>(x, inputs, f, scalar);
}

// x += alpha * y; without y, x += alpha.
void add_in_place(const OpCall& c, Outputs&) {
  visit_compute(in_place_dtype(c), [&]<class C>(C) {
    const C alpha = number<C>(c);
    if (c[1].defined()) update<C>(c, functors::AddScaled<C>{alpha}, alpha);
    else update<C>(c, functors::Add{}, alpha);
  });
}

void mul_in_place(const OpCall& c, Outputs&) {
  visit_compute(in_place_dtype(c),
                [&]<class C>(C) { update<C>(c, functors::Mul{}, c[1].defined() ? C{} : number<C>(c)); });
}

}  // namespace

void run_kernel(OpId op, const Attrs& attrs, const Tensor& x, const Tensor& y) {
  const Tensor* const input = &x;
  Outputs out{{y}};
  columns().cpu[static_cast<int>(op)]({op, TensorRefs(&input, 1), &attrs, {}}, out);
}

void relu_in_place(const Tensor& t) {
  const CountScope uncounted(nullptr);
  run_kernel(OpId::relu, {}, t, t);
}

void register_elementwise() {
  using namespace functors;
  unary_rows(Cpu{});
  binary_rows(Cpu{});
  set_kernel(OpId::relu_backward, floats<2>(ReluBackward{}));
  set_kernel(OpId::clamp, clamp);
  set_kernel(OpId::floor_divide, divides<FloorDivide>);
  set_kernel(OpId::trunc_divide, divides<TruncDivide>);
  set_kernel(OpId::remainder, divides<Remainder>);
  set_kernel(OpId::fmod, divides<Fmod>);
  set_kernel(OpId::gelu, gelu_form<1, GeluExact, GeluTanh>);
  set_kernel(OpId::gelu_backward, gelu_form<2, GeluExactBackward, GeluTanhBackward>);
  set_kernel(OpId::add_, add_in_place);
  set_kernel(OpId::mul_, mul_in_place);
  for (const OpId op : {OpId::dropout, OpId::dropout_add}) set_kernel(op, dropout);
}

}  // namespace gradual::cpu
