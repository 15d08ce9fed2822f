// Casts, copies, joining, padding and indexing, against elements moved by hand.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "gradual/core/formats/cast_counts.h"
#include "gradual/core/support/error.h"
#include "support/tensors.h"

#include "../../support/cpu_isas.h"
#include "../../support/gradients.h"

using namespace gradual;
using namespace gradual::testing;

namespace {
Tensor indices(const std::vector<std::int64_t>& v, const Shape& s) { return from_data(v, s); }
}  // namespace

TEST_CASE("clone and cast keep every element in every layout") {
  constexpr DType kAll[] = {DType::f64,    DType::f32, DType::f16, DType::bf16, DType::f8e4m3fn,
                            DType::f8e5m2, DType::i64, DType::i32, DType::u8,   DType::bool_};
  for (DType from : kAll) {
    for (const Tensor& x : layouts(DType::f32)) {
      if (x.numel() > 10000 && from != DType::f32 && from != DType::u8) continue;
      const Tensor y = x.to(from);
      CAPTURE(to_string(x.sizes()));
      CAPTURE(to_string(from));
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        double want = 0;
        char element[8];
        const double v = at(x, i);
        cast_and_store(from, &v, element, 1, 1);
        fetch_and_cast(from, element, 1, &want, 1);
        REQUIRE(at(y, i) == want);
      }
      REQUIRE(same_bits(y.clone(), y));
      REQUIRE(y.clone().is_contiguous());
    }
  }
}

TEST_CASE("channels_last lays images out by pixels and changes nothing else") {
  const Tensor x = randn({2, 3, 4, 5}).set_requires_grad();
  const Tensor y = channels_last(x);
  CHECK(y.strides() == Shape{60, 1, 15, 3});
  CHECK(same_bits(y, x));
  CHECK(channels_last(y).is_same(y));
  sum(y * y).backward();
  CHECK(same_bits(x.grad(), x.detach() * 2));
  const Tensor image = randn({4, 5, 3}).permute({2, 0, 1}).unsqueeze(0);  // of pixels; its first stride is 1
  CHECK(channels_last(image).is_same(image));
  CHECK(max_pool2d(image, {.kernel = 2}).strides()[1] == 1);
  const Tensor one = randn({2, 1, 4, 5});
  CHECK(channels_last(one).is_same(one));
  CHECK_THROWS_WITH_AS(channels_last(randn({2, 3, 4})), doctest::Contains("[N, C, H, W], given [2, 3, 4]"), Error);
}

TEST_CASE("a transposed copy moves every element, whatever its width and size") {
  for (DType d : {DType::u8, DType::f16, DType::f32, DType::f64})
    for (const Shape& s : {Shape{16, 16}, Shape{17, 33}, Shape{100, 19}, Shape{700, 150}, Shape{40, 4096}}) {
      const Tensor x = randint(0, 200, s, {.dtype = DType::i64}).to(d);
      CHECK(same_bits(x.t().clone(), x.t()));
      const Tensor batch = stack({x, x + 1, x + 2}).transpose(1, 2);
      CHECK(same_bits(batch.clone(), batch));
      const Tensor target = zeros(s, {.dtype = d}).t();
      target.copy_(x.t().clone());
      CHECK(same_bits(target, x.t()));
      const Tensor converted = zeros({s[1], s[0]});
      converted.copy_(x.t());
      CHECK(same_bits(converted, x.t().clone().to(DType::f32)));
      const Tensor cube = stack({x, x + 1, x + 2}, 1).permute({2, 1, 0});
      CHECK(same_bits(cube.clone(), cube));
    }
  const Tensor x4 = randn({3, 20, 21, 22});
  for (const Shape& order : {Shape{3, 1, 0, 2}, Shape{0, 2, 3, 1}, Shape{2, 3, 0, 1}, Shape{3, 2, 1, 0}})
    CHECK(same_bits(x4.permute(order).clone(), x4.permute(order)));
}

TEST_CASE("casts are counted where they can lose, by any number of threads alike") {
  const Tensor x = from_data(std::vector<double>{0, 1e-10, 1e-6, 1, 1e6, NAN, INFINITY}, {7});
  const auto counted = [](const Tensor& t, DType d) {
    CastCounts counts;
    const CountScope scope(&counts);
    static_cast<void>(t.to(d));
    return counts;
  };
  const CastCounts c = counted(x, DType::f16);
  CHECK(c.elements == 7);
  CHECK(c.zeros == 1);
  CHECK(c.underflow == 1);
  CHECK(c.subnormal == 1);
  CHECK(c.overflow == 1);
  CHECK(c.nan == 1);
  CHECK(c.inf == 1);
  CHECK(counted(x, DType::f64).elements == 0);
  CHECK(counted(x.to(DType::bf16), DType::f32).elements == 0);
  CHECK(counted(x.to(DType::f16), DType::bf16).elements == 7);
  const Tensor big = randn({700, 301}) * 1e-6;
  for (const Tensor& t : {big, big.t()}) {
    std::uint64_t lost = 0;
    for (double v : values(t)) lost += v != 0 && std::fabs(v) <= 0x1p-25;
    const auto check = [&](const CastCounts& n) {
      CHECK(n.elements == 700 * 301);
      CHECK(n.underflow == lost);
    };
    for_thread_counts([&] { return counted(t, DType::f16); }, check);
    const auto copied = [&] {
      CastCounts counts;
      const CountScope scope(&counts);
      empty(t.sizes(), {.dtype = DType::f16}).copy_(t);
      return counts;
    };
    for_thread_counts(copied, check);
  }
}

