// A value that is restored: what nearly every RAII mode of the library is.
#pragma once

#include <type_traits>
#include <utility>

namespace gradual {

// A base of what is neither copied nor moved.
struct Pinned {
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
};

// Sets `place` and puts the old value back when it goes, on exceptions too.
template <class T> class Scoped : Pinned {
 public:
  Scoped(T& place, std::type_identity_t<T> value) : place_(place), saved_(std::exchange(place, std::move(value))) {}
  ~Scoped() { place_ = std::move(saved_); }

 private:
  T& place_;
  T saved_;
};

}  // namespace gradual
