// A float and its gaps: which numbers a format contains, and what happens to all others.
#include <gradual/core/formats/bit_fields.h>
#include <gradual/gradual.h>

#include <cstdio>

using namespace gradual;

namespace {

// The code of x in a format: its bits as an integer. A number that the format lacks is rounded to a neighbour.
std::uint32_t code_of(const Format& f, double x) {
  std::uint32_t code = 0;
  Rounder{f, {RoundingMode::nearest_even}, Overflow::ieee}.encode(&x, &code, 1);
  return code;
}
double rounded(const Format& f, double x) { return f.decode(code_of(f, x)); }

// From x to the next larger number: the next code is the next number.
double gap(const Format& f, double x) { return f.decode(code_of(f, x) + 1) - rounded(f, x); }

void show_bits(const Format& f, double x) {
  const std::uint32_t code = code_of(f, x);
  for (int bit = f.bits() - 1; bit >= 0; --bit) {
    std::printf("%u", code >> bit & 1);
    if (bit == f.bits() - 1 || bit == f.mantissa_bits) std::printf(" ");
  }
  std::printf("  %.10g\n", rounded(f, x));
}

}  // namespace

int main() {
  std::printf("%s\n", bit_fields({"fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "e2m1", "e8m0"}).c_str());

  std::printf("fp16: sign, exponent, mantissa\n");
  for (const double x : {1.0, 1.5, 2.0, 3.0, -3.0, 0.1}) show_bits(format("fp16"), x);

  std::printf("\ngap above        fp32       fp16       bf16     e4m3fn\n");
  for (const double x : {0.01, 1.0, 2.0, 100.0, 400.0}) {
    std::printf("%-9g", x);
    for (const char* name : {"fp32", "fp16", "bf16", "e4m3fn"}) std::printf(" %10.3g", gap(format(name), x));
    std::printf("\n");
  }

  std::printf("\nformat     0.1 becomes       relative error\n");
  for (const char* name : {"fp32", "fp16", "bf16", "e4m3fn"}) {
    const double y = rounded(format(name), 0.1);
    std::printf("%-8s   %-15.12g   %.1e\n", name, y, (y - 0.1) / 0.1);
  }

  std::printf("\nfp16, where the gap is 2:\n");
  for (const int x : {2049, 2050, 2051, 2052, 2053}) std::printf("%d becomes %g\n", x, rounded(format("fp16"), x));

  const Tensor one = scalar(1, options_of(DType::f16)), tiny = scalar(0x1p-11, options_of(DType::f16));
  std::printf("\n(1 + tiny) + tiny = %.9g\n", ((one + tiny) + tiny).item());
  std::printf("1 + (tiny + tiny) = %.9g\n", (one + (tiny + tiny)).item());
}
