// Scaling FP8 Training to Trillion-Token LLMs (Fishman, Chmiel, Banner, Soudry 2024, arXiv 2409.12517): late in
// training the two weights of a SwiGLU channel align, its product becomes a square, and its outliers break FP8 with
// delayed scaling. Smooth-SwiGLU scales each channel of the product before it is rounded.
//
// A network learns a function that has such a square in it. Weight decay makes the two weights align.
#include <algorithm>
#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Smooth-SwiGLU 2024: aligned weights make outliers that FP8's delayed scale clips; scales by channel do not.\n"
    "  smooth_swiglu2024\n  options: --seeds N  --steps N\n";

constexpr std::int64_t kInputs = 32;
constexpr std::int64_t kHidden = 64;
constexpr std::int64_t kBatch = 64;

struct SwiGLU : nn::Module {
  nn::Linear& gate = register_module("gate", nn::Linear(kInputs, kHidden, {.bias = false}));
  nn::Linear& up = register_module("up", nn::Linear(kInputs, kHidden, {.bias = false}));
  nn::Linear& down = register_module("down", nn::Linear(kHidden, 4, {.bias = false}));
  Tensor product(const Tensor& x) { return up(x) * silu(gate(x)); }
  Tensor forward(const Tensor& x) override { return down(product(x)); }
};

// Normal numbers; in one sample of a thousand the first is nine times as large. The target is a SwiGLU of the first,
// and a network of all.
struct Task {
  Tensor first = randn({kInputs, 16}) / 5.7;
  Tensor second = randn({16, 4}) / 4.0;
  Tensor draw() const {
    const Tensor x = randn({kBatch, kInputs});
    const Tensor far = (rand({kBatch, 1}) < 1.0 / 1000).to(DType::f32);
    x.narrow(1, 0, 1).mul_(1.0 + 8.0 * far);
    return x;
  }
  Tensor target(const Tensor& x) const {
    const Tensor u = x.narrow(1, 0, 1);
    return matmul(tanh(matmul(x, first)), second) + u * silu(u);
  }
};

// Histories of 16 steps, because outliers are not as rare as in the paper. Gradients have a scale of their own amax: a
// delayed one clips those of outliers, which helps here and would hide what the products do.
amp::Recipe recipe(const std::string& name) {
  const bool powers = name == "fp8-current, 2^k";  // x's scale is a power of two, as those of channels are
  amp::Recipe r = amp::recipe(powers ? "fp8-current" : name);
  if (!r.quantization) return r;
  amp::Quantization& q = *r.quantization;
  if (powers)
    for (auto* x : {&q.forward_x, &q.wgrad_x}) (*x)->scaling = TensorScale{.power_of_two = true};
  for (auto* gradient : {&q.dgrad_dy, &q.wgrad_dy}) (*gradient)->scaling = TensorScale{};
  for (auto* operand : {&q.forward_x, &q.forward_w, &q.dgrad_w, &q.wgrad_x})
    if (auto* const delayed = std::get_if<DelayedScale>(&(*operand)->scaling)) delayed->history = 16;
  return r;
}

// The channel with the largest product.
struct Largest {
  double cosine = 0;   // between its two weights, its magnitude
  double outlier = 0;  // its largest magnitude over the median channel's
};

Largest largest_channel(SwiGLU& model, const Tensor& x) {
  const NoGrad off;
  const Tensor product = model.product(x);
  std::vector<std::pair<double, std::int64_t>> sizes;
  for (std::int64_t c = 0; c < kHidden; ++c) sizes.emplace_back(absmax(product.narrow(1, c, 1)), c);
  std::sort(sizes.begin(), sizes.end());
  const Tensor a = model.gate.weight.narrow(0, sizes.back().second, 1);
  const Tensor b = model.up.weight.narrow(0, sizes.back().second, 1);
  return {std::abs((a * b).sum().item()) / (norm(a).item() * norm(b).item()),
          sizes.back().first / sizes[kHidden / 2].first};
}

