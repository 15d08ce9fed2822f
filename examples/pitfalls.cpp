// Eight ways in which half precision breaks training, each with its cure, with numbers.
//
// The program computes every number and checks every failure and every cure; it ends with status 1 if one does not
// occur. FP16 has 10 mantissa bits and exponents -14 to 15: neighbours of 1 are 2^-10 apart, the largest number is
// 65504, the smallest above zero is 2^-24. Most failures below follow from one of these three facts.
#include <gradual/gradual.h>

#include <cmath>

#include "example.h"

using namespace gradual;

namespace {

TensorOptions f16() { return example::on_device(DType::f16); }
TensorOptions f32() { return example::on_device(DType::f32); }

void title(int number, const char* text) { std::printf("\n%d. %s\n", number, text); }
void row(const char* what, double value) {
  std::printf("  %-62s %.9g\n", what,
              std::isnan(value) ? std::fabs(value) : value);  // a NaN's sign has no meaning
}

void rounding() {
  title(1, "A small number added to a large one is lost");
  const double half = (full({1}, 1, f16()) + 0.0001).item();
  const double single = (full({1}, 1, f32()) + 0.0001).item();
  row("f16: 1 + 0.0001", half);
  row("f32: 1 + 0.0001", single);
  row("f16: the smallest step up from 1", (full({1}, 1, f16()) + 0x1p-10).item() - 1);
  example::claim(half == 1 && std::fabs(single - 1.0001) < 1e-6, "f16 stays at 1; f32 moves");
}

// 1000 steps of SGD, each 0.0001 down, on a weight of 1.
double weight_after(optim::LowPrecisionUpdate update) {
  Tensor w = full({1}, 1, f16());
  w.set_requires_grad();
  optim::SGD sgd({w}, {.lr = 1e-4, .precision = {.update = update}});
  for (int i = 0; i < 1000; ++i) {
    w.set_grad(full({1}, 1, f16()));
    sgd.step();
  }
  return w.item();
}

void vanishing_update() {
  title(2, "A weight that training cannot move: 1000 updates of -0.0001 on an f16 weight of 1 (right: 0.9)");
  using optim::LowPrecisionUpdate;
  const double none = weight_after(LowPrecisionUpdate::none);
  const double master = weight_after(LowPrecisionUpdate::masters);
  row("no master: every update is rounded away", none);
  row("FP32 master: adds them up, the weight is its rounding", master);
  row("Kahan: a second f16 keeps what rounding took", weight_after(LowPrecisionUpdate::kahan));
  row("stochastic rounding: right on average", weight_after(LowPrecisionUpdate::stochastic));
  example::claim(none == 1 && std::fabs(master - 0.9) < 1e-3, "without a master nothing arrives; with one all of it");
}

// d/dw of 1e-8 * w at an f16 weight, by a loss times `scale`; the gradient unscaled in f32.
double small_gradient(double scale) {
  Tensor w = full({1}, 1, f16());
  w.set_requires_grad();
  const Tensor loss = w.to(DType::f32) * 1e-8;
  (loss * scale).backward();
  return w.grad().to(DType::f32).item() / scale;
}

void underflow() {
  title(3, "A gradient below 2^-24 is zero in f16 (right: 1e-08)");
  const double lost = small_gradient(1);
  const double saved = small_gradient(1024);
  row("gradient in f16", lost);
  row("loss times 1024, f16 gradient divided by 1024 in f32", saved);
  example::claim(lost == 0 && std::fabs(saved / 1e-8 - 1) < 0.01, "the scale saves it, to 1 percent");
}

void overflow() {
  title(4, "An activation overflows: the mean square of 512 activations of 300");
  const Tensor x = full({512}, 300, f16());
  const double half = mean(square(x)).item();
  const double single = mean(square(x.to(DType::f32))).item();
  const double brain = mean(square(x.to(DType::bf16))).item();
  row("f16: 300^2 is above 65504", half);
  row("f32", single);
  row("bf16: the range of f32, but 7 bits behind the point", brain);
  row("rms_norm on the f16 tensor computes in f32 inside: x / rms(x)", rms_norm(x, 1).select(0, 0).item());
  example::claim(std::isinf(half) && single == 90000 && std::fabs(brain / 9e4 - 1) < 0.01 &&
                     rms_norm(x, 1).select(0, 0).item() == 1,
                 "f16 gives Inf; f32, bf16 and the fused norm do not");
}

// Trains the running mean of a batch norm on data with mean 300 and deviation 1, then normalises in eval mode.
double mean_in_eval(void (*convert)(nn::Module&, DType), double* running_mean) {
  nn::BatchNorm1d norm(1);
  norm.to(example::device());
  convert(norm, DType::f16);
  Generator generator(0);
  const Tensor x = (randn({4096, 1}, f32(), generator) + 300).to(DType::f16);
  for (int i = 0; i < 200; ++i) norm(x);
  norm.eval();
  *running_mean = norm.running_mean.item();
  return norm(x).to(DType::f32).mean().item();
}

void batch_norm_in_half() {
  title(5, "Batch norm in f16: data with mean 300, deviation 1; 200 steps of running += 0.1 * (mean - running)");
  double half_mean = 0;
  double single_mean = 0;
  const double half = mean_in_eval(amp::to_pure, &half_mean);
  const double single = mean_in_eval(amp::to_half, &single_mean);
  row("to_pure: running mean in f16 stops where a step rounds away", half_mean);
  row("  so eval mode is off; mean of its output (right: 0)", half);
  row("to_half: norms keep f32; running mean", single_mean);
  row("  mean of its output in eval mode", single);
  example::claim(std::fabs(half) > 0.5 && std::fabs(single) < 0.05, "f16 statistics get stuck; f32 ones do not");
}

// One step of Adam (lr 0.01) on an f16 weight of 1 with a gradient of 1e-4: right is 1 - lr = 0.99.
double adam_step(double eps, bool all_in_f16) {
  Tensor w = full({1}, 1, f16());
  w.set_requires_grad();
  optim::Adam adam({w}, {.lr = 0.01, .eps = eps, .precision = {.pure_arithmetic = all_in_f16}});
  w.set_grad(full({1}, 1e-4, f16()));
  adam.step();
  return w.item();
}

void adam_eps() {
  title(6, "Adam computed in f16: g^2 = 1e-8 and eps = 1e-8 are both below 2^-24, and it divides by their sum");
  const double tiny = adam_step(1e-8, true);
  const double large = adam_step(1e-3, true);
  const double single = adam_step(1e-8, false);
  row("f16: eps 1e-8 as it is stored", full({1}, 1e-8, f16()).item());
  row("f16, eps 1e-8: the weight after one step", tiny);
  row("f16, eps 1e-3: finite, but eps now is larger than the gradient", large);
  row("f32 arithmetic on the f16 weight (the default), eps 1e-8", single);
  example::claim(!std::isfinite(tiny) && std::isfinite(large), "eps 1e-8 destroys the weight in f16; 1e-3 does not");
  example::claim(std::fabs(single - 0.99) < 5e-4, "the cure that keeps Adam itself is to compute it in f32");
}

Tensor composed_softmax(const Tensor& x) {
  const Tensor e = exp(x);
  return e / sum(e, {-1}, true);
}

void softmax_in_half() {
  title(7, "Softmax in f16, op by op, of the logits 0 and 12: e^12 = 162755 is above 65504");
  const Tensor x = from_data(std::vector<double>{0, 12}, {2}, f16());
  const double broken = composed_softmax(x).select(0, 1).item();
  const double fused = softmax(x, 0).select(0, 1).item();
  row("composed in f16", broken);
  row("the op softmax: largest logit subtracted, f32 inside", fused);
  const amp::Autocast scope({.dtype = DType::f16, .device = example::device()});
  const double cast = composed_softmax(x).select(0, 1).item();
  row("the composed one under autocast, which runs exp and sum in f32", cast);
  std::printf("  %s\n", amp::PolicyTable().why("exp", {DType::f16}).c_str());
  const double right = 1 / (1 + std::exp(-12.0));
  example::claim(std::isnan(broken) && std::fabs(fused - right) < 1e-3 && std::fabs(cast - right) < 1e-6,
                 "Inf / Inf is NaN; the cures are right");
}

void sum_of_ones() {
  title(8, "The sum of 4096 ones");
  const Tensor accumulator = full({1}, 0, f16());
  const Tensor one = full({1}, 1, f16());
  for (int i = 0; i < 4096; ++i) accumulator.add_(one);
  const double fused = sum(ones({4096}, f16())).item();
  row("f16 accumulator, one after the other: 2048 + 1 rounds to 2048", accumulator.item());
  row("the op sum: f32 accumulator, rounded to f16 once", fused);
  row("matmul of f16 vectors accumulates in f32 as well",
      matmul(ones({1, 4096}, f16()), ones({4096, 1}, f16())).item());
  example::claim(accumulator.item() == 2048 && fused == 4096, "the f16 accumulator stops half-way");
}

constexpr const char* kUsage =
    "Eight ways in which half precision breaks training, each with its cure, as numbers.\n"
    "  pitfalls\n";

void body(example::Arguments& arguments) {
  arguments.done();
  for (void (*pitfall)() :
       {rounding, vanishing_update, underflow, overflow, batch_norm_in_half, adam_eps, softmax_in_half, sum_of_ones})
    pitfall();
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