TEST_CASE("cat joins tensors of any layout") {
  const Tensor a = arange(0, 6).reshape({2, 3});
  const Tensor b = arange(10, 14).reshape({2, 2}).t();
  CHECK(values(cat({a, b}, 1)) == std::vector<double>{0, 1, 2, 10, 12, 3, 4, 5, 11, 13});
  CHECK(values(cat({a.t(), b}, 0)) == std::vector<double>{0, 3, 1, 4, 2, 5, 10, 12, 11, 13});
  CHECK(values(cat({a, zeros({2, 0}, {.dtype = DType::i64}), a}, -1)).size() == 12);
  CHECK(cat({a.to(DType::f16), b.to(DType::bf16)}, 1).dtype() == DType::f32);
  CHECK(values(stack({b, b}, 2)) == std::vector<double>{10, 10, 12, 12, 11, 11, 13, 13});
  CHECK_THROWS_WITH_AS(cat({a, b}, 0), doctest::Contains("all sizes but those of dim 0"), Error);
  CHECK_THROWS_AS(cat({scalar(1), scalar(2)}, 0), Error);
}

TEST_CASE("slice_backward, pad and tril") {
  const Tensor x = arange(1, 7, 1, {.dtype = DType::f32}).reshape({2, 3});
  CHECK(values(slice_backward(x, {.dim = 1, .start = 1, .stop = 6, .step = 2, .size = 7})) ==
        std::vector<double>{0, 1, 0, 2, 0, 3, 0, 0, 4, 0, 5, 0, 6, 0});
  CHECK(values(slice_backward(x.t(), {.dim = 0, .start = 0, .stop = 3, .step = 1, .size = 4})) ==
        std::vector<double>{1, 4, 2, 5, 3, 6, 0, 0});
  CHECK(values(pad(x, {0, 1}, {1, 0}, 9)) == std::vector<double>{9, 1, 2, 3, 9, 4, 5, 6, 9, 9, 9, 9});
  CHECK(pad(x, {0, 0}, {0, 0}).sizes() == Shape{2, 3});
  CHECK_THROWS_WITH_AS(pad(x, {0, -1}, {0, 0}), doctest::Contains("use narrow"), Error);
  CHECK(values(tril(ones({2, 3}))) == std::vector<double>{1, 0, 0, 1, 1, 0});
  CHECK(values(tril(x, 1)) == std::vector<double>{1, 2, 0, 4, 5, 6});
  CHECK(values(tril(x, -2)) == std::vector<double>{0, 0, 0, 0, 0, 0});
  CHECK(values(tril(x.t(), 5)) == std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(values(tril(stack({x, x}), -1)) == std::vector<double>{0, 0, 0, 4, 0, 0, 0, 0, 0, 4, 0, 0});
  CHECK(tril(zeros({3, 0, 2})).numel() == 0);
}

TEST_CASE("gather and scatter_add along every dim, in every layout") {
  Generator g(11);
  const Tensor x = randn({4, 5, 6}, {.dtype = DType::f64}, g);
  for (const Tensor& t : {x, x.permute({2, 0, 1}).clone().permute({1, 2, 0})}) {
    for (int dim = 0; dim < 3; ++dim) {
      Shape sizes{3, 4, 5};
      sizes[dim] = 9;
      const Tensor index = randint(0, t.size(dim), sizes, {.dtype = DType::i64}, g);
      const Tensor src = randn({9, 9, 9}, {.dtype = DType::f64}, g);
      const Tensor got = gather(t, dim, index);
      const Tensor sums = scatter_add(t, dim, index, src);
      std::vector<double> want = values(t);
      for (std::int64_t i = 0; i < index.numel(); ++i) {
        std::int64_t p[3] = {i / (sizes[1] * sizes[2]), i / sizes[2] % sizes[1], i % sizes[2]};
        const double from = at(src, (p[0] * 9 + p[1]) * 9 + p[2]);
        p[dim] = static_cast<std::int64_t>(at(index, i));
        const std::int64_t q = (p[0] * 5 + p[1]) * 6 + p[2];
        REQUIRE(at(got, i) == at(t, q));
        want[static_cast<std::size_t>(q)] += from;
      }
      REQUIRE(values(sums) == want);
    }
  }
  CHECK(gather(scalar(5), 0, scalar(0, {.dtype = DType::i64})).item() == 5);
}

TEST_CASE("index_select and index_add") {
  const Tensor x = arange(0, 12, 1, {.dtype = DType::f32}).reshape({3, 4});
  CHECK(values(index_select(x, 0, indices({2, 0, 2}, {3}))) ==
        std::vector<double>{8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11});
  CHECK(values(index_select(x.t(), 0, indices({3, 1}, {2}))) == std::vector<double>{3, 7, 11, 1, 5, 9});
  CHECK(values(index_select(x, 1, indices({1, 1, 0, 0}, {4}).index({Slice{0, {}, 2}}))) ==
        std::vector<double>{1, 0, 5, 4, 9, 8});
  CHECK(index_select(x, 0, indices({}, {0})).sizes() == Shape{0, 4});
  CHECK(values(index_add(x, 0, indices({1, 1, 0}, {3}), 3)) ==
        std::vector<double>{8, 9, 10, 11, 4, 6, 8, 10, 0, 0, 0, 0});
  CHECK(values(index_add(x.t(), 1, indices({0, 0, 1}, {3}), 2)) == std::vector<double>{4, 8, 6, 9, 8, 10, 10, 11});
  CHECK(values(index_add(arange(0, 3), 0, indices({0, 1, 0}, {3}), 2)) == std::vector<double>{2, 1});
  // 4096 ones into one f16 number: summed in f32, rounded once.
  const Tensor h = index_add(ones({4096, 2}, {.dtype = DType::f16}), 0, zeros({4096}, {.dtype = DType::i64}), 1);
  CHECK(values(h) == std::vector<double>{4096, 4096});
}

TEST_CASE("indexed additions keep their bits for any number of threads") {
  const Tensor rows = randn({9000, 130});
  const Tensor index = randint(0, 50, {9000});
  const Tensor wide = randint(0, 130, {9000, 130});
  const auto run = [&] {
    return std::vector<Tensor>{index_add(rows, 0, index, 50), scatter_add(zeros({9000, 130}), 1, wide, rows),
                               scatter_add(zeros({9000, 130}), 0, wide, rows), index_select(rows, 0, index)};
  };
  const ThreadsScope scope(1);
  const auto want = run();
  for_thread_counts(run, [&](const std::vector<Tensor>& got) {
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(got[i], want[i]));
  });
}

