#include "flaws.h"

#include <gradual/autograd/function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace gradual::precision_bench {
namespace {

constexpr std::string_view kFlaws[] = {
    "none",       "variance",        "raw exponential",  "large square",   "small square",     "small divisor",
    "gain",       "large parameter", "product of gates", "running sum",    "root of distance", "mask",
    "wrong sign", "lost gradient",   "written NaN",      "log of negative"};
static_assert(std::size(kFlaws) == static_cast<std::size_t>(Flaw::count_));

// All dims but the first.
Shape of_sample(const Tensor& x) {
  Shape dims;
  for (int i = 1; i < x.dim(); ++i) dims.push_back(i);
  return dims;
}

// A module that computes a function of its input, its strength, and whether it is mended.
class Planted : public nn::Module {
 public:
  using Compute = Tensor (*)(const Tensor& h, double strength, bool mended);
  Planted(Compute compute, double strength, bool mended) : compute_(compute), strength_(strength), mended_(mended) {}
  Tensor forward(const Tensor& h) override { return compute_(h, strength_, mended_); }

 private:
  Compute compute_;
  double strength_;
  bool mended_;
};

// A normalisation whose variance is E[x^2] - E[x]^2.
Tensor variance(const Tensor& h, double offset, bool mended) {
  const Shape dims = of_sample(h);
  const Tensor x = h + offset;
  const Tensor centre = mean(x, dims, true);
  const Tensor spread = mended ? mean(square(x - centre), dims, true) : mean(square(x), dims, true) - square(centre);
  return (x - centre) / sqrt(spread + 1e-4);
}

// Softmax without the largest number subtracted.
Tensor raw_exponential(const Tensor& h, double strength, bool mended) {
  const Tensor x = tanh(h) * strength;
  if (mended) return h + softmax(flatten(x, 1), 1).reshape(h.sizes());
  const Tensor e = exp(x);
  return h + e / sum(e, of_sample(h), true);
}

// A root mean square of large numbers.
Tensor large_square(const Tensor& h, double strength, bool mended) {
  const Tensor x = (h + 0.05) * (mended ? 1 : strength);
  return x / sqrt(mean(square(x), of_sample(h), true));
}

// A root mean square of small numbers, without an eps.
Tensor small_square(const Tensor& h, double strength, bool mended) {
  const Tensor x = (h + 0.05) * (mended ? 1 : strength);
  return x / sqrt(mean(square(x), of_sample(h), true));
}

// A division by the largest of numbers that all became 0.
Tensor small_divisor(const Tensor& h, double strength, bool mended) {
  const Tensor x = (abs(h) + 0.05) * (mended ? 1 : strength);
  return x / amax(x, of_sample(h), true);
}

// A factor that is taken back later.
Tensor gain(const Tensor& h, double strength, bool mended) {
  if (mended) return h;
  const Tensor x = h * strength;
  return x * (1 / strength);
}

// The mean log of gates, as the log of their product.
Tensor product_of_gates(const Tensor& h, double strength, bool mended) {
  const Tensor x = flatten(h, 1);
  const std::int64_t count = std::min<std::int64_t>(x.size(1), static_cast<std::int64_t>(strength));
  const Tensor gates = sigmoid(narrow(x, 1, 0, count));
  if (mended) {
    const Tensor logs = mean(log(gates), {1}, true);
    return (x + logs).reshape(h.sizes());
  }
  Tensor product = narrow(gates, 1, 0, 1);
  for (std::int64_t i = 1; i < count; ++i) product = product * narrow(gates, 1, i, 1);
  return (x + log(product) / static_cast<double>(count)).reshape(h.sizes());
}

// A running sum that starts large; its differences are the numbers that were added.
Tensor running_sum(const Tensor& h, double start, bool mended) {
  constexpr std::int64_t kParts = 8;
  const Tensor x = flatten(h, 1);
  Tensor total = narrow(x, 1, 0, x.size(1) / kParts) * 0 + (mended ? 0 : start);
  std::vector<Tensor> added;
  for (const Tensor& part : split(x, x.size(1) / kParts, 1)) {
    const Tensor next = total + part;
    added.push_back(next - total);
    total = next;
  }
  return cat(added, 1).reshape(h.sizes());
}

// A distance whose squares become 0: the gradient of the root divides by it.
Tensor root_of_distance(const Tensor& h, double strength, bool mended) {
  const Tensor x = (h + 0.05) * (mended ? 1 : strength);
  const Tensor distance = sqrt(sum(square(x), of_sample(h), true));
  return h + distance * (0.1 / (mended ? 1 : strength));
}

// Attention over eight parts with a finite mask that a narrow format does not hold; the last query may attend to none.
Tensor mask(const Tensor& h, double strength, bool mended) {
  constexpr std::int64_t kParts = 8;
  const Tensor x = flatten(h, 1).reshape({h.size(0), kParts, -1});
  Tensor allowed = tril(ones({kParts, kParts}), 0);
  allowed.narrow(0, kParts - 1, 1).fill_(0);
  const Tensor hidden = (1 - allowed.to(x.dtype())) * -(mended ? 1e4 : strength);
  const Tensor scores = matmul(x, x.transpose(1, 2)) / std::sqrt(static_cast<double>(x.size(2)));
  const Tensor weights = softmax(scores + hidden, 2);
  return h + matmul(weights, x).reshape(h.sizes());
}

// Computes its input, and a wrong gradient.
struct ScaledGradient : Function {
  explicit ScaledGradient(double by) : factor(by) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override { return {inputs[0].clone()}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return {grads[0] * factor}; }
  std::string name() const override { return "my_identity"; }
  double factor;
};
Tensor wrong_sign(const Tensor& h, double, bool mended) {
  return apply(std::make_shared<ScaledGradient>(mended ? 1 : -1), {h})[0];
}
Tensor lost_gradient(const Tensor& h, double, bool mended) {
  return apply(std::make_shared<ScaledGradient>(mended ? 1 : 0), {h})[0];
}

// A kernel that leaves one number unwritten.
struct Unwritten : Function {
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    const Tensor y = inputs[0].clone();
    y.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
    return {y};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return {grads[0]}; }
  std::string name() const override { return "my_kernel"; }
};
Tensor written_nan(const Tensor& h, double, bool mended) {
  return mended ? h : apply(std::make_shared<Unwritten>(), {h})[0];
}

