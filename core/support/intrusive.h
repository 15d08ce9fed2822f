// A reference-counted pointer for objects that carry their own count: T has `std::atomic<std::uint32_t> refs`
// and a static `void destroy(T*)`.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>
#include <utility>
#if __has_include(<sys/single_threaded.h>)  // glibc 2.32
#include <sys/single_threaded.h>
#endif

namespace gradual {

// True if no other thread has been started; false if the C library cannot tell.
inline bool only_thread() {
#if __has_include(<sys/single_threaded.h>)
  return __libc_single_threaded;
#else
  return false;
#endif
}

// Adds to a count that other threads may change too, and returns the old value. A locked instruction costs as much as a
// small op's kernel, so a process with one thread avoids it.
template <class T>
T add_to(std::atomic<T>& count, std::type_identity_t<T> by, std::memory_order order = std::memory_order_relaxed) {
  if (!only_thread()) return count.fetch_add(by, order);
  const T before = count.load(std::memory_order_relaxed);
  count.store(static_cast<T>(before + by), std::memory_order_relaxed);
  return before;
}

template <class T> class Ref {
 public:
  constexpr Ref() = default;
  static Ref adopt(T* fresh) {  // takes over an object whose count is already one
    Ref r;
    r.p_ = fresh;
    return r;
  }
  static Ref share(T* p) {
    if (p) add_to(p->refs, 1);
    return adopt(p);
  }
  Ref(const Ref& o) : Ref(share(o.p_)) {}
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (!p_) return;
    // The last owner needs no locked instruction, because no other owner can change the count.
    if (p_->refs.load(std::memory_order_acquire) == 1 ||
        add_to(p_->refs, std::uint32_t(-1), std::memory_order_acq_rel) == 1)
      T::destroy(p_);
  }
  T* get() const { return p_; }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.p_ == b.p_; }

 private:
  T* p_ = nullptr;
};

}  // namespace gradual
