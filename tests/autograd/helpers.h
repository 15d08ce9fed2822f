#pragma once

#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <cmath>
#include <string>
#include <vector>

namespace gradual::testing {

using Values = std::vector<double>;

inline Tensor leaf(const Values& values, const Shape& sizes, DType dtype = DType::f64) {
  return from_data(values, sizes, {.dtype = dtype, .requires_grad = true});
}
inline Tensor leaf(const Values& values) { return leaf(values, {static_cast<std::int64_t>(values.size())}); }
inline Tensor numbers(const Values& values) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = DType::f64});
}
inline Values values(const Tensor& t) { return t.to_vector<double>(); }

// The message of the Error that f throws; "" where it throws none.
template <class F> std::string message_of(const F& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// CHECKs that the message holds every part; prints it otherwise.
inline void check_message(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    CAPTURE(message);
    CAPTURE(part);
    CHECK(contains(message, part));
  }
}

}  // namespace gradual::testing
