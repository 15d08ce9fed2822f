#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;

namespace {
using On = AnomalyMode::OnFinding;
int line_of(const Anomaly& a) { return static_cast<int>(a.where.line()); }
}  // namespace

TEST_CASE("anomaly: forward, the op, its line, module, ranges and first index") {
  const Tensor x = from_data(Values{1, 2, -3, 4, 0, -6}, {2, 3});
  AnomalyMode mode(On::record);
  int line = 0;
  {
    const ModuleScope module("layers.1");
    const Tensor y = x * 2;
    line = __LINE__ + 1;
    const Tensor z = log(y);
    const Tensor after = z + 1;  // not finite either, but not the first
  }
  REQUIRE(mode.first().has_value());
  const Anomaly& a = *mode.first();
  CHECK(a.op == "log");
  CHECK(a.phase == Phase::forward);
  CHECK(a.module == "layers.1");
  CHECK(line_of(a) == line);
  CHECK(a.result.nan == 2);
  CHECK(a.result.negative_inf == 1);
  CHECK(a.result.first == 2);
  REQUIRE(a.inputs.size() == 1);
  CHECK(a.inputs[0].range.min == -12);
  CHECK(a.inputs[0].range.max == 8);
  CHECK(a.inputs[0].range.non_finite() == 0);
  check_message(a.to_string(), {"log (forward)", "anomaly_test.cpp:" + std::to_string(line), "layers.1", "[0, 2]",
                                "[2, 3] f32", "-12 to 8", "2 NaN", "1 -Inf"});
}

TEST_CASE("anomaly: a step's parameter and its inputs") {
  const Tensor weights = ones({3});
  const Tensor gradients = from_data(Values{1, INFINITY, 1}, {3});
  const Tensor fine = ones({3});
  const Tensor none;
  AnomalyMode mode(On::record);
  dispatch(OpId::sgd_step_, {&fine, &fine, &none, &none, &none, &weights, &gradients, &none, &none, &none},
           SgdAttrs{{.lr = 0.5}, false, {}}, SourceLocation::current());
  REQUIRE(mode.first().has_value());
  CHECK(mode.first()->op == "sgd_step_");
  CHECK(mode.first()->parameter == 1);
  CHECK(mode.first()->result.negative_inf == 1);
  REQUIRE(mode.first()->inputs.size() == 2);
  CHECK(mode.first()->inputs[1].range.positive_inf == 1);
  check_message(mode.first()->to_string(), {"sgd_step_", "parameter 1 of the call", "1 Inf"});
}

TEST_CASE("anomaly: backward names the op whose gradient it was, at the forward's line") {
  const Tensor x = leaf({0, 4});
  Tensor y;
  int line = 0;
  {
    const ModuleScope module("head");
    line = __LINE__ + 1;
    y = sqrt(x);  // its derivative at 0 is infinite
  }
  AnomalyMode mode(On::record);
  y.sum().backward();
  REQUIRE(mode.first().has_value());
  const Anomaly& a = *mode.first();
  CHECK(a.phase == Phase::backward);
  CHECK(a.backward_of == "sqrt");
  CHECK(a.op == "div");
  CHECK(a.module == "head");
  CHECK(line_of(a) == line);
  CHECK(a.result.positive_inf == 1);
  CHECK(a.result.first == 0);
  check_message(a.to_string(), {"backward of sqrt", "div", "[0]"});
}

TEST_CASE("anomaly: raises by default, and what follows is clean") {
  const Tensor x = leaf({0, 4});
  {
    const AnomalyMode mode;
    check_message(message_of([&] { log(x); }), {"anomaly", "log", "anomaly_test.cpp", "1 -Inf"});
    CHECK(mode.first().has_value());
  }
  CHECK(chain().observe == nullptr);
  const Tensor y = sqrt(x).sum();
  {
    const AnomalyMode mode;
    check_message(message_of([&] { y.backward(); }), {"anomaly", "backward of sqrt"});
  }
  CHECK(grad_enabled());
  CHECK(!x.grad().defined());
  CHECK(log(x).requires_grad());  // nobody looks any more
}

TEST_CASE("anomaly: an f16 overflow, and nothing where all is finite") {
  AnomalyMode mode(On::record);
  const Tensor x = full({4}, 300, {.dtype = DType::f16});
  const Tensor fine = x * 2;
  CHECK(!mode.first());
  const Tensor over = square(x);
  REQUIRE(mode.first().has_value());
  CHECK(mode.first()->op == "square");
  CHECK(mode.first()->result.positive_inf == 4);
  CHECK(mode.first()->result.dtype == DType::f16);
}

TEST_CASE("anomaly: masks of -Inf are accepted, Inf or NaN computed from them is not") {
  AnomalyMode mode(On::record);
  const Tensor scores = from_data(Values{1, 2, 3, 4}, {2, 2});
  const Tensor allowed = tril(ones({2, 2}, {.dtype = DType::bool_}));
  const Tensor masked = where(allowed, scores, -INFINITY);
  const Tensor added = scores + full({2, 2}, -INFINITY);
  const Tensor p = softmax(masked, -1);
  CHECK(!mode.first());
  const Tensor bad = masked - masked;  // -Inf + Inf
  REQUIRE(mode.first().has_value());
  CHECK(mode.first()->op == "sub");
  check_message(mode.first()->to_string(), {"not finite before"});
}

TEST_CASE("anomaly: a value that came in broken is told apart") {
  AnomalyMode mode(On::record);
  const Tensor x = from_data(Values{1, NAN}, {2});
  const Tensor y = x * 2;
  REQUIRE(mode.first().has_value());
  CHECK(mode.first()->op == "mul");
  check_message(mode.first()->to_string(), {"input 0", "1 NaN", "not finite before"});
}

TEST_CASE("anomaly: in-place ops, strided and empty tensors") {
  AnomalyMode mode(On::record);
  const Tensor e = empty({0, 3}) * 2;
  const Tensor x = from_data(Values{1, 2, 3, 4}, {2, 2});
  const Tensor t = x.transpose(0, 1) * 1;
  CHECK(!mode.first());
  x.mul_(INFINITY);
  REQUIRE(mode.first().has_value());
  CHECK(mode.first()->op == "mul_");
  const ValueRange r = value_range(from_data(Values{5, -INFINITY, 7, 8}, {2, 2}).transpose(0, 1));
  CHECK(r.first == 2);  // in the order of the transposed tensor
  CHECK(r.min == 5);
  CHECK(r.max == 8);
}
