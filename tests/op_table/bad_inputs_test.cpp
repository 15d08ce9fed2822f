// Errors: the rows' own bad inputs, and what every row must refuse.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include "op_table.h"

namespace gradual::test {
namespace {

// The message of the Error that f throws; other exceptions and none are failures.
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); } catch (const std::exception& e) {
    return std::string("(no gradual::Error) ") + e.what();
  }
  return "(nothing was thrown)";
}

void expect_message(const std::string& got, const std::string& wanted, const std::string& where) {
  if (got.find(wanted) == std::string::npos || got.find("internal") != std::string::npos || got[0] == '(')
    expect_none("message: " + got + "\n    wanted: " + wanted, where);
}

TEST_CASE("bad inputs give the messages they should") {
  int cases = 0;
  for (const Row* row : rows_under_test()) {
    for (const BadInput& bad : row->bad) {
      expect_message(message_of(bad.run), bad.message, std::string(to_string(row->op)) + " '" + bad.label + "'");
      ++cases;
    }
  }
  if (!std::getenv("GRADUAL_TEST_OP")) CHECK(cases > 0);  // a row alone may have none
}

TEST_CASE("an undefined tensor in the place of one that is needed is an error") {
  for (const Row* row : rows_under_test()) {
    if (!row->samples) continue;
    const Sample sample = samples_of(*row, row->dtypes[0])[0];
    Tensors inputs = fresh(sample.inputs);
    inputs[0] = Tensor();
    const std::string got = message_of([&] { sample.call(inputs); });
    expect_message(got, "", describe(*row, sample, inputs, "undefined first input"));
  }
}

TEST_CASE("f8 tensors allow only cast, copies, views and contractions, and the message names these") {
  for (const Row* row : rows_under_test()) {
    if (!row->samples) continue;
    for (DType f8 : {DType::f8e4m3fn, DType::f8e5m2}) {
      if (std::find(row->dtypes.begin(), row->dtypes.end(), f8) != row->dtypes.end()) continue;
      const Sample sample = samples_of(*row, row->dtypes[0])[0];
      Tensors inputs = fresh(sample.inputs);
      bool any = false;
      for (Tensor& t : inputs) {
        any = any || (t.defined() && t.is_floating());
        t = converted(t, f8);
      }
      if (!any) continue;
      const std::string where = describe(*row, sample, inputs, "f8");
      const std::string got = message_of([&] { sample.call(inputs); });
      expect_message(got, "", where);
      const bool says = got.find("f8 tensors") != std::string::npos || got.find("takes") != std::string::npos ||
                        got.find("f32") != std::string::npos;
      if (!says) expect_none("message does not say what would be right: " + got, where);
    }
  }
}

TEST_CASE("a failed in-place op leaves its tensor as it was") {
  const Tensor x = from_data(std::vector<double>{1, 2, 3}, {3});
  const std::vector<std::byte> before = storage_of(x);
  CHECK_THROWS_AS(x.add_(ones({2})), Error);
  CHECK_THROWS_AS(x.copy_(ones({2, 3})), Error);
  CHECK_THROWS_AS(x.mul_(ones({4})), Error);
  CHECK(storage_of(x) == before);
  CHECK(x.version() == 0);
}

}  // namespace
}  // namespace gradual::test
