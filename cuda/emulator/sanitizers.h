// What sanitizers are told of fibers. In other builds nothing is called.
//
// To ThreadSanitizer a thread of a block is a thread. What one does comes before what another does where a barrier of the block
// lies between, or the end of the launch, and not because fibers take turns: so it finds what compute-sanitizer's racecheck
// looks for, and the same in the device's memory. An exchange in a warp orders nothing, as in CUDA.
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

// ThreadSanitizer: which thread runs, and that what came before release(at) comes before what follows acquire(at).
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
