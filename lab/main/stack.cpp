#include "stack.h"

#include <pthread.h>
#include <sys/resource.h>

#include <thread>

namespace gradual::lab {

void on_large_stack(const std::function<void()>& work) {
#ifdef __GLIBC__
  constexpr std::size_t kSmall = 1 << 20, kLarge = 8 << 20;
  rlimit limit{};
  pthread_attr_t attributes;
  if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kSmall && pthread_attr_init(&attributes) == 0) {
    const bool set =
        pthread_attr_setstacksize(&attributes, kLarge) == 0 && pthread_setattr_default_np(&attributes) == 0;
    pthread_attr_destroy(&attributes);
    if (set) return std::thread(work).join();
  }
#endif
  work();
}

}  // namespace gradual::lab