struct Outcome {
  double loss = 0;     // mean of the last half of the steps
  double usual = 0;    // their median
  Largest first = {};  // before the first step
  Largest last = {};   // after the last
};

Outcome trained(const std::string& name, std::uint64_t seed, long steps) {
  default_generator() = Generator(seed);
  const Task task;
  SwiGLU model;
  amp::RecipeRun run(recipe(name), model, optim::AdamWOptions{.lr = 3e-3, .weight_decay = 0.1}, {.seed = seed});
  const Tensor test = task.draw();
  Outcome out{.first = largest_channel(model, test)};
  std::vector<double> losses;
  for (long step = 0; step < steps; ++step) {
    const Tensor x = task.draw();
    const Tensor y = task.target(x);
    const double now = run.step([&] { return square(model(x) - y).mean(); }).loss.item();
    if (step < steps / 2) continue;
    losses.push_back(now);
    out.loss += now / static_cast<double>(steps - steps / 2);
  }
  std::sort(losses.begin(), losses.end());
  out.usual = losses[losses.size() / 2];
  out.last = largest_channel(model, test);
  return out;
}

void body(example::Arguments& arguments) {
  const long seeds = arguments.number("--seeds", 3);
  const long steps = arguments.number("--steps", 3000);
  arguments.done();
  std::printf("%-17s %17s %21s %17s\n", "largest channel:", "", "|cos| of its weights", "size over median");
  std::printf("%-17s %17s %21s %17s\n", "", "loss mean, median", "first, last", "first, last");
  std::map<std::string, Outcome> mean;
  for (const char* name : {"fp32", "fp8-delayed", "fp8-smooth", "fp8-current", "fp8-current, 2^k"}) {
    Outcome& m = mean[name];
    for (long seed = 1; seed <= seeds; ++seed) {
      const Outcome one = trained(name, static_cast<std::uint64_t>(seed), steps);
      const double share = 1.0 / static_cast<double>(seeds);
      m.loss += share * one.loss;
      m.usual += share * one.usual;
      for (auto when : {&Outcome::first, &Outcome::last})
        for (auto field : {&Largest::cosine, &Largest::outlier}) m.*when.*field += share * (one.*when.*field);
    }
    std::printf("%-17s %9.3f %7.3f %13.2f %7.2f %9.1f %7.1f\n", name, m.loss, m.usual, m.first.cosine, m.last.cosine,
                m.first.outlier, m.last.outlier);
  }
  std::printf(
      "\nThe paper (abstract and summaries): after 200 billion tokens the two weights of a channel align and FP8 with\n"
      "delayed scaling diverges; Smooth-SwiGLU follows bf16. 7 billion parameters, 2 trillion tokens. Here 4,400\n"
      "parameters; the square is in the data, so that weights align soon; x of all layers is scaled by channel. A "
      "scale\n"
      "that is no power of two takes the outlier itself to 448, without an error; the others round it.\n\n");
  const Outcome& exact = mean["fp32"];
  const Outcome& delayed = mean["fp8-delayed"];
  const Outcome& smooth = mean["fp8-smooth"];
  example::claim(exact.first.cosine < 0.5 && exact.last.cosine > 0.8, "the largest channel's weights align");
  example::claim(exact.last.outlier > 1.5 * exact.first.outlier, "it grows away from the others");
  example::claim(delayed.loss > 5 * exact.loss, "with a delayed scale the loss is more than five times f32's");
  example::claim(smooth.loss < delayed.loss / 4, "scales by channel take off more than three quarters of it");
  example::claim(smooth.loss < 1.5 * mean["fp8-current, 2^k"].loss,
                 "they are within half of a power-of-two scale of the tensor's own amax");
  example::claim(mean["fp8-current"].loss < 1.1 * exact.loss,
                 "a scale of the tensor's own amax that is no power of two comes within a tenth of f32");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
