// What the tests of nn share.
#pragma once

#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <cmath>
#include <string>
#include <vector>

namespace nn_test {

using namespace gradual;

inline std::string message_of(auto&& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline bool on_tape(const Tensor& y, const std::string& op) {
  const Tape tape = Tape::of(y);
  for (const auto& node : tape.nodes())
    if (!node->is_leaf() && to_string(node->op) == op) return true;
  return false;
}

inline std::vector<double> values(const Tensor& t) { return t.to_vector<double>(); }

// The largest |a - b|; shapes must agree. NaN anywhere gives NaN, which no bound accepts.
inline double distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  const std::vector<double> x = values(a);
  const std::vector<double> y = values(b);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(x[i] - y[i]);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && values(a) == values(b);
}

inline void assign(const Tensor& to, const Tensor& from) {
  const NoGrad no_grad;
  to.copy_(from);
}

// U(-1, 1) of a seed of its own.
inline Tensor noise(const Shape& sizes, std::uint64_t seed = 1, DType dtype = DType::f32) {
  Generator g(seed);
  return empty(sizes, {.dtype = dtype}).uniform_(-1, 1, g);
}

}  // namespace nn_test
