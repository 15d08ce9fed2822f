// matmul and linear against sums in long double.
#include <doctest/doctest.h>
#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/threads.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

using namespace gradual;

namespace {

Tensor random(const Shape& sizes, DType dtype, std::uint64_t seed) {
  Generator g(seed);
  return randn(sizes, {.dtype = DType::f64}, g).to(dtype);
}

// c [m, n] against start + a b in long double: k + 1 roundings of sums of this size, in any order. f32 where c is not
// f64.
void check_product(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& start = {}) {
  const std::int64_t m = a.size(0);
  const std::int64_t k = a.size(1);
  const std::int64_t n = b.size(1);
  REQUIRE(c.sizes() == Shape{m, n});
  const auto at = [](const std::vector<double>& v, std::int64_t i) {
    return static_cast<long double>(v[static_cast<std::size_t>(i)]);
  };
  const auto av = a.to_vector<double>();
  const auto bv = b.to_vector<double>();
  const auto cv = c.to_vector<double>();
  const auto first = start.defined() ? start.to_vector<double>() : std::vector<double>(static_cast<std::size_t>(n));
  const long double step = static_cast<long double>(k + 1) * std::ldexp(1.0L, c.dtype() == DType::f64 ? -53 : -24);
  bool near = true;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      long double sum = at(first, j);
      long double size = std::abs(sum);
      for (std::int64_t p = 0; p < k; ++p) {
        sum += at(av, i * k + p) * at(bv, p * n + j);
        size += std::abs(at(av, i * k + p) * at(bv, p * n + j));
      }
      near = near && std::abs(at(cv, i * n + j) - sum) <= step * size;
    }
  CHECK(near);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() &&
         std::memcmp(a.raw(), b.raw(), a.nbytes()) == 0;
}

// Every second column of a wider tensor, so that neither stride is 1.
Tensor gapped(const Tensor& t) {
  const Tensor wide = zeros({t.size(0), 2 * t.size(1)}, {.dtype = t.dtype()});
  const Tensor view = slice(wide, 1, {.start = {}, .stop = {}, .step = 2});
  view.copy_(t);
  return view;
}

}  // namespace

TEST_CASE("matmul of every shape and stride") {
  const Shape cases[] = {{1, 1, 1},     {1, 7, 5},     {3, 300, 1},    {8, 8, 8},   {9, 17, 33},    {32, 64, 128},
                         {32, 128, 10}, {31, 257, 65}, {130, 513, 70}, {5, 2, 300}, {200, 100, 300}};
  for (const Shape& s : cases) {
    CAPTURE(to_string(s));
    const Tensor a = random({s[0], s[1]}, DType::f32, 1);
    const Tensor b = random({s[1], s[2]}, DType::f32, 2);
    const Tensor at = clone(a.t()).t();
    const Tensor bt = clone(b.t()).t();
    check_product(a, b, matmul(a, b));
    check_product(a, bt, matmul(a, bt));
    check_product(at, b, matmul(at, b));
    check_product(at, bt, matmul(at, bt));
    check_product(gapped(a), gapped(b), matmul(gapped(a), gapped(b)));
    check_product(a.to(DType::f64), bt.to(DType::f64), matmul(a.to(DType::f64), bt.to(DType::f64)));
  }
}

TEST_CASE("matmul writes nothing outside its output") {
  // The output lies in fresh memory; neighbours are tested through a view that ends before the buffer does.
  const Tensor a = random({9, 20}, DType::f32, 1);
  const Tensor b = slice(random({20, 40}, DType::f32, 2), 1, {.start = 0, .stop = 37});
  check_product(a, b, matmul(a, b));
}

TEST_CASE("narrow inputs: exact products, f32 accumulation, one rounding") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    const Tensor a = random({33, 70}, dtype, 3);
    const Tensor b = random({70, 21}, dtype, 4);
    const Tensor wide = matmul(a.to(DType::f32), b.to(DType::f32));
    const Tensor c = matmul(a, b);
    CHECK(c.dtype() == dtype);
    CHECK(same_bits(c, wide.to(dtype)));
    // A product of two 11-bit significands is exact in f32, so only the sums and the last rounding are off.
    const std::vector<double> exact = matmul(a.to(DType::f64), b.to(DType::f64)).to_vector<double>();
    const std::vector<double> sums = matmul(a.to(DType::f64).abs(), b.to(DType::f64).abs()).to_vector<double>();
    const std::vector<double> got = c.to_vector<double>();
    const double eps = dtype == DType::f16 ? std::ldexp(1, -11) : std::ldexp(1, -8);
    for (std::size_t i = 0; i < got.size(); ++i)
      REQUIRE(std::abs(got[i] - exact[i]) <= 70 * std::ldexp(1, -24) * sums[i] + eps * std::abs(exact[i]) * 1.001);
  }
}

