// What the tests of this folder share.
#pragma once

#include <cstring>
#include <functional>
#include <string>

#include "../../amp/recipe.h"
#include "../../core/ops/ops.h"

namespace gradual {

inline Tensor random(const Shape& sizes, std::uint64_t seed, DType dtype = DType::f32) {
  Generator g(seed);
  return randn(sizes, {}, g).to(dtype);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes()) return false;
  const Tensor x = a.detach().contiguous();
  const Tensor y = b.detach().contiguous();
  return std::memcmp(x.raw(), y.raw(), x.nbytes()) == 0;
}

inline std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

// What is said of a recipe's file with that base and these fields, as "\"gradients\": \"f32\"".
inline std::string message_of_recipe(const std::string& base, const std::string& fields) {
  return message_of([&] { amp::recipe_from_json(R"({"name": "mine", "base": ")" + base + R"(", )" + fields + "}"); });
}

}  // namespace gradual
