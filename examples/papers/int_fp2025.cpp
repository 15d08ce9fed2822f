// INT v.s. FP: A Comprehensive Study of Fine-Grained Low-bit Quantization Formats (Chen et al. 2025, arXiv 2510.25602).
//
// With one scale for a tensor, outliers need the exponents of a floating-point format. With one for 32 numbers, the
// largest is only some three times the root mean square, and 8 bits are better spent on a uniform grid.
#include <gradual/inspect/numbers.h>

#include <map>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "INT against FP 2025: with a scale for 32 numbers, 8-bit integers are finer than FP8; 4-bit ones after a "
    "transform.\n"
    "  int_fp2025\n  options: --seeds N\n";

Quantizer in_tensor(const char* element) { return {.format = format(element), .scaling = TensorScale{}}; }
Quantizer in_mx(const char* element) { return {.format = format(element), .scaling = PowerBlocks{.block = 32}}; }
Quantizer in_nv(const char* element) { return {.format = format(element), .scaling = Nvfp4Blocks{.block = 16}}; }

Tensor turned(const Tensor& x) { return hadamard(x, std::vector<bool>(16, false)); }

void body(example::Arguments& arguments) {
  const long seeds = arguments.number("--seeds", 3);
  arguments.done();
  std::map<std::string, double> db;  // means over seeds
  std::map<std::string, inspect::ErrorSum> bias;
  for (long seed = 1; seed <= seeds; ++seed) {
    default_generator() = Generator(static_cast<std::uint64_t>(seed));
    const Tensor normal = randn({1024, 512});
    // One column in 128 has numbers that are 30 times as large: the outlier channels of a language model.
    const Tensor size = ones({512});
    for (std::int64_t column = 0; column < 512; column += 128) size.narrow(0, column, 1).fill_(30);
    const Tensor outliers = normal * size;
    const auto add = [&](const std::string& name, const Tensor& x, const Quantizer& q) {
      db[name] += inspect::error_of(fake_quantize(x, q), x).sqnr_db() / static_cast<double>(seeds);
    };
    add("outliers, tensor, int8", outliers, in_tensor("int8"));
    add("outliers, tensor, e4m3", outliers, in_tensor("e4m3fn"));
    for (const char* element : {"mxint8", "e4m3fn"}) {
      add(std::string("normal, MX, ") + element, normal, in_mx(element));
      add(std::string("outliers, MX, ") + element, outliers, in_mx(element));
    }
    for (const char* element : {"int4", "e2m1"}) {
      add(std::string("normal, MX, ") + element, normal, in_mx(element));
      add(std::string("outliers, NV, ") + element, outliers, in_nv(element));
      add(std::string("outliers turned, NV, ") + element, turned(outliers), in_nv(element));
    }
    for (const char* element : {"int8", "int8tc", "int4", "int4tc"})
      bias[element] = inspect::error_of(fake_quantize(normal, in_mx(element)), normal);
  }
  for (const auto& [name, value] : db) std::printf("%-32s %6.2f dB\n", name.c_str(), value);
  std::printf("\nmean error in units of the root mean square, last seed\n");
  for (const auto& [name, e] : bias)
    std::printf("%-8s %s\n", name.c_str(), inspect::with_interval(e.bias(), e.bias_interval()).c_str());
  std::printf(
      "\nThe paper (abstract): FP excels with coarse scales; MXINT8 is superior to MXFP8; of 4-bit formats FP often "
      "has\n"
      "the advantage, though NVINT4 can surpass NVFP4 with Hadamard rotation; symmetric clipping resolves a bias of\n"
      "gradients in INT training. Theirs are language models. Here the numbers are drawn, and nothing is trained.\n\n");
  example::claim(db["outliers, tensor, e4m3"] > db["outliers, tensor, int8"] + 3,
                 "one scale for a tensor with outliers: e4m3 is finer than int8");
  example::claim(db["normal, MX, mxint8"] > db["normal, MX, e4m3fn"] + 3,
                 "MX: mxint8 is finer than e4m3, normal numbers");
  example::claim(db["outliers, MX, mxint8"] > db["outliers, MX, e4m3fn"], "and with outliers");
  example::claim(db["normal, MX, e2m1"] > db["normal, MX, int4"], "MX with 4 bits: e2m1 is finer than int4");
  example::claim(db["outliers, NV, e2m1"] > db["outliers, NV, int4"], "NVFP4 is finer than NVINT4 with outliers");
  example::claim(db["outliers turned, NV, int4"] > db["outliers turned, NV, e2m1"],
                 "after the transform NVINT4 is finer than NVFP4");
  example::claim(bias["int4tc"].bias() < -bias["int4tc"].bias_interval(),
                 "-8, which has no counterpart, pulls the mean down in 4 bits");
  example::claim(bias["int8tc"].sum < bias["int8"].sum && -bias["int8tc"].bias() < 1e-3,
                 "-128 in 8 bits too, by less than a thousandth of the numbers' size");
  for (const char* element : {"int8", "int4"})
    example::claim(std::abs(bias[element].bias()) < 2 * bias[element].bias_interval(), "symmetric clipping: no bias");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