TEST_CASE("an index out of range is named with its place") {
  const Tensor x = zeros({3, 4});
  CHECK_THROWS_WITH_AS(gather(x, 1, indices({0, 1, 4, 2}, {2, 2})),
                       "gather: [3, 4] f32 x [2, 2] i64: index 4 at [1, 0] is out of range; allowed are 0 to 3", Error);
  CHECK_THROWS_WITH_AS(index_select(x, 0, indices({0, -1}, {2})), doctest::Contains("index -1 at [1]"), Error);
  CHECK_THROWS_WITH_AS(index_add(x, 0, indices({0, 5, 1}, {3}), 5), doctest::Contains("allowed are 0 to 4"), Error);
  CHECK_THROWS_WITH_AS(scatter_add(x, 0, indices({3}, {1, 1}), x), doctest::Contains("index 3 at [0, 0]"), Error);
  CHECK_THROWS_WITH_AS(one_hot(indices({0, 3}, {2}), 3), doctest::Contains("index 3 at [1]"), Error);
  CHECK_THROWS_WITH_AS(gather(x, 0, x), doctest::Contains("must be i64"), Error);
}

TEST_CASE("one_hot") {
  CHECK(values(one_hot(indices({2, 0, 1, 1}, {2, 2}).t(), 3)) ==
        std::vector<double>{0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0});
  CHECK(one_hot(zeros({0}, {.dtype = DType::i64}), 3).sizes() == Shape{0, 3});
}

TEST_CASE("a cast beyond the caches gives what the casts of its parts give") {
  const std::int64_t n = (9 << 20) + 224;  // the last part is not a multiple of what is done at a time
  const Tensor x = empty({n});             // floats of all kinds: NaN, Inf and subnormal ones, too
  for (std::int64_t i = 0; i < n; ++i)
    x.data<float>()[i] = std::bit_cast<float>(static_cast<std::uint32_t>(i) * 477218589u);
  const auto check = [&](const Tensor& from, DType to) {
    const Tensor whole = to == from.dtype() ? clone(from) : from.to(to);
    bool same = true;
    for (std::int64_t i = 0; i < n; i += n / 16) {
      const Tensor part = clone(from.narrow(0, i, n / 16)).to(to);
      same = same && std::memcmp(part.raw(), whole.narrow(0, i, n / 16).raw(), part.nbytes()) == 0;
    }
    CHECK(same);
  };
  reference::for_each_isa([&](CpuIsa isa) {
    CAPTURE(to_string(isa));
    for (const DType narrow : {DType::f16, DType::bf16}) {
      CAPTURE(to_string(narrow));
      check(x, narrow);
      const Tensor codes = empty({n}, {.dtype = narrow});  // all of them, with NaN that signal
      auto* const bits = static_cast<std::uint16_t*>(codes.raw());
      for (std::int64_t i = 0; i < n; ++i) bits[i] = static_cast<std::uint16_t>(i);
      check(codes, DType::f32);
      check(codes, narrow);
    }
    check(x, DType::f32);
    check(x, DType::f64);
  });
}
