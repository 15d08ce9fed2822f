// Laws of the loss over parameters, samples and bits, fitted to runs by least squares.
#pragma once

#include <gradual/gradual.h>
#include <gradual/optim/schedule.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <vector>

namespace paper {

using namespace gradual;

inline constexpr int kBits[] = {3, 4, 6, 8, 32};
inline constexpr int kExact = 32;  // f32

struct Point {
  int bits = 0;
  double parameters = 0;
  double samples = 0;
  double loss = 0;  // of the test, as a share of the best constant's
  double harm = 0;  // of an f32 run: what rounding its weights to 3 bits adds
};

// The runs as columns: logs of N / 100, of D / 10,000 and of the loss; bits.
struct RunColumns {
  Tensor n, d, loss, bits;
  explicit RunColumns(const std::vector<Point>& points)
      : n(of(points, [](const Point& p) { return std::log(p.parameters / 100); })),
        d(of(points, [](const Point& p) { return std::log(p.samples / 1e4); })),
        loss(of(points, [](const Point& p) { return std::log(p.loss); })),
        bits(of(points, [](const Point& p) { return p.bits; })) {}
  static Tensor of(const std::vector<Point>& points, const std::function<double(const Point&)>& value) {
    std::vector<double> values;
    for (const Point& p : points) values.push_back(value(p));
    return from_data(values, {static_cast<std::int64_t>(values.size())});
  }
};

// L = A N_eff^-alpha + B D^-beta + rest; p holds log A, alpha, log B, beta and
enum class Law {
  gamma,   // log gamma: N_eff = N (1 - exp(-P / gamma))
  shares,  // log N_eff / N of each number of bits
  sum      // log gamma, log C: rest = C exp(-P / gamma)
};

inline Tensor residuals(Law law, const RunColumns& c, const Tensor& p) {
  const auto at = [&](std::int64_t i) { return p.narrow(0, i, 1); };
  Tensor share = zeros_like(c.n);
  if (law == Law::gamma) share = log(1.0 - exp(-1.0 * c.bits / exp(at(4))));
  for (int i = 0; law == Law::shares && kBits[i] != kExact; ++i)
    share = share + at(4 + i) * (c.bits == static_cast<double>(kBits[i])).to(DType::f64);
  const Tensor loss = exp(at(0) - at(1) * (c.n + share)) + exp(at(2) - at(3) * c.d);
  return log(law == Law::sum ? loss + exp(at(5) - c.bits / exp(at(4))) : loss) - c.loss;
}

// Least squares in the logs, by 4,000 steps of Adam from `start`. The last number is the root mean square residual.
inline std::vector<double> fitted(const char* name, Law law, const RunColumns& c, std::vector<double> start) {
  Tensor p = from_data(start, {static_cast<std::int64_t>(start.size())}).set_requires_grad();
  optim::Adam adam({p}, {.lr = 0.03});
  optim::Scheduler rate(adam, optim::cosine(4000));
  for (int i = 0; i < 4000; ++i) {
    adam.zero_grad();
    square(residuals(law, c, p)).mean().backward();
    adam.step();
    rate.step();
  }
  start = p.detach().to_vector<double>();
  start.push_back(std::sqrt(square(residuals(law, c, p.detach())).mean().item()));
  std::printf("%-26s %.3f N^-%.2f + %.3f D^-%.2f, residual %.0f%%;", name, std::exp(start[0]), start[1],
              std::exp(start[2]), start[3], 100 * start.back());
  return start;
}

}  // namespace paper
