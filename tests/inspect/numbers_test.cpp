// The sums of errors of inspect/numbers.h.
#include <doctest/doctest.h>
#include <gradual/core/ops/ops.h>
#include <gradual/inspect/numbers.h>

#include <limits>
#include <vector>

using namespace gradual;

namespace {

Tensor f64(const std::vector<double>& values) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = DType::f64});
}

}  // namespace

TEST_CASE("errors are summed over the elements that are finite in both, and those that only f64 keeps are counted") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr std::int64_t kSize = 3 * inspect::kErrorBlock;
  // Only the middle one of three blocks has elements that are not finite.
  std::vector<double> given(kSize, 1.5);
  std::vector<double> exact(kSize, 1);
  std::vector<double> shadow(kSize, 2);
  constexpr std::size_t kAt = inspect::kErrorBlock + 5;
  // lost
  given[kAt] = kInf;
  given[kAt + 1] = kNan;
  given[kAt + 2] = -kInf;  // not known
  exact[kAt + 2] = -kInf;
  shadow[kAt + 3] = kNan;  // known to the op alone
  const inspect::Comparison c = inspect::compare(f64(given), f64(exact), f64(shadow), DType::bf16);
  CHECK(c.local.elements == kSize - 3);
  CHECK(c.local.lost == 2);
  CHECK(c.local.squares == 0.25 * (kSize - 3));
  CHECK(c.local.exact_squares == kSize - 3);
  CHECK(c.local.max_ulps == 64);
  CHECK(c.local.sum_ulps == 64 * (kSize - 3));
  CHECK(c.total.elements == kSize - 4);
  CHECK(c.total.lost == 3);
  CHECK(c.inherited.elements == kSize - 2);
  CHECK(c.inherited.lost == 1);
  // Ulps of numbers near both ends of f64's range.
  for (const double size : {0x1p1000, 0x1p-1020})
    CHECK(inspect::compare(f64({1.5 * size}), f64({size}), f64({size}), DType::f64).local.sum_ulps == 0x1p51);
  CHECK(inspect::compare(f64({0x1p-1073}), f64({0}), f64({0}), DType::f64).local.sum_ulps == 2);
  // Squares of finite numbers may be beyond the range of f64.
  const inspect::ErrorSum large = inspect::error_of(f64({1e200, 1}), f64({0, 2}));
  CHECK(large.elements == 2);
  CHECK(large.lost == 0);
  CHECK(large.squares == kInf);
}
