// The gradients of a trained network as a histogram, before and after scaling, on the range of f16.
#include <gradual/gradual.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

using namespace gradual;

namespace {

struct Net : nn::Module {
  nn::Linear& hidden = register_module("hidden", nn::Linear(64, 48));
  nn::Linear& last = register_module("last", nn::Linear(48, 10));
  Tensor forward(const Tensor& x) override { return last(relu(hidden(flatten(x, 1)))); }
};

// Trains on the same 256 digits. Returns the magnitudes of the last step's gradients in f64, without zeros.
std::vector<double> gradients(int steps) {
  manual_seed(1);
  Net net;
  net.to(DType::f64);
  const data::Dataset digits = data::digits();
  const Tensor x = digits.inputs.narrow(0, 0, 256).to(DType::f64), y = digits.targets.narrow(0, 0, 256).contiguous();
  optim::Adam adam(net.parameters(), {.lr = 1e-2});
  for (int i = 0; i < steps; ++i) {
    adam.zero_grad();
    cross_entropy(net(x), y).backward();
    adam.step();
  }
  std::vector<double> all;
  for (const Tensor& p : net.parameters())
    for (const double g : p.grad().to_vector<double>())
      if (g != 0) all.push_back(std::fabs(g));
  return all;
}

// The share of the gradients, times a scale, that lie from one power of two up to another, in percent.
double share(const std::vector<double>& all, double scale, int from, int to) {
  double count = 0;
  for (const double g : all)
    if (scale * g >= std::ldexp(1.0, from) && scale * g < std::ldexp(1.0, to)) ++count;
  return 100 * count / static_cast<double>(all.size());
}
std::string bar(double percent) { return std::string(static_cast<std::size_t>(std::lround(percent)), '#'); }
}  // namespace

int main() {
  const std::vector<double> all = gradients(1000);
  std::printf("from     scale 1               scale 2^16\n");
  for (int power = 0; power >= -29; --power) {
    const char* in_f16 = power >= -14 ? "normal" : power >= -25 ? "subnormal" : "0 in f16";
    const std::string before = bar(share(all, 1, power, power + 1)), after = bar(share(all, 0x1p16, power, power + 1));
    std::printf("2^%-5d  %-20s  %-20s  %s\n", power, before.c_str(), after.c_str(), in_f16);
  }
  for (const double scale : {1.0, 0x1p16})
    std::printf("%sscale %-6g %3.0f%% become 0, %3.0f%% are subnormal\n", scale == 1 ? "\n" : "", scale,
                share(all, scale, -200, -25), share(all, scale, -25, -14));
}
