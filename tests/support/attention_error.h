// Attention in half against f64: how far results and gradients may be from the exact ones where all but them is f32.
#pragma once

#include <doctest/doctest.h>

#include <gradual/autograd/autograd.h>
#include <gradual/core/formats/convert.h>
#include <gradual/core/ops/ops.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace gradual::test {

struct AttentionCase {
  const char* label;
  Shape q, k;             // v has k's sizes
  const char* mask = "";  // "bool", "added" or none
  bool causal = false;
  double offset = 4;  // of v and of the gradient of y
};
inline const AttentionCase kHalfAttention[] = {
    {"small", {1, 1, 4, 8}, {1, 1, 4, 8}},
    {"small, causal", {1, 1, 4, 8}, {1, 1, 4, 8}, "", true},
    {"bool mask", {2, 2, 17, 16}, {2, 2, 23, 16}, "bool"},
    {"added mask", {2, 2, 17, 16}, {2, 2, 23, 16}, "added"},
    {"added mask, causal", {2, 3, 32, 8}, {2, 3, 32, 8}, "added", true},
    {"heads of 12", {1, 3, 9, 12}, {1, 3, 40, 12}},
    {"long", {2, 4, 96, 64}, {2, 4, 96, 64}, "added"},
    {"long, causal", {2, 4, 96, 64}, {2, 4, 96, 64}, "bool", true},
    {"without an offset", {2, 2, 33, 16}, {2, 2, 33, 16}, "bool", false, 0},
};

struct AttentionRun {
  Tensor q, k, v, dy, mask;
  bool causal;
  // y, dq, dk, dv on the CPU in f64, computed in `dtype`.
  std::array<Tensor, 4> run(DType dtype, Device device) const {
    const auto leaf = [&](const Tensor& t) { return t.to(dtype).to(device).detach().set_requires_grad(true); };
    const Tensor a = leaf(q);
    const Tensor b = leaf(k);
    const Tensor c = leaf(v);
    const Tensor y = scaled_dot_product_attention(a, b, c, mask.defined() ? mask.to(device) : mask, {.causal = causal});
    CHECK(y.dtype() == dtype);
    y.backward(dy.to(dtype).to(device));
    std::array<Tensor, 4> all{y.detach(), a.grad(), b.grad(), c.grad()};
    for (Tensor& t : all) t = t.to(Device::cpu()).to(DType::f64);
    return all;
  }
};

inline AttentionRun attention_run(const AttentionCase& c, DType dtype) {
  Generator g(1);
  const auto half = [&](const Shape& sizes, double offset) {
    return (randn(sizes, {.dtype = DType::f64}, g) + offset).to(dtype);
  };
  AttentionRun r{half(c.q, 0), half(c.k, 0), half(c.k, c.offset), half(c.q, c.offset), {}, c.causal};
  const Shape scores{c.q[2], c.k[2]};
  if (c.mask[0] == 'a') r.mask = randn(scores, {.dtype = DType::f32}, g);
  if (c.mask[0] == 'b') {
    const Tensor first = arange(0, static_cast<double>(c.k[2]), 1, {.dtype = DType::f32}) < 1;  // a key for each query
    r.mask = logical_or(rand(scores, {.dtype = DType::f32}, g) < 0.7, first);
  }
  return r;
}

// What y, dq, dk and dv may be off by: u = 2^-24 a product, sum or exponential of the f32 path, carried along by
// magnitudes (Higham 2002, chapter 3), and half a unit of the half format for the result.
inline std::array<Tensor, 4> attention_bounds(const AttentionRun& r, DType dtype, const std::array<Tensor, 4>& exact) {
  const double u = std::ldexp(1.0, -24);
  const auto f64 = [](const Tensor& t) { return t.to(DType::f64); };
  const Tensor q = f64(r.q);
  const Tensor k = f64(r.k);
  const Tensor v = f64(r.v);
  const Tensor dy = abs(f64(r.dy));
  const auto size = static_cast<double>(q.size(-1));
  const auto keys = static_cast<double>(k.size(-2));
  const auto queries = static_cast<double>(q.size(-2));
  const double scale = 1 / std::sqrt(size);
  Tensor scores = matmul(q, transpose(k, -2, -1)) * scale;
  Tensor rough = matmul(abs(q), transpose(abs(k), -2, -1)) * scale;
  const bool added = r.mask.defined() && r.mask.dtype() != DType::bool_;
  if (added) {
    scores = scores + f64(r.mask);
    rough = rough + abs(f64(r.mask));
  }
  Tensor seen = ones({q.size(-2), k.size(-2)}, {.dtype = DType::f64});
  if (r.causal) seen = tril(seen);
  if (r.mask.defined() && !added) seen = where(r.mask, seen, 0);
  const Tensor p = softmax(where(seen > 0, scores, -std::numeric_limits<double>::infinity()), -1);
  // relative errors of the probabilities of a query: twice that of the worst score, exponentials and their sum
  const Tensor rho = (max(rough, {-1}, true) * (2 * (size + 4)) + keys + 16) * u;
  const Tensor dp = matmul(dy, transpose(abs(v), -2, -1));
  const Tensor ds = p * (dp + sum(p * dp, {-1}, true)) * (rho + (2 * size + keys + queries + 16) * u);
  std::array<Tensor, 4> bounds{matmul(p * (rho + keys * u), abs(v)), matmul(ds, abs(k)) * scale,
                               matmul(transpose(ds, -2, -1), abs(q)) * scale,
                               matmul(transpose(p * (rho + queries * u), -2, -1), dy)};
  const FloatInfo info = float_info(dtype);
  for (std::size_t i = 0; i < 4; ++i)
    bounds[i] = bounds[i] * 1.01 + abs(exact[i]) * (info.epsilon / 2) + info.min_subnormal / 2;
  return bounds;
}

inline void check_attention_in_half(const AttentionCase& c, DType dtype, Device device) {
  CAPTURE(c.label);
  CAPTURE(to_string(dtype));
  const AttentionRun r = attention_run(c, dtype);
  const std::array<Tensor, 4> exact = r.run(DType::f64, Device::cpu());
  const std::array<Tensor, 4> given = r.run(dtype, device);
  const std::array<Tensor, 4> bounds = attention_bounds(r, dtype, exact);
  for (std::size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK(max(abs(given[i] - exact[i]) / bounds[i]).item() <= 1);
  }
}

// v and the gradient of y are 4 but for one number, so that dq and dk are small differences of large ones.
inline void check_cancelling_attention(DType dtype, Device device) {
  CAPTURE(to_string(dtype));
  AttentionRun r = attention_run({"", {1, 2, 24, 64}, {1, 2, 24, 64}}, dtype);
  r.v = full({1, 2, 24, 64}, 4, {.dtype = dtype});
  r.v.narrow(2, 5, 1).fill_(4.0625);
  r.dy = full({1, 2, 24, 64}, 4, {.dtype = dtype});
  const std::array<Tensor, 4> exact = r.run(DType::f64, Device::cpu());
  const std::array<Tensor, 4> given = r.run(dtype, device);
  for (std::size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    CHECK((max(abs(given[i] - exact[i])) / max(abs(exact[i]))).item() <= float_info(dtype).epsilon);
  }
}

}  // namespace gradual::test
