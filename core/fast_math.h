// Transcendental functions of the compute types, written so that plain loops over them become vector code.
#pragma once

#include <cmath>

#ifdef __CUDACC__
#define GRADUAL_HD __host__ __device__
#else
#define GRADUAL_HD
#endif

namespace gradual::math {

template <class T> GRADUAL_HD T exp(T x) { return std::exp(x); }
template <class T> GRADUAL_HD T log(T x) { return std::log(x); }
template <class T> GRADUAL_HD T log1p(T x) { return std::log1p(x); }
template <class T> GRADUAL_HD T tanh(T x) { return std::tanh(x); }
template <class T> GRADUAL_HD T erf(T x) { return std::erf(x); }

// x / (1 + exp(-u)), without overflow and down to the smallest subnormal; its limit 0 where x = u = -Inf.
template <class T> GRADUAL_HD T times_sigmoid(T x, T u) {
  const T e = exp(-std::fabs(u));
  const T top = u < 0 ? (e == 0 ? T{0} : x * e) : x;
  return top / (1 + e);
}
template <class T> GRADUAL_HD T sigmoid(T x) {
  const T e = exp(-std::fabs(x));
  return (x < 0 ? e : T{1}) / (1 + e);
}
template <class T> GRADUAL_HD T softplus(T x) { return (x > 0 ? x : T{0}) + log1p(exp(-std::fabs(x))); }
template <class T> GRADUAL_HD T gelu(T x) {
  const T p = static_cast<T>(0.5) * std::erfc(x * static_cast<T>(-0.70710678118654752440));
  return p == 0 ? T{0} : x * p;
}

}  // namespace gradual::math
