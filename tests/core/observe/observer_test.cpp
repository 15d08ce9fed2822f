// Observers: what they see, what they count, and the tracer and profile that are made of them.
#include "../../autograd/helpers.h"

#include <algorithm>

using namespace gradual;
using namespace gradual::testing;

namespace {

struct Recorder : Observer {
  bool counts = false;
  std::vector<std::string> ops;
  std::vector<Phase> phases;
  CastCounts total;
  double seconds = 0;
  int open = 0;
  bool wants_counts() const override { return counts; }
  void before(const OpCall&, const CallRecord&) override { ++open; }
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override {
    --open;
    ops.emplace_back(to_string(call.op));
    phases.push_back(record.context.phase);
    total += record.counts;
    seconds += record.seconds;
    if (out[0].defined() && out[0].numel() > 0 && out[0].is_floating()) (out[0] * 2).sum();  // masked
  }
};

struct Square : Function {
  std::vector<Tensor> forward(const std::vector<Tensor>& in) override {
    save_for_backward({in[0]});
    return {in[0] * in[0]};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override { return {g[0] * saved()[0] * 2}; }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("observer: none installed, nothing observed, scopes nest and go on exceptions") {
  Recorder outer;
  Recorder inner;
  CHECK(chain().observe == nullptr);
  const Tensor x = numbers({1, 2});
  const Tensor before = x + 1;
  {
    const ObserverScope a(outer);
    const Tensor y = x + 1;
    {
      const ObserverScope b(inner);
      const Tensor z = x * 2;
    }
    const Tensor w = x - 1;
    CHECK_THROWS_AS(
        [&] {
          const ObserverScope b(inner);
          throw_error("out");
        }(),
        Error);
    const Tensor v = exp(x);
  }
  const Tensor after = x + 1;
  CHECK(chain().observe == nullptr);
  CHECK(outer.ops == Names{"add", "mul", "sub", "exp"});
  CHECK(inner.ops == Names{"mul"});
  CHECK(outer.open == 0);
}

TEST_CASE("observer: backward kernels, casts and the parts of composite ops") {
  Recorder seen;
  const Tensor x = leaf({1, 2}, {2}, DType::f16);
  const Tensor w = leaf({3, 4}, {2}, DType::f32);
  const ObserverScope scope(seen);
  const Tensor loss = mse_loss(x, w);
  CHECK(seen.ops == Names{"cast", "sub", "square", "mean"});
  CHECK(seen.phases == std::vector<Phase>(4, Phase::forward));
  seen.ops.clear();
  seen.phases.clear();
  loss.backward();
  REQUIRE(!seen.ops.empty());
  for (const Phase p : seen.phases) CHECK(p == Phase::backward);
  CHECK(seen.ops.back() == "cast");  // x's gradient goes back to f16
}

TEST_CASE("observer: counts roundings only if it wants counts") {
  const Tensor x = from_data(Values{1, 1e-9, 1e6, 0}, {4});
  Recorder plain;
  Recorder counting;
  counting.counts = true;
  CastCounts around;
  {
    const CountScope counts(&around);
    const ObserverScope a(plain);
    const Tensor h = x.to(DType::f16);
    CHECK(plain.total.elements == 0);
    CHECK(around.underflow == 1);
    const ObserverScope b(counting);
    const Tensor g = x.to(DType::f16);
  }
  CHECK(counting.total.elements == 4);
  CHECK(counting.total.underflow == 1);
  CHECK(counting.total.overflow == 1);
  CHECK(counting.total.zeros == 1);
  CHECK(around.underflow == 2);  // a scope around the observers loses nothing
}

TEST_CASE("observer: a user function and the ops inside it, time is each one's own") {
  Recorder seen;
  seen.counts = true;
  const Tensor x = leaf(Values(1 << 16, 1.0));
  const ObserverScope scope(seen);
  const Tensor y = apply(std::make_shared<Square>(), {x})[0];
  CHECK(seen.ops == Names{"mul", "custom"});
  seen.ops.clear();
  y.backward(ones_like(y));
  CHECK(seen.ops == Names{"mul", "mul"});
  CHECK(seen.open == 0);
}

TEST_CASE("observer: an exception from one leaves through the op") {
  struct Thrower : Observer {
    void after(const OpCall&, const Outputs&, const CallRecord&) override { throw_error("seen enough"); }
  } thrower;
  const Tensor x = leaf({1});
  {
    const ObserverScope scope(thrower);
    CHECK_THROWS_WITH(x * 2, "seen enough");
  }
  CHECK(chain().observe == nullptr);
  CHECK(grad_enabled());
  CHECK(values(x * 2) == Values{2});
}

TEST_CASE("observer: a snapshot from another time brings no observers back") {
  const Tensor x = leaf({2});
  Tensor y;
  {
    Recorder gone;
    const ObserverScope scope(gone);
    y = apply(std::make_shared<Square>(), {x})[0];
  }
  Recorder now;
  const ObserverScope scope(now);
  y.sum().backward();
  CHECK(std::count(now.ops.begin(), now.ops.end(), "mul") == 2);
}

TEST_CASE("tracer: phase, op, shapes, dtypes, module, line, cause and time") {
  std::vector<std::string> lines;
  Tracer tracer([&](const std::string& line) { lines.push_back(line); }, true);
  const Tensor x = leaf({1, 1e-9, 3, 4}, {2, 2}, DType::f32);
  const Tensor w = leaf({1, 2, 3, 4}, {2, 2}, DType::f32);
  const ObserverScope scope(tracer);
  Tensor y;
  {
    const ModuleScope module("head");
    const amp::Autocast autocast({.dtype = DType::f16});
    y = matmul(x, w);
  }
  const Tensor z = y * 2;
  REQUIRE(lines.size() == 4);
  check_message(lines[0], {"forward", "cast", "[2, 2] f32 -> [2, 2] f16", "head", "observer_test.cpp:", "# amp",
                           "1 underflow", "s  #"});
  check_message(lines[2], {"matmul", "[2, 2] f16 x [2, 2] f16 -> [2, 2] f16", "head"});
  CHECK(!contains(lines[2], "#"));
  check_message(lines[3], {"mul", "[2, 2] f16 x 2 -> [2, 2] f16", " - "});
  const Tensor loss = z.sum();
  lines.clear();
  loss.backward();
  bool found = false;
  for (const std::string& line : lines) {
    check_message(line, {"backward"});
    found = found || contains(line, "(of cast)") || contains(line, "matmul ");
  }
  CHECK(found);
}

TEST_CASE("tracer: a step's call and a line for each of its parameters") {
  std::vector<std::string> lines;
  Tracer tracer([&](const std::string& line) { lines.push_back(line); }, true);
  const Tensor half = from_data(Values{1e-7, 1}, {2}, {.dtype = DType::f16});
  const Tensor rate = ones({2}, {.dtype = DType::f16});
  const Tensor wide = ones({3}), none;
  const ObserverScope scope(tracer);
  dispatch(OpId::sgd_step_, {&half, &rate, &none, &none, &none, &wide, &wide, &none, &none, &none},
           SgdAttrs{{.lr = 0x1p-30}, false, {}}, SourceLocation::current());
  REQUIRE(lines.size() == 3);
  check_message(lines[0], {"sgd_step_", "2 parameters", "observer_test.cpp:", "s  !", "1 subnormal"});
  check_message(lines[1], {"[2] f16 x [2] f16 x none x none x none -> [2] f16", "1 subnormal"});
  check_message(lines[2], {"[3] f32 x [3] f32 x none x none x none -> [3] f32"});
  CHECK_FALSE(contains(lines[2], "subnormal"));
}

TEST_CASE("profile: sums calls, bytes and FLOPs by op and by module") {
  Profile profile;
  const Tensor x = ones({4, 8});
  const Tensor w = ones({8, 16});
  {
    const ObserverScope scope(profile);
    const ModuleScope module("fc");
    for (int i = 0; i < 3; ++i) matmul(x, w);
    const ModuleScope other("act");
    relu(x);
  }
  const auto ops = profile.by_op();
  REQUIRE(ops.size() == 2);
  const auto& mm = ops[0].name == "matmul" ? ops[0] : ops[1];
  CHECK(mm.calls == 3);
  CHECK(mm.phase == "forward");
  CHECK(mm.flops == 3 * 2.0 * 4 * 16 * 8);
  CHECK(mm.bytes == 3 * 4.0 * (4 * 8 + 8 * 16 + 4 * 16));
  CHECK(mm.seconds > 0);
  const auto modules = profile.by_module();
  REQUIRE(modules.size() == 2);
  CHECK((modules[0].name == "fc" || modules[1].name == "fc"));
  const auto total = profile.total();
  CHECK(total.calls == 4);
  CHECK(total.seconds == doctest::Approx(ops[0].seconds + ops[1].seconds));
  CHECK(ops[0].seconds >= ops[1].seconds);
  const std::string table = profile.table();
  check_message(table, {"matmul", "relu", "fc", "act", "total", "GFLOP/s", "%"});
}

TEST_CASE("profile and tracer call a user's function by its name") {
  struct Unnamed : Function {
    std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override { return {inputs[0] * 2}; }
    std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return {grads[0] * 2}; }
  };
  struct Twice : Unnamed {
    std::string name() const override { return "twice"; }
  };
  Profile profile;
  std::string trace;
  Tracer tracer([&](const std::string& line) { trace += line + '\n'; });
  {
    const ObserverScope profiling(profile);
    const ObserverScope tracing(tracer);
    for (int i = 0; i < 2; ++i) apply(std::make_shared<Twice>(), {ones({3})});
    apply(std::make_shared<Unnamed>(), {ones({3})});
  }
  const auto calls = [&](const std::string& name) {
    std::int64_t n = 0;
    for (const auto& e : profile.by_op()) n += e.name == name ? e.calls : 0;
    return n;
  };
  CHECK(calls("twice") == 2);
  CHECK(calls("custom") == 1);
  CHECK(calls("mul") == 3);
  check_message(trace, {"forward   twice ", "forward   custom "});
}
