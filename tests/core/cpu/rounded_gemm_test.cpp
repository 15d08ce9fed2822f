// Products under accumulators have the same bits with every instruction set: AVX-512 adds in f32, the others in f64.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/cpu_isas.h"

using namespace gradual;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// x with this many significant bits, truncated.
float shortened(float x, int bits) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & ~0u << (24 - bits));
}

// Numbers of one kind: full, or of few bits, so that sums are ties; far apart; near the ends of f16's and f32's range;
// that cancel; any bits; special values; whose sums lie near half way between numbers of a format, normal and tiny.
constexpr int kKinds = 14;
float number(int kind, std::mt19937& random) {
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  const float x = std::normal_distribution<float>()(random);
  const float bits = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  switch (kind) {
    case 0: return x;
    case 1: return shortened(x, 11);
    case 2: return below(3) == 0 ? shortened(x, 4) : 0;
    case 3: return static_cast<float>(below(9) - 4);
    case 4: return std::ldexp(x, below(60) - 30);
    case 5: return std::ldexp(shortened(x, 8), -60 - below(20));
    case 6: return x * 200;
    case 7: return std::ldexp(x, 55 + below(8));
    case 8: return below(2) == 0 ? -1 : 1 + std::ldexp(1.0F, -below(24));
    case 9: return std::isfinite(bits) ? bits : 1;
    case 10: return std::vector{kInf, -0.0F, 0.0F, x}[std::size_t(std::min(3, below(200)))];
    case 11: return below(300) == 0 ? kNan : x * 1e-5F;
    default: {
      const float near_one = 1 + std::ldexp(static_cast<float>(below(3) - 1), -10 - below(13));
      return std::ldexp(below(2) == 0 ? -near_one : near_one, (kind == 12 ? 0 : -60) - below(12));
    }
  }
}

Tensor numbers(const Shape& sizes, int kind, std::mt19937& random) {
  Tensor t = empty(sizes);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = number(kind, random);
  return t;
}

// The elements whose bits differ; any NaN equals another.
int differing(const Tensor& a, const Tensor& b) {
  int count = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const float x = a.data<float>()[i];
    const float y = b.data<float>()[i];
    count += std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y) && !(x != x && y != y);
  }
  return count;
}

}  // namespace

TEST_CASE("rounded products: all instruction sets give the same bits") {
  std::mt19937 random(1);
  for (const std::string format : {"fp16-acc", "bf16-acc", "e8m3", "e5m2", "e4m3", "e2m1", "e8m10", "e8m21", "e5m21",
                                   "e6m9", "e3m4", "e7m0", "e8m22", "e5m2fnuz", "e4m3fn"})
    for (const std::string more : {"", "/chunk=8", "/chunk=7/promote=21", "/promote=16"})
      for (int kind = 0; kind < kKinds; ++kind) {
        const int other = kind < 12 ? static_cast<int>(random() % kKinds) : kind;
        const std::int64_t m = 1 + random() % 40;
        const std::int64_t k = 1 + random() % 150;
        const std::int64_t n = random() % 3 ? 1 + random() % 90 : 64;
        const Tensor a = numbers({m, k}, kind, random);
        const Tensor b = numbers({n, k}, other, random);
        const Tensor bias = full({n}, kind == 0 ? 0.3 : -0.0);  // shows the sign of a sum of zero
        Accumulator how = accumulator(format + more);
        how.format.subnormals = random() % 6 != 0;
        const AccumulatorScope scope(how);
        std::vector<Tensor> firsts;
        reference::for_each_isa([&](CpuIsa isa) {
          const Tensor all[] = {linear(a, b, bias), matmul(b, a.t()), sum(a, {0}), sum(a, {1}),
                                matmul(a.to(DType::bf16), b.to(DType::bf16).t()).to(DType::f32)};
          for (std::size_t i = 0; i < std::size(all); ++i) {
            if (firsts.size() == i) firsts.push_back(all[i]);
            const int wrong = differing(firsts[i], all[i]);
            CHECK_MESSAGE(wrong == 0, format, more, ", ", to_string(isa), ", kinds ", kind, " and ", other, ", [", m,
                          ", ", k, ", ", n, "], result ", i, ": ", wrong, " of ", all[i].numel());
          }
        });
      }
}