// A log of numbers that may be 0, in any format.
Tensor log_of_negative(const Tensor& h, double strength, bool mended) {
  return h + log(mended ? abs(h) + 1 : relu(h - strength)) * 0.01;
}

// A parameter beyond the largest number of f16.
struct LargeParameter : nn::Module {
  LargeParameter(double size, bool mended)
      : value(mended ? 1 : size), gain(register_parameter("gain", full({1}, value))) {}
  Tensor forward(const Tensor& h) override { return h * gain / value; }
  double value;
  Tensor& gain;
};

Planted::Compute function_of(Flaw flaw) {
  switch (flaw) {
    case Flaw::variance: return variance;
    case Flaw::raw_exponential: return raw_exponential;
    case Flaw::large_square: return large_square;
    case Flaw::small_square: return small_square;
    case Flaw::small_divisor: return small_divisor;
    case Flaw::gain: return gain;
    case Flaw::product_of_gates: return product_of_gates;
    case Flaw::running_sum: return running_sum;
    case Flaw::root_of_distance: return root_of_distance;
    case Flaw::mask: return mask;
    case Flaw::wrong_sign: return wrong_sign;
    case Flaw::lost_gradient: return lost_gradient;
    case Flaw::written_nan: return written_nan;
    case Flaw::log_of_negative: return log_of_negative;
    default: return nullptr;
  }
}

}  // namespace

std::string_view to_string(Flaw flaw) { return kFlaws[static_cast<int>(flaw)]; }

std::shared_ptr<nn::Module> make_flaw(const Model& model) {
  if (model.flaw == Flaw::none) return nullptr;
  if (model.flaw == Flaw::large_parameter) return std::make_shared<LargeParameter>(model.strength, model.mended);
  return std::make_shared<Planted>(function_of(model.flaw), model.strength, model.mended);
}

}  // namespace gradual::precision_bench
