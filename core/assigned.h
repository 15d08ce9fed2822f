// Sets a variable and puts the old value back, on exceptions too.
#pragma once

#include <type_traits>
#include <utility>

namespace gradual {

template <class T> class Assigned {
 public:
  Assigned(T& variable, std::type_identity_t<T> value)
      : variable_(variable), saved_(std::exchange(variable, std::move(value))) {}
  ~Assigned() { variable_ = std::move(saved_); }
  Assigned(const Assigned&) = delete;
  Assigned& operator=(const Assigned&) = delete;

 private:
  T& variable_;
  T saved_;
};

}  // namespace gradual