TEST_CASE("a sum that no f16 accumulator can hold") {
  // 4096 ones: an f16 accumulator stops at 2048.
  const Tensor ones16 = ones({1, 4096}, {.dtype = DType::f16});
  CHECK(matmul(ones16, ones16.t()).item() == 4096);
  const Tensor ones_bf = ones({1, 4096}, {.dtype = DType::bf16});
  CHECK(matmul(ones_bf, ones_bf.t()).item() == 4096);
}

TEST_CASE("f8 inputs give f32") {
  const Tensor a = random({5, 12}, DType::f8e4m3fn, 5);
  const Tensor b = random({12, 6}, DType::f8e4m3fn, 6);
  const Tensor c = matmul(a, b);
  CHECK(c.dtype() == DType::f32);
  CHECK(same_bits(c, matmul(a.to(DType::f32), b.to(DType::f32))));
}

TEST_CASE("vectors, batches and broadcasting") {
  const Tensor a = random({4, 1, 6, 8}, DType::f32, 7);
  const Tensor b = random({3, 8, 5}, DType::f32, 8);
  const Tensor c = matmul(a, b);
  REQUIRE(c.sizes() == Shape{4, 3, 6, 5});
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 3; ++j) REQUIRE(same_bits(clone(c[i][j]), matmul(a[i][0], b[j])));
  const Tensor v = random({8}, DType::f32, 9);
  CHECK(matmul(v, v).sizes() == Shape{});
  CHECK(same_bits(matmul(a, v), matmul(a, v.unsqueeze(1)).squeeze(-1)));
  CHECK(same_bits(matmul(v, b), matmul(v.unsqueeze(0), b).squeeze(-2)));
  // A 3-d operand on a matrix is one tall product; a permuted one is not.
  const Tensor x = random({7, 6, 8}, DType::f32, 10);
  const Tensor w = random({8, 9}, DType::f32, 11);
  const Tensor tall = matmul(x, w);
  const Tensor permuted = matmul(clone(x.transpose(0, 1)).transpose(0, 1), w);
  for (int i = 0; i < 7; ++i) {
    check_product(x[i], w, tall[i]);
    check_product(x[i], w, permuted[i]);
  }
  // Expanded batches are read, not copied.
  CHECK(same_bits(matmul(x[0].expand({5, 6, 8}), w)[4].clone(), matmul(x[0], w)));
  CHECK(same_bits(clone(matmul(x[0].expand({5, 6, 8}).to(DType::f16), w.to(DType::f16))[4]),
                  matmul(x[0].to(DType::f16), w.to(DType::f16))));
}

TEST_CASE("empty products") {
  CHECK(matmul(zeros({3, 0}), zeros({0, 4})).to_vector<double>() == std::vector<double>(12, 0));
  CHECK(matmul(zeros({0, 3}), zeros({3, 4})).sizes() == Shape{0, 4});
  CHECK(matmul(zeros({2, 0, 3}), zeros({3, 4})).sizes() == Shape{2, 0, 4});
  CHECK(matmul(zeros({0}), zeros({0})).item() == 0);
  const Tensor bias = from_data(std::vector<double>{1, 2}, {2});
  CHECK(linear(zeros({3, 0}), zeros({2, 0}), bias).to_vector<double>() == std::vector<double>{1, 2, 1, 2, 1, 2});
}

TEST_CASE("linear adds its bias before it rounds, once") {
  const Tensor x = random({30, 50}, DType::f32, 12);
  const Tensor w = random({20, 50}, DType::f32, 13);
  const Tensor bias = random({20}, DType::f32, 14);
  check_product(x, w.t(), linear(x, w, bias), bias);
  CHECK(linear(x, w).to_vector<float>() == matmul(x, w.t()).to_vector<float>());
  const Tensor half = linear(x.to(DType::f16), w.to(DType::f16), bias.to(DType::f16));
  const Tensor wide =
      linear(x.to(DType::f16).to(DType::f32), w.to(DType::f16).to(DType::f32), bias.to(DType::f16).to(DType::f32));
  CHECK(same_bits(half, wide.to(DType::f16)));
  // Any lead dims, and rows that no single stride describes.
  const Tensor x3 = random({4, 5, 50}, DType::f32, 15);
  const Tensor y3 = linear(x3, w, bias);
  REQUIRE(y3.sizes() == Shape{4, 5, 20});
  check_product(x3.reshape({20, 50}), w.t(), y3.reshape({20, 20}), bias);
  const Tensor permuted = linear(clone(x3.transpose(0, 1)).transpose(0, 1), w, bias);
  check_product(x3.reshape({20, 50}), w.t(), permuted.reshape({20, 20}), bias);
  check_product(x3[2], w.t(), linear(x3[2], w, bias), bias);
  check_product(slice(x3[2], 0, {.start = 1, .stop = 2}), w.t(), linear(x3[2][1], w, bias).unsqueeze(0), bias);
  const Tensor spread = zeros({40});
  slice(spread, 0, {.start = {}, .stop = {}, .step = 2}).copy_(bias);
  CHECK(same_bits(linear(x, w, slice(spread, 0, {.start = {}, .stop = {}, .step = 2})), linear(x, w, bias)));
}

