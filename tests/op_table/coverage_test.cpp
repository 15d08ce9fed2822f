// Every row of core/ops.def has a row here, an entry in every column, and a reason for every hole.
#include <doctest/doctest.h>

#include <set>

#include <gradual/autograd/rule.h>
#include <gradual/cuda/cuda.h>
#include "op_table.h"

namespace gradual::test {
namespace {

const std::set<std::string> kPolicies{"lower", "fp32", "promote", "pass", "banned", "rewrite"};

bool has_sample(const Row& row, const std::function<bool(const Sample&)>& wanted) {
  for (DType dtype : row.dtypes)
    for (const Sample& s : samples_of(row, dtype))
      if (wanted(s)) return true;
  return false;
}
bool any_input(const Sample& s, const std::function<bool(const Tensor&)>& wanted) {
  for (const Tensor& t : s.inputs)
    if (t.defined() && wanted(t)) return true;
  return false;
}

TEST_CASE("every op has exactly one row, in every column or with a reason") {
  ensure_registered();
  std::set<OpId> seen;
  for (const Row& row : op_table()) {
    CAPTURE(to_string(row.op));
    CHECK_MESSAGE(seen.insert(row.op).second, "two rows for one op");
  }
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    CAPTURE(to_string(op));
    REQUIRE(seen.count(op) == 1);
    const Row& row = row_of(op);
    const OpInfo& def = op_info(op);
    CHECK(kPolicies.count(row.policy) == 1);
    const bool composite = def.kind == OpKind::Composite;
    CHECK((columns().infer[i] != nullptr) == !composite);
    CHECK((columns().composite[i] != nullptr) == composite);
    if (!composite) CHECK((columns().cpu[i] != nullptr) == row.no_kernel.empty());
    if (!composite && cuda::available()) CHECK((columns().cuda[i] != nullptr) == row.no_kernel.empty());
    const BackwardRule& rule = backward_rules()[i];
    CHECK_MESSAGE((rule.backward != nullptr) != (rule.reason != nullptr), "a backward rule or a reason, not both");
    CHECK(static_cast<bool>(row.samples) == row.no_samples.empty());
    CHECK(row.dtypes.empty() != static_cast<bool>(row.samples));
  }
}

TEST_CASE("every row has samples of every kind that its op allows") {
  for (const Row* row : rows_under_test()) {
    if (!row->samples) continue;
    CAPTURE(to_string(row->op));
    const auto empty = [](const Sample& s) { return any_input(s, [](const Tensor& t) { return t.numel() == 0; }); };
    const auto scalar = [](const Sample& s) { return any_input(s, [](const Tensor& t) { return t.dim() == 0; }); };
    const auto large = [](const Sample& s) {
      return s.large && any_input(s, [](const Tensor& t) { return t.numel() > 2000; });
    };
    CHECK(has_sample(*row, empty) == row->no_empty.empty());
    CHECK(has_sample(*row, scalar) == row->no_scalar.empty());
    CHECK(has_sample(*row, large) == row->no_large.empty());
    CHECK_MESSAGE(row->no_bad.empty() == !row->bad.empty(), "bad inputs, or why there are none");
  }
}

}  // namespace
}  // namespace gradual::test
