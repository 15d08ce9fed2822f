// Underflow, overflow, swamping: the three ways in which a number is lost.
#include <gradual/gradual.h>

#include <cmath>
#include <cstdio>

using namespace gradual;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

const char* text(DType t) { return to_string(t).data(); }
Tensor number(double x, DType dtype) { return full({1}, x, dtype); }

// Adds n ones, one after the other, to a tensor that holds one number.
double count_to(int n, DType dtype) {
  const Tensor total = number(0, dtype), one = number(1, dtype);
  for (int i = 0; i < n; ++i) total.add_(one);
  return total.item();
}

}  // namespace

int main() {
  std::printf("underflow: 1.25 * 2^-n in f16\n");
  for (const int n : {14, 20, 22, 23, 24, 25}) {
    const double x = std::ldexp(1.25, -n);
    std::printf("n = %d: %-12.6g becomes %.6g\n", n, x, number(x, DType::f16).item());
  }

  std::printf("\noverflow: 300 * 300\n");
  for (const DType t : kTypes) std::printf("%-5s %g\n", text(t), square(number(300, t)).item());
  const Tensor inf = square(number(300, DType::f16));
  std::printf("and then: inf / 300 = %g, 1 / inf = %g, inf - inf = %g\n", (inf / 300).item(), (1 / inf).item(),
              std::fabs((inf - inf).item()));

  std::printf("\nswamping: the sum of 10000 ones, one after the other\n");
  for (const DType t : kTypes) std::printf("%-5s %g\n", text(t), count_to(10000, t));
  std::printf("the op sum(), f16 in, f32 inside, f16 out: %g\n", sum(ones({10000}, DType::f16)).item());

  // 40 numbers: 2^0, 2^-1, .., 2^-39. The library counts what each rounding loses.
  std::printf("\nthe numbers 2^0 to 2^-39, as another format\n");
  std::vector<double> powers(40);
  for (int n = 0; n < 40; ++n) powers[n] = std::ldexp(1.0, -n);
  for (const char* to : {"fp16", "bf16", "e4m3fn", "e5m2"}) {
    CastCounts counts;
    fake_quantize(from_data(powers, {40}), format(to), {}, Overflow::ieee, {}, {.counts = &counts});
    std::printf("%-7s %2d become 0, %2d become subnormal\n", to, static_cast<int>(counts.underflow),
                static_cast<int>(counts.subnormal));
  }
}
