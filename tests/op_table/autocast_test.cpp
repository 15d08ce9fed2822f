// What autocast makes of every row: the dtype that comes out, and the bits of the same call with the casts by
// hand.
#include <doctest/doctest.h>
#include <gradual/amp/autocast.h>

#include <algorithm>
#include <cstdlib>

#include "op_table.h"

namespace gradual::test {
namespace {

using Bits = std::vector<std::vector<std::byte>>;

struct Result {
  std::vector<DType> dtypes;
  Bits bits;
  bool operator==(const Result&) const = default;
};
Result result_of(const Sample& sample, const Tensors& inputs) {
  Result r;
  for (const Tensor& t : sample.call(fresh(inputs))) {
    r.dtypes.push_back(t.dtype());
    r.bits.push_back(bytes_of(t));
  }
  return r;
}
Result under(DType dtype, const Sample& sample, const Tensors& inputs) {
  const amp::Autocast scope({.dtype = dtype});
  return result_of(sample, inputs);
}

// Floating inputs in `first`, but all after the first of them in `rest`.
Tensors mixed(const Tensors& inputs, DType first, DType rest) {
  Tensors out;
  bool any = false;
  for (const Tensor& t : inputs) {
    const bool floating = t.defined() && t.is_floating();
    out.push_back(floating ? converted(t, any ? rest : first) : t);
    any = any || floating;
  }
  return out;
}
Tensors all(const Tensors& inputs, DType dtype) { return mixed(inputs, dtype, dtype); }

template <class F> void for_each_sample(const char* policy, F f) {
  int rows = 0;
  for (const Row* row : rows_under_test()) {
    if (std::string(row->policy) != policy || !row->samples) continue;
    if (std::find(row->dtypes.begin(), row->dtypes.end(), DType::f32) == row->dtypes.end()) continue;
    ++rows;
    for (const Sample& sample : samples_of(*row, DType::f32)) {
      if (sample.large) continue;
      try {
        f(*row, sample);
      } catch (const std::exception& e) {
        expect_none(std::string("threw: ") + e.what(), describe(*row, sample, sample.inputs, policy));
      }
    }
  }
  if (!std::getenv("GRADUAL_TEST_OP")) CHECK(rows > 0);
}

void expect_same(const Result& got, const Result& want, const Row& row, const Sample& sample, const Tensors& inputs,
                 const std::string& what) {
  if (got == want) return;
  const bool dtypes = got.dtypes == want.dtypes;
  expect_none(dtypes ? "other bits than with the casts by hand"
                     : "gives " + std::string(to_string(got.dtypes[0])) + ", expected " +
                           std::string(to_string(want.dtypes[0])),
              describe(row, sample, inputs, what));
}

TEST_CASE("amp's default table has the policy of every row") {
  const amp::PolicyTable table;
  for (const Row* row : rows_under_test()) {
    CAPTURE(to_string(row->op));
    CHECK(to_string(table[row->op]) == row->policy);
  }
}

// Attention's mask, its fourth input, keeps its dtype: large negative numbers in it would not survive.
Tensors lowered(const Row& row, const Tensors& inputs, DType half) {
  Tensors out = all(inputs, half);
  if (row.op == OpId::scaled_dot_product_attention && out.size() > 3) out[3] = inputs[3];
  return out;
}

TEST_CASE("ops in the lower list run in the region's dtype, as if cast by hand") {
  for (DType half : {DType::f16, DType::bf16})
    for_each_sample("lower", [half](const Row& row, const Sample& sample) {
      const Result got = under(half, sample, sample.inputs);
      for (DType d : got.dtypes) CHECK(d == half);
      expect_same(got, result_of(sample, lowered(row, sample.inputs, half)), row, sample, sample.inputs, "lower");
      const Tensors other = mixed(sample.inputs, DType::bf16, DType::f16);
      expect_same(under(half, sample, other), result_of(sample, lowered(row, other, half)), row, sample, other,
                  "lower");
    });
}

TEST_CASE("ops in the fp32 list run in f32 on halves, as if cast by hand") {
  for (DType half : {DType::f16, DType::bf16})
    for_each_sample("fp32", [half](const Row& row, const Sample& sample) {
      const Tensors inputs = all(sample.inputs, half);
      const Result got = under(half, sample, inputs);
      for (DType d : got.dtypes) CHECK(d == DType::f32);
      expect_same(got, result_of(sample, all(inputs, DType::f32)), row, sample, inputs, "fp32");
    });
}

TEST_CASE("ops in the promote list run in the widest dtype, in both orders") {
  for_each_sample("promote", [](const Row& row, const Sample& sample) {
    for (const auto& [first, rest] : {std::pair{DType::f16, DType::f32},
                                      {DType::f32, DType::f16},
                                      {DType::bf16, DType::f32},
                                      {DType::f16, DType::bf16}}) {
      const Tensors inputs = mixed(sample.inputs, first, rest);
      DType widest = first;
      for (const Tensor& t : inputs)
        if (t.is_floating()) widest = promote(widest, t.dtype());
      expect_same(under(DType::f16, sample, inputs), result_of(sample, all(inputs, widest)), row, sample, inputs,
                  "promote");
    }
  });
}

TEST_CASE("all other ops run in their inputs' dtypes") {
  for_each_sample("pass", [](const Row& row, const Sample& sample) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      // their samples fix a dtype of their own
      if (row.op == OpId::copy_ || row.op == OpId::cast || row.op == OpId::batch_norm_update_) continue;
      if (sample.label.find("f16") != std::string::npos || sample.label.find("f32") != std::string::npos) continue;
      const Tensors inputs = all(sample.inputs, dtype);
      expect_same(under(DType::f16, sample, inputs), result_of(sample, inputs), row, sample, inputs, "pass");
    }
  });
}

TEST_CASE("banned ops throw, and the message names the cure") {
  for_each_sample("banned", [](const Row& row, const Sample& sample) {
    CAPTURE(to_string(row.op));
    CHECK_THROWS_WITH_AS(under(DType::f16, sample, sample.inputs), doctest::Contains("use bce_with_logits_loss"),
                         Error);
    CHECK(result_of(sample, sample.inputs).dtypes.size() == 1);
  });
}

TEST_CASE("f64 and integers pass untouched") {
  for (const Row* row : rows_under_test()) {
    if (std::string(row->policy) == "banned") continue;
    for (DType dtype : {DType::f64, DType::i64}) {
      if (std::find(row->dtypes.begin(), row->dtypes.end(), dtype) == row->dtypes.end()) continue;
      for (const Sample& sample : samples_of(*row, dtype))
        if (!sample.large && sample.label.find("from ") == std::string::npos &&
            sample.label.find("to ") == std::string::npos)
          expect_same(under(DType::f16, sample, sample.inputs), result_of(sample, sample.inputs), *row, sample,
                      sample.inputs, "untouched");
    }
  }
}

}  // namespace
}  // namespace gradual::test
