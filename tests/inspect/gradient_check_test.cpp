// Gradients that are not those of the loss, and functions that have them.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/gradient_check.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace gradual;
using inspect::SlopeJudgement;

namespace {

struct Given : Function {
  std::string called;
  std::function<Tensor(const Tensor&)> value;
  std::function<Tensor(const Tensor&, const Tensor&)> gradient;
  Given(std::string named, std::function<Tensor(const Tensor&)> f,
        std::function<Tensor(const Tensor&, const Tensor&)> g)
      : called(std::move(named)), value(std::move(f)), gradient(std::move(g)) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& x) override {
    save_for_backward({x[0]});
    return {value(x[0])};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& dy) override { return {gradient(saved()[0], dy[0])}; }
  std::string name() const override { return called; }
};

Tensor squared(const Tensor& x) { return x * x; }
Tensor of_square(const Tensor& x, const Tensor& dy) { return 2 * x * dy; }

// Linear, a right function, the function under test, batch norm, dropout, linear.
struct Net : nn::Module {
  std::function<std::shared_ptr<Function>()> tested;
  nn::Linear& in = register_module("in", nn::Linear(8, 16));
  nn::BatchNorm1d& norm = register_module("norm", nn::BatchNorm1d(16));
  nn::Dropout& dropout = register_module("dropout", nn::Dropout(0.2));
  nn::Linear& out = register_module("out", nn::Linear(16, 4));
  explicit Net(std::function<std::shared_ptr<Function>()> f) : tested(std::move(f)) {}
  Tensor forward(const Tensor& x) override {
    const Tensor a = apply(std::make_shared<Given>("right", squared, of_square), {in(x)})[0];
    const Tensor b = apply(tested(), {a})[0];
    return out(dropout(norm(relu(b))));
  }
};

inspect::GradientCheck checked(const std::function<Tensor(const Tensor&)>& f,
                               const std::function<Tensor(const Tensor&, const Tensor&)>& g, DType dtype) {
  manual_seed(1);
  Net net([&] { return std::make_shared<Given>("tested", f, g); });
  net.to(dtype);
  const Tensor x = randn({32, 8}).to(dtype);
  const Tensor y = randint(0, 4, {32});
  const std::vector<double> weights = net.in.weight.to_vector<double>();
  const std::vector<double> means = net.norm.running_mean.to_vector<double>();
  const RandomKey key = default_generator().state();
  const auto check = inspect::check_gradients(net, [&] { return cross_entropy(net(x), y); });
  CHECK(net.in.weight.to_vector<double>() == weights);
  CHECK(net.norm.running_mean.to_vector<double>() == means);
  CHECK(default_generator().state() == key);
  MESSAGE(to_string(check));
  return check;
}

}  // namespace

TEST_CASE("gradients of a model are right, in f64 and in f32, with norms, dropout and a user's function") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const auto check = checked(squared, of_square, dtype);
    CHECK_FALSE(check.any_wrong());
    int right = 0;
    for (const auto& s : check.parameters) right += s.judgement == SlopeJudgement::right;
    CHECK(right >= 3);
  }
}

TEST_CASE("a backward with a wrong sign, a wrong factor or of another function is named") {
  const std::function<Tensor(const Tensor&, const Tensor&)> wrong[] = {
      [](const Tensor& x, const Tensor& dy) { return -2 * x * dy; },
      [](const Tensor& x, const Tensor& dy) { return 8 * x * dy; },
      [](const Tensor& x, const Tensor& dy) { return flip(x, {1}) * flip(dy, {1}); }};
  for (const DType dtype : {DType::f64, DType::f32})
    for (const auto& g : wrong) {
      const auto check = checked(squared, g, dtype);
      REQUIRE(check.any_wrong());
      CHECK(check.wrong_parameter()->name.starts_with("in."));
      REQUIRE(check.wrong_function());
      CHECK(check.wrong_function()->name == "tested");
      CHECK(check.functions[0].judgement == SlopeJudgement::right);
    }
}

TEST_CASE("a backward of zeros is wrong where the loss has a slope, and right where it has none") {
  const auto zeros = [](const Tensor&, const Tensor& dy) { return dy * 0; };
  for (const DType dtype : {DType::f64, DType::f32}) {
    const auto lost = checked(squared, zeros, dtype);
    REQUIRE(lost.any_wrong());
    CHECK(lost.wrong_parameter()->predicted == 0);
    REQUIRE(lost.wrong_function());
    CHECK(lost.wrong_function()->name == "tested");
  }
  const auto steps = [](const Tensor& x) { return gt(x, 0.5).to(x.dtype()); };
  CHECK_FALSE(checked(steps, zeros, DType::f64).any_wrong());
  const auto dead = [](const Tensor& x) { return relu(x - 1e6); };
  CHECK_FALSE(checked(dead, zeros, DType::f64).any_wrong());
}

TEST_CASE("a gradient of zeros at a kink is not wrong: a ReLU of zero weights and biases") {
  struct Kink : nn::Module {
    nn::Linear& in = register_module("in", nn::Linear(8, 16));
    nn::Linear& out = register_module("out", nn::Linear(16, 4));
    Kink() {
      const NoGrad none;
      in.weight.fill_(0);
      in.bias.fill_(0);
    }
    Tensor forward(const Tensor& x) override { return out(relu(in(x))); }
  };
  for (const DType dtype : {DType::f64, DType::f32})
    for (int seed = 0; seed < 4; ++seed) {
      manual_seed(static_cast<std::uint64_t>(seed));
      Kink net;
      net.to(dtype);
      const Tensor x = randn({32, 8}).to(dtype);
      const Tensor y = randint(0, 4, {32});
      const auto check = inspect::check_gradients(net, [&] { return cross_entropy(net(x), y); });
      CHECK_MESSAGE(!check.any_wrong(), to_string(check));
    }
}

TEST_CASE("a straight-through estimator is not wrong: its function has no slope") {
  const auto check = checked([](const Tensor& x) { return gt(x, 0.5).to(x.dtype()); },
                             [](const Tensor&, const Tensor& dy) { return dy * 1; }, DType::f64);
  CHECK_FALSE(check.any_wrong());
}
