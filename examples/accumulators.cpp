// The effect of an accumulator on dot products of length 4096: operands in e4m3, exact products, every partial sum
// rounded.
//
// Compares 1024 dot products under each accumulator with exact ones: root mean square error relative to the root mean
// square of the results. Operands are normal numbers (sums stay about as small as their terms), then their magnitudes
// (sums outgrow their terms).
#include <gradual/gradual.h>

#include <cmath>

#include "example.h"

using namespace gradual;

namespace {

constexpr const char* kNames[] = {"f64",
                                  "f32",
                                  "hopper-fp8/promote=128",
                                  "hopper-fp8",
                                  "hopper-fp8-14bit/promote=128",
                                  "hopper-fp8-14bit",
                                  "hopper-fp16",
                                  "fp16-acc/chunk=64",
                                  "fp16-acc",
                                  "bf16-acc/chunk=64",
                                  "bf16-acc",
                                  "bf16-acc:stochastic"};
constexpr int kCount = std::size(kNames);

struct Operands {
  Tensor a, b;
  Tensor product() const { return matmul(a, b.t()); }
};

Operands draw(long length, const Format& format, bool positive) {
  Generator generator(1);
  const Rounder rounder{.format = format, .rounding = {}, .overflow = Overflow::saturate};
  const auto one = [&] {
    Tensor t = randn({32, length}, {}, generator);
    if (positive) t = abs(t);
    rounder.round(t.data<float>(), t.data<float>(), t.numel());
    return t.to(example::device());
  };
  const Tensor a = one();
  return {a, one()};
}

double error(const Tensor& got, const Tensor& exact) {
  const double wrong = norm(got.to(DType::f64) - exact).item();
  return wrong / norm(exact).item();
}

constexpr const char* kUsage =
    "What an accumulator does to dot products.\n"
    "  accumulators                              # of length 4096, of operands in e4m3fn\n"
    "  options: --length N  --format FORMAT\n";

void body(example::Arguments& arguments) {
  const long length = arguments.number("--length", 4096);
  const Format operand_format = format(arguments.text("--format", "e4m3fn"));
  arguments.done();

  double errors[2][kCount];
  for (const bool positive : {false, true}) {
    const Operands o = draw(length, operand_format, positive);
    // Sums of e4m3 products are multiples of 2^-18 and below 2^30: exact in f64.
    const Tensor exact = Operands{o.a.to(DType::f64), o.b.to(DType::f64)}.product();
    for (int i = 0; i < kCount; ++i) {
      const Accumulator how = accumulator(kNames[i]);
      const bool cpu_only = how.group != 0 || how.rounding.mode == RoundingMode::stochastic;
      const Device device = cpu_only ? Device::cpu() : example::device();
      const AccumulatorScope scope(how);
      errors[positive][i] = error(Operands{o.a.to(device), o.b.to(device)}.product(), exact.to(device));
    }
  }
  std::printf("relative error of dot products of %ld numbers in %s\n\n", length, to_string(operand_format).c_str());
  std::printf("| accumulator | normal | positive |\n|---|---|---|\n");
  for (int i = 0; i < kCount; ++i) std::printf("| `%s` | %.1e | %.1e |\n", kNames[i], errors[0][i], errors[1][i]);
  std::printf("\n");

  const auto of = [&](bool positive, const char* wanted) {
    for (int i = 0; i < kCount; ++i)
      if (std::string(kNames[i]) == wanted) return errors[positive][i];
    return std::nan("");
  };
  const char* hopper = "hopper-fp8-14bit";
  const char* promoted = "hopper-fp8-14bit/promote=128";
  if (length < 4096 || to_string(operand_format) != "e4m3fn") return;  // short sums, or small operands, show little
  example::claim(of(true, "f64") < 0x1p-24, "f64 sums are off by the one rounding of the result to f32");
  example::claim(of(true, hopper) > 4 * of(true, promoted), "promotion every 128 products recovers truncated sums");
  example::claim(of(true, "fp16-acc") > 10 * of(true, "fp16-acc/chunk=64"), "chunks recover f16 sums");
  example::claim(of(true, "bf16-acc") > 0.5, "bf16 sums of positive terms stand still: most of the result is lost");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
