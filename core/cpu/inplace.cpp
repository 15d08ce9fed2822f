// The in-place rows add_, mul_, copy_ and fill_: input 0 is written through its strides.
#include <algorithm>
#include <cmath>
#include <string>

#include "../dispatch.h"
#include "../functors.h"
#include "../ops.h"
#include "kernels.h"
#include "loops.h"
#include "moves.h"

namespace gradual::cpu {
namespace {

// The operand to read while x is written: a copy where both lie on one storage in different geometry, for then a write
// could change what is yet to be read.
Tensor readable(const Tensor& x, const Tensor& source) {
  const bool same = source.sizes() == x.sizes() && source.strides() == x.strides() && source.offset() == x.offset() &&
                    source.dtype() == x.dtype();
  if (!source.shares_storage(x) || same) return source;
  const CategoryScope scope(Category::workspace);
  const Tensor copy = empty(source.sizes(), {.dtype = source.dtype()});
  copy_elements(copy, source);
  return copy;
}

template <class C, class F> void update(const OpCall& c, const F& f, C scalar) {
  Tensor x = c[0];
  const Tensor y = c[1].defined() ? readable(x, c[1]) : c[1];
  const Tensor* inputs[] = {&x, &y};
  run_elementwise<C>(x, inputs, 2, scalar, block_of<C, 2, F>, &f);
}

// The attribute as a number of the compute type; integers take integers only.
template <class C> C number(const OpCall& c) {
  const double value = c.get<ScalarAttrs>().value;
  if constexpr (std::is_same_v<C, std::int64_t>) {
    if (value != std::trunc(value) || std::fabs(value) >= 0x1p63)
      fail(describe(c) + ": the number " + std::to_string(value) + " is not an integer of 64 bits");
  }
  return static_cast<C>(value);
}

// x's dtype says how to compute; a wider operand must not be cut before it is added.
DType compute_dtype(const OpCall& c) {
  const DType x = c[0].dtype();
  if (!c[1].defined() || c[1].dtype() == x) return x;
  const DType both = promote(x, c[1].dtype());
  if (is_floating(both) && !is_floating(x))
    fail(describe(c) + ": a floating operand does not go into integers; cast it with to()");
  return both;
}

void add(const OpCall& c, Outputs&) {
  visit_compute(compute_dtype(c), [&]<class C>(C) {
    const C value = number<C>(c);
    if (!c[1].defined() || value == 1) return update<C>(c, functors::Add<C>{}, value);
    update<C>(c, functors::AddScaled<C>{value}, value);
  });
}

void mul(const OpCall& c, Outputs&) {
  visit_compute(compute_dtype(c),
                [&]<class C>(C) { update<C>(c, functors::Mul<C>{}, c[1].defined() ? C{} : number<C>(c)); });
}

void copy(const OpCall& c, Outputs&) { copy_elements(c[0], readable(c[0], c[1])); }

void fill(const OpCall& c, Outputs&) {
  const Tensor& x = c[0];
  const Tensor value = full({}, c.get<ScalarAttrs>().value, {.dtype = x.dtype()});
  copy_elements(x, value);
}

}  // namespace

void register_inplace() {
  const auto set = [](OpId op, KernelFn fn) { columns().cpu[static_cast<int>(op)] = fn; };
  set(OpId::add_, add);
  set(OpId::mul_, mul);
  set(OpId::copy_, copy);
  set(OpId::fill_, fill);
}

}  // namespace gradual::cpu
