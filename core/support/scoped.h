// Sets a value and restores it later: the base of nearly every RAII mode of the library.
#pragma once

#include <type_traits>
#include <utility>

namespace gradual {

// Base of classes that are neither copied nor moved.
struct Pinned {
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
};

// Sets `place` and restores the old value in the destructor, on exceptions too.
template <class T> class Scoped : Pinned {
 public:
  Scoped(T& place, std::type_identity_t<T> value) : place_(place), saved_(std::exchange(place, std::move(value))) {}
  ~Scoped() { place_ = std::move(saved_); }

 private:
  T& place_;
  T saved_;
};

// A value of each thread, `initial` until a scope sets another: inline constexpr auto quiet = per_thread<bool, Name>.
template <class T, class Name, T initial = T{}> T& per_thread() {
  thread_local T value = initial;
  return value;
}

// Sets what a function refers to: using CategoryScope = ScopeOf<Category, current_category>.
template <class T, T& (*place)()> struct ScopeOf : Scoped<T> {
  explicit ScopeOf(T value) : Scoped<T>(place(), std::move(value)) {}
};

}  // namespace gradual