TEST_CASE("the number of threads does not change a bit") {
  const Tensor a = random({300, 400}, DType::f32, 16);
  const Tensor b = random({400, 520}, DType::f32, 17);
  const Tensor batch = random({12, 40, 400}, DType::f32, 18);
  Tensor one[2], many[2];
  {
    const ThreadsScope threads(1);
    one[0] = matmul(a, b);
    one[1] = matmul(batch, b.t().transpose(0, 1));
  }
  {
    const ThreadsScope threads(5);
    many[0] = matmul(a, b);
    many[1] = matmul(batch, b);
  }
  CHECK(same_bits(one[0], many[0]));
  CHECK(same_bits(one[1], many[1]));
}

TEST_CASE("TF32 rounds the operands of f32 products to 10 bits, in its scope only") {
  const auto rounded = [](float value) {  // by arithmetic: the nearest multiple of 2^(e-10), ties to even
    int exponent;
    std::frexp(value, &exponent);
    const double unit = std::ldexp(1.0, exponent - 11);
    return static_cast<float>(std::nearbyint(static_cast<double>(value) / unit) * unit);
  };
  const Tensor a = random({20, 30}, DType::f32, 19);
  const Tensor b = random({30, 25}, DType::f32, 20);
  std::vector<float> av = a.to_vector<float>();
  std::vector<float> bv = b.to_vector<float>();
  for (float& v : av) v = rounded(v);
  for (float& v : bv) v = rounded(v);
  const Tensor by_hand = matmul(from_data(av, {20, 30}), from_data(bv, {30, 25}));
  const Tensor plain = matmul(a, b);
  {
    const MatmulPrecisionScope scope(MatmulPrecision::tf32);
    CHECK(same_bits(matmul(a, b), by_hand));
    CHECK_FALSE(same_bits(matmul(a, b), plain));
    CHECK(same_bits(matmul(a.to(DType::f64), b.to(DType::f64)).to(DType::f32),
                    matmul(a.to(DType::f64), b.to(DType::f64)).to(DType::f32)));
    // A tie goes to even: 1 + 2^-11 down, 1 + 3 * 2^-11 up. Inf and NaN stay; the bias is not touched.
    const Tensor one = ones({1, 1});
    CHECK(matmul(full({1, 1}, 1 + std::ldexp(1, -11)), one).item() == 1);
    CHECK(matmul(full({1, 1}, 1 + 3 * std::ldexp(1, -11)), one).item() == 1 + 2 * std::ldexp(1, -10));
    CHECK(matmul(full({1, 1}, INFINITY), one).item() == INFINITY);
    CHECK(std::isnan(matmul(full({1, 1}, NAN), one).item()));
    const double bias = 1 + std::ldexp(1, -20);
    CHECK(linear(zeros({1, 1}), one, full({1}, bias)).item() == bias);
    CHECK(matmul(full({1, 1}, 1 + std::ldexp(1, -20), {.dtype = DType::f64}), one.to(DType::f64)).item() ==
          1 + std::ldexp(1, -20));
  }
  CHECK(same_bits(matmul(a, b), plain));
}

TEST_CASE("what the last rounding loses is counted, on any number of threads") {
  const Tensor big = full({200, 300}, 300, {.dtype = DType::f16});
  for (int n : {1, 4}) {
    const ThreadsScope threads(n);
    CastCounts counts;
    {
      const CountScope scope(&counts);
      matmul(big, big.t());
    }
    CHECK(counts.elements == 200 * 200);
    CHECK(counts.overflow == 200 * 200);
  }
}

TEST_CASE("matmul and linear say what does not fit") {
  CHECK_THROWS_WITH_AS(matmul(zeros({32, 784}), zeros({512, 784})),
                       doctest::Contains("inner dimensions 784 and 512 differ; did you mean transpose"), Error);
  CHECK_THROWS_WITH_AS(matmul(scalar(1), zeros({2, 2})), doctest::Contains("0-d"), Error);
  CHECK_THROWS_WITH_AS(linear(zeros({2, 3}), zeros({4, 5})), doctest::Contains("must be the weight's second, 5"),
                       Error);
  CHECK_THROWS_WITH_AS(matmul(zeros({2, 2}, {.dtype = DType::i64}), zeros({2, 2}, {.dtype = DType::i64})),
                       doctest::Contains("floating"), Error);
}
