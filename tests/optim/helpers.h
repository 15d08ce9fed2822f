// Parameters, gradients and the update formulas written out in double, for the tests of optim/.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gradual/autograd/grad_mode.h"
#include "gradual/core/ops/ops.h"
#include "gradual/core/tensor/tensor.h"
#include "gradual/optim/adam.h"
#include "gradual/optim/sgd.h"

namespace gradual::test {

using Values = std::vector<double>;

inline Tensor leaf(const Values& values, DType dtype = DType::f32) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = dtype, .requires_grad = true});
}

// n numbers in [-1, 1) that every run gets alike.
inline Values numbers(std::size_t n, std::uint64_t seed, double scale = 1) {
  Generator g(seed);
  Values out;
  for (double v : rand({static_cast<std::int64_t>(n)}, {.dtype = DType::f64}, g).to_vector<double>())
    out.push_back((2 * v - 1) * scale);
  return out;
}

// Such numbers as a tensor, other ones for each seed.
inline Tensor random_tensor(const Shape& sizes, std::uint64_t seed, DType dtype) {
  static const Values table = numbers(4099, 1);
  Values all(static_cast<std::size_t>(numel(sizes)));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = table[(i + 71 * seed) % table.size()];
  return from_data(all, sizes, {.dtype = dtype});
}

// The values as `dtype` holds them.
inline Values rounded(const Values& values, DType dtype) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = dtype}).to_vector<double>();
}

inline void set_gradient(const Tensor& p, const Values& values, DType dtype) {
  p.set_grad(from_data(values, p.sizes(), {.dtype = dtype}));
}
inline void set_gradient(const Tensor& p, const Values& values) { set_gradient(p, values, p.dtype()); }

// Gradients of the parameter's dtype, f32 or bf16; some are transposed, some missing.
inline void set_gradients(const std::vector<Tensor>& params, std::uint64_t step) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    const DType dtype = i % 5 == 1 ? DType::f32 : i % 5 == 2 && p.dtype() != DType::f64 ? DType::bf16 : p.dtype();
    const bool turned = p.dim() == 2 && i % 2 == 0;
    const Tensor g = random_tensor(turned ? p.t().sizes() : p.sizes(), 1000 * step + i, dtype).to(p.device());
    p.set_grad((i + step) % 7 == 0 ? Tensor() : turned ? g.t() : g);
  }
}

inline double max_difference(const Values& a, const Values& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    worst = std::isnan(a[i] - b[i]) ? INFINITY : std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.detach().contiguous();
  const Tensor y = b.detach().contiguous();
  return x.dtype() == y.dtype() && x.sizes() == y.sizes() &&
         std::equal(static_cast<char*>(x.raw()), static_cast<char*>(x.raw()) + x.nbytes(), static_cast<char*>(y.raw()));
}

inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

// One parameter's update by SGD, Adam or AdamW, in double.
struct ReferenceSGD {
  double lr;
  double momentum = 0;
  double dampening = 0;
  double decay = 0;
  bool nesterov = false;
  Values m = {};
  int t = 0;

  void step(Values& w, const Values& g) {
    m.resize(w.size());
    ++t;
    for (std::size_t i = 0; i < w.size(); ++i) {
      double d = g[i] + decay * w[i];
      if (momentum != 0) {
        m[i] = t == 1 ? d : momentum * m[i] + (1 - dampening) * d;
        d = nesterov ? d + momentum * m[i] : m[i];
      }
      w[i] -= lr * d;
    }
  }
};

struct ReferenceAdam {
  double lr;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double decay = 0;
  bool decoupled = false;
  Values m = {};
  Values v = {};
  int t = 0;

  void step(Values& w, const Values& g) {
    m.resize(w.size());
    v.resize(w.size());
    ++t;
    for (std::size_t i = 0; i < w.size(); ++i) {
      double d = g[i];
      if (decoupled) {
        w[i] -= lr * decay * w[i];
      } else {
        d += decay * w[i];
      }
      m[i] = beta1 * m[i] + (1 - beta1) * d;
      v[i] = beta2 * v[i] + (1 - beta2) * d * d;
      const double m_hat = m[i] / (1 - std::pow(beta1, t));
      const double v_hat = v[i] / (1 - std::pow(beta2, t));
      w[i] -= lr * m_hat / (std::sqrt(v_hat) + eps);
    }
  }
};

}  // namespace gradual::test
