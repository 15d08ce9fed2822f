// An operation of your own: forward, backward, gradcheck, and how it behaves under autocast.
//
// The op is the log-cosh loss, log(cosh(d)) of the error d: quadratic near zero, |d| far away, so that outliers do not
// dominate. Composed of ops it overflows: cosh(d) exceeds f16 at d = 12 and f32 at d = 89. The Function below computes
// it without cosh, defines its gradient, tanh(d), and requests f32 under autocast. You learn to write a Function, to
// check its first and second derivatives, and what autocast does with it.
#include <gradual/autograd/gradcheck.h>
#include <gradual/gradual.h>

#include <cmath>

#include "example.h"

using namespace gradual;

namespace {

class LogCosh : public Function {
 public:
  std::string name() const override { return "log_cosh"; }  // on the tape, in errors

  // Runs with recording off. log(cosh(d)) = |d| + log(1 + exp(-2 |d|)) - log(2): no large exponential.
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    const Tensor& d = inputs[0];
    save_for_backward({d});
    seen_ = d.dtype();
    const Tensor magnitude = abs(d);
    return {magnitude + log1p(exp(-2 * magnitude)) - std::log(2.0)};
  }

  // Gets dL/dy, returns dL/dd. Written with public ops, so it can be differentiated again.
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return {grads[0] * tanh(saved()[0])}; }

  // Without this, forward would run under the surrounding autocast region, on any input dtype.
  std::optional<DType> amp_dtype() const override { return DType::f32; }

  DType seen() const { return seen_; }  // the dtype forward was given

 private:
  DType seen_ = DType::f64;
};

// A Function object is one call. The usual interface is a plain function that makes one and applies it.
Tensor log_cosh(const Tensor& d) { return apply(std::make_shared<LogCosh>(), {d})[0]; }

Tensor composed(const Tensor& d) { return log((exp(d) + exp(-d)) * 0.5); }

// The same with a wrong backward, which gradcheck finds.
class Wrong : public LogCosh {
 public:
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return {grads[0] * sin(saved()[0])}; }
};

void values() {
  std::printf("1. Values in f32\n%10s%18s%18s\n", "d", "composed", "log_cosh");
  const Tensor d = from_data(std::vector<double>{0, 0.5, 3, 50, 100}, {5}, example::on_device());
  const std::vector<double> a = composed(d).to_vector<double>();
  const std::vector<double> b = log_cosh(d).to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double at = d.to_vector<double>()[i];
    const double right = at + std::log1p(std::exp(-2 * at)) - std::log(2.0);
    std::printf("%10g%18.7g%18.7g\n", at, a[i], b[i]);
    worst = std::fmax(worst, std::fabs(b[i] - right) / (1 + right));
  }
  example::claim(std::isinf(a[4]) && worst < 1e-6, "composed it overflows at 100; the Function is right everywhere");
}

void gradients() {
  std::printf("\n2. Gradients against central differences, in f64\n");
  Generator generator(0);
  Tensor d = randn({3, 4}, example::on_device(DType::f64), generator) * 3;
  d.set_requires_grad();
  const auto good = [](const std::vector<Tensor>& in) { return std::vector<Tensor>{log_cosh(in[0])}; };
  const auto bad = [](const std::vector<Tensor>& in) { return apply(std::make_shared<Wrong>(), {in[0]}); };
  const autograd::GradcheckResult first = autograd::gradcheck(good, {d});
  const autograd::GradcheckResult second = autograd::gradgradcheck(good, {d});
  const autograd::GradcheckResult wrong = autograd::gradcheck(bad, {d});
  example::claim(first.ok, "gradcheck passes");
  example::claim(second.ok, "gradgradcheck passes: backward can be differentiated");
  example::claim(!wrong.ok, "gradcheck refuses a wrong backward (sin for tanh); it says:");
  std::printf("    %s\n", wrong.message.c_str());
}

void under_autocast() {
  std::printf("\n3. Under autocast to f16: x W^T in f16, then the loss\n");
  Tensor weight = full({1, 4}, 10, example::on_device());
  weight.set_requires_grad();
  const Tensor x = ones({2, 4}, example::on_device());
  const auto op = std::make_shared<LogCosh>();
  const amp::Autocast scope({.dtype = DType::f16, .device = example::device()});
  const Tensor d = linear(x, weight);  // 40: its cosh is 1.2e17
  const Tensor loss = apply(op, {d})[0].mean();
  loss.backward();
  std::printf("  d is %s, log_cosh was given %s, the loss is %s: %.6g\n", std::string(to_string(d.dtype())).c_str(),
              std::string(to_string(op->seen())).c_str(), std::string(to_string(loss.dtype())).c_str(), loss.item());
  std::printf("  gradient of the f32 weight: %s\n", to_string(weight.grad()).c_str());
  const amp::Autocast off({.device = example::device(), .enabled = false});
  const double half = composed(d.detach()).mean().item();
  std::printf("  composed in f16 it would be: %g\n", half);
  example::claim(d.dtype() == DType::f16 && op->seen() == DType::f32 && loss.dtype() == DType::f32,
                 "its f16 input was cast to f32, as amp_dtype() asks");
  example::claim(std::fabs(loss.item() - (40 - std::log(2.0))) < 1e-4 && weight.grad().dtype() == DType::f32 &&
                     weight.grad().sum().item() == 4,
                 "value and gradient are right");
  example::claim(std::isinf(half), "composed in f16 it overflows");
}

// Fits a line through points of which one in ten is an outlier: log_cosh finds y = 2 x + 1, mse does not.
void fit() {
  std::printf("\n4. In training: points on y = 2 x + 1, one in ten of them 20 too high\n");
  const Tensor x = linspace(-1, 1, 100, example::on_device()).reshape({100, 1});
  const Tensor tenth = (arange(0, 100).reshape({10, 10}) == arange(0, 100, 10).reshape({10, 1})).to(DType::f32);
  const Tensor y = 2 * x + 1 + 20 * tenth.reshape({100, 1}).to(example::device());
  double offsets[2] = {};
  for (const bool robust : {false, true}) {
    manual_seed(0);
    nn::Linear model(1, 1);
    model.to(example::device());
    optim::SGD sgd(model.parameters(), {.lr = 0.1});
    for (int step = 0; step < 500; ++step) {
      const Tensor d = model(x) - y;
      (robust ? log_cosh(d).mean() : d.square().mean()).backward();
      sgd.step();
      sgd.zero_grad();
    }
    offsets[robust] = std::fabs(model.bias.item() - 1);
    std::printf("  %-9s y = %.3f x + %.3f\n", robust ? "log_cosh" : "mse", model.weight.item(), model.bias.item());
  }
  example::claim(offsets[1] < 0.2 && offsets[0] > 1, "log_cosh finds the line; mse does not");
}

constexpr const char* kUsage =
    "An operation of your own: forward, backward, gradcheck, and how it behaves under autocast.\n"
    "  custom_op\n";

void body(example::Arguments& arguments) {
  arguments.done();
  values();
  gradients();
  under_autocast();
  fit();
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
