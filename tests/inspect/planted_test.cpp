// Planted failures: small programs and recipes with one known cause each, which the verdict and the first finding must
// name, and controls that are healthy or fail for other reasons than precision. Cures are tried.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>

#include <cmath>
#include <functional>
#include <limits>

using namespace gradual;

namespace {

// digits, with the first `bad` inputs NaN.
data::Split digits(std::int64_t bad = 0) {
  data::Split split = data::split(data::digits(), 1437, 0);
  if (bad) {
    split.train.inputs = split.train.inputs.clone();
    split.train.inputs.narrow(0, 0, bad).fill_(std::numeric_limits<double>::quiet_NaN());
  }
  return split;
}
std::shared_ptr<nn::Module> mlp() { return lab::make_mlp(64, 10); }

amp::Recipe named(const std::string& base, const std::string& name, const std::function<void(amp::Recipe&)>& change) {
  amp::Recipe r = amp::recipe(base);
  r.name = name;
  change(r);
  return r;
}

struct Planted {
  amp::Recipe recipe;
  lab::MakeModel model = mlp;
  lab::Options options = {};
  std::int64_t bad_inputs = 0;
};

lab::Result result_of(const Planted& p) {
  lab::Options o = p.options;
  o.cure = true;
  const auto results = lab::compare(p.model, digits(p.bad_inputs), {amp::recipe("fp32"), p.recipe}, "", o);
  const lab::Result& r = results[1];
  MESSAGE(r.recipe << ": " << r.verdict << (r.findings.empty() ? std::string() : ": " + to_string(r.findings[0])));
  return r;
}

// The first finding; its cure, where there is one, comes within 0.5 points of fp32 or of what the interval allows.
lab::Finding first_finding(const lab::Result& r, const std::string& verdict) {
  CHECK(r.verdict.substr(0, verdict.size()) == verdict);
  REQUIRE(!r.findings.empty());
  if (!r.findings[0].cure.empty()) {
    REQUIRE(r.findings[0].tried);
    CHECK(r.findings[0].tried->verdict.substr(0, 7) == "matches");
  }
  return r.findings[0];
}

// y = f(x) between two layers.
struct Between : nn::Module {
  std::function<Tensor(const Tensor&)> f;
  nn::Linear& in = register_module("in", nn::Linear(64, 64));
  nn::Linear& out = register_module("out", nn::Linear(64, 10));
  explicit Between(std::function<Tensor(const Tensor&)> between) : f(std::move(between)) {}
  Tensor forward(const Tensor& x) override { return out(f(in(x.reshape({x.size(0), 64})))); }
};
lab::MakeModel between(std::function<Tensor(const Tensor&)> f) {
  return [f] { return std::make_shared<Between>(f); };
}

struct WrongGradient : Function {
  std::vector<Tensor> forward(const std::vector<Tensor>& x) override { return {relu(x[0])}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override {
    return {g[0] * std::numeric_limits<double>::quiet_NaN()};
  }
  std::string name() const override { return "wrong"; }
};

}  // namespace

TEST_CASE("planted: Adam's eps is 0 in f16") {
  const auto f = first_finding(result_of({amp::recipe("fp16-pure")}), "diverged");
  CHECK(f.cause == "adam-eps");
  CHECK(f.op == "adam_step_");
  CHECK(f.site.ends_with("weight"));
  CHECK(f.step == 0);
  CHECK(f.phase == "optimizer");
}

TEST_CASE("planted: a static loss scale that is too high") {
  const auto f = first_finding(result_of({amp::recipe("fp16-static:1048576")}), "mostly skipped");
  CHECK(f.cause == "scale-too-high");
  CHECK(f.phase == "backward");
}

TEST_CASE("planted: a loss scale that is too low") {
  const auto f = first_finding(result_of({amp::recipe("fp16-static:0.000001")}), "no learning");
  CHECK(f.cause == "gradient-underflow");
  CHECK(f.phase == "backward");
}

TEST_CASE("planted: a format without room for the errors") {
  const auto f = first_finding(result_of({amp::recipe("e3m2")}), "no learning");
  CHECK(f.cause == "gradient-underflow");
  CHECK(f.site == "5");  // the last layer
}

TEST_CASE("planted: updates that vanish in bf16") {
  lab::Options o{.lr = 2e-5};
  o.epochs = 30;
  const auto f = first_finding(result_of({amp::recipe("bf16-pure"), mlp, o}), "no learning");
  CHECK(f.cause == "update-vanishes");
  CHECK(f.phase == "optimizer");
  CHECK(f.op == "adam_step_");
}

TEST_CASE("planted: an activation that overflows") {
  const auto f = first_finding(
      result_of({amp::recipe("amp-fp16"), between([](const Tensor& x) { return relu(x) * 1e5 * 1e-5; })}), "diverged");
  CHECK(f.cause == "activation-overflow");
  CHECK(f.phase == "forward");
  CHECK(f.op == "mul");
}

TEST_CASE("planted: a sum of squares in f16") {
  const auto f =
      first_finding(result_of({named("fp16-master", "sum", [](amp::Recipe&) {}), between([](const Tensor& x) {
                                 const Tensor large = x * 300;
                                 return relu(large / sqrt(sum(square(large), 1, true) + 1e-3));
                               })}),
                    "no learning");
  CHECK(f.cause == "reduction-overflow");
  CHECK(f.phase == "forward");
}

TEST_CASE("planted: exp in f16") {
  const auto f = first_finding(result_of({named("fp16-master", "exp", [](amp::Recipe&) {}),
                                          between([](const Tensor& x) { return log(exp(x * 8) + 1) / 8; })}),
                               "diverged");
  CHECK(f.cause == "reduction-overflow");
  CHECK(f.op == "exp");
}

TEST_CASE("planted: an operand's format clips") {
  const amp::Recipe clipped{.name = "clip",
                            .quantization = amp::Quantization{.forward_x = Quantizer{.format = format("e2m1fn")}}};
  const auto f = first_finding(result_of({clipped, between([](const Tensor& x) { return relu(x) * 64; })}), "");
  CHECK(f.cause == "clipping");
  CHECK(f.site == "out");
  CHECK(f.phase == "forward");
}

TEST_CASE("planted: a format without Inf that overflows to NaN") {
  const auto f = first_finding(
      result_of({amp::recipe("e4m3"), between([](const Tensor& x) { return relu(x) * 1000; })}), "diverged");
  CHECK(f.cause == "activation-overflow");
  CHECK(f.site == "out");
}

TEST_CASE("control: healthy recipes match fp32 and have no findings") {
  for (const char* recipe : {"amp-fp16", "amp-bf16", "fp16-master", "bf16-master", "fp8-current"}) {
    const lab::Result r = result_of({amp::recipe(recipe)});
    CHECK(r.verdict.starts_with("matches"));
    CHECK(r.findings.empty());
  }
}

TEST_CASE("control: NaN in the data is not precision") {
  const auto f = first_finding(result_of({amp::recipe("amp-bf16"), mlp, {}, 200}), "not precision");
  CHECK(!f.precision);
}

TEST_CASE("control: updates that vanish in f32 have no cure, and end no comparison") {
  lab::Options o{.lr = 1e-12};
  o.epochs = 1;
  const lab::Result r = result_of({amp::recipe("amp-bf16"), mlp, o});
  CHECK(r.verdict == "not precision: fp32 does the same");
  CHECK(r.findings.empty());
}

TEST_CASE("control: a learning rate that diverges in fp32 too is not precision") {
  lab::Options o{.lr = 1e30};
  o.optimizer = "sgd";
  CHECK(result_of({amp::recipe("amp-bf16"), mlp, o}).verdict == "not precision: fp32 does the same");
}

TEST_CASE("control: dead units are not precision") {
  const lab::Result r =
      result_of({amp::recipe("amp-fp16"), between([](const Tensor& x) { return relu(x - 1000) * 0; })});
  CHECK(r.verdict == "not precision: fp32 does the same");
  CHECK(r.findings.empty());
}

TEST_CASE("control: a wrong gradient of a user's function is not precision") {
  const auto wrong = between([](const Tensor& x) { return apply(std::make_shared<WrongGradient>(), {x})[0]; });
  const lab::Result r = result_of({amp::recipe("amp-bf16"), wrong});
  CHECK(r.verdict == "not precision: fp32 does the same");
  for (const lab::Finding& f : r.findings) CHECK(!f.precision);
}
