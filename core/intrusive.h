// A reference-counted pointer for objects that carry their own count: T has `std::atomic<std::uint32_t> refs`
// and a static `void destroy(T*)`.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace gradual {

template <class T> class Ref {
 public:
  constexpr Ref() = default;
  static Ref adopt(T* fresh) {  // takes over a count that is already one
    Ref r;
    r.p_ = fresh;
    return r;
  }
  static Ref share(T* p) {
    if (p) p->refs.fetch_add(1, std::memory_order_relaxed);
    return adopt(p);
  }
  Ref(const Ref& o) : p_(o.p_) {
    if (p_) p_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() {
    if (!p_) return;
    // The last owner needs no locked instruction: nobody else is there to change the count.
    if (p_->refs.load(std::memory_order_acquire) == 1 || p_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1)
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
