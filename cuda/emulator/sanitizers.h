// Reports fibers to sanitizers. Does nothing in other builds.
//
// ThreadSanitizer sees a thread of a block as a thread. Only a barrier of the block or the end of a launch orders the
// accesses of two threads, not the switches between fibers. So it finds the races that compute-sanitizer's racecheck
// finds, also in device memory. An exchange in a warp orders nothing, as in CUDA.
#pragma once

#include <cstddef>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define GRADUAL_SANITIZE_ADDRESS
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef GRADUAL_SANITIZE_THREAD  // set by cmake/cuda.cmake for fibers.cpp and streams.cpp, which are not instrumented
#include <sanitizer/tsan_interface.h>
#endif

namespace gradual::cuda::emulator {

// AddressSanitizer: which stack is used.
#ifdef GRADUAL_SANITIZE_ADDRESS
inline void leave_stack(void** fake_stack, const void* next, std::size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, next, bytes);
}
inline void arrive_on_stack(void* fake_stack, const void** last, std::size_t* bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, last, bytes);
}
#else
inline void leave_stack(void**, const void*, std::size_t) {}
inline void arrive_on_stack(void*, const void**, std::size_t*) {}
#endif

// ThreadSanitizer: the running thread; accesses before release(at) happen before those after acquire(at).
#ifdef GRADUAL_SANITIZE_THREAD
inline constexpr bool kFindRaces = true;
inline void* new_thread() { return __tsan_create_fiber(0); }
inline void drop_thread(void* thread) { __tsan_destroy_fiber(thread); }
inline void* this_thread() { return __tsan_get_current_fiber(); }
inline void become(void* thread) { __tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync); }
inline void acquire(void* at) { __tsan_acquire(at); }
inline void release(void* at) { __tsan_release(at); }
#else
inline constexpr bool kFindRaces = false;
inline void* new_thread() { return nullptr; }
inline void drop_thread(void*) {}
inline void* this_thread() { return nullptr; }
inline void become(void*) {}
inline void acquire(void*) {}
inline void release(void*) {}
#endif

}  // namespace gradual::cuda::emulator
