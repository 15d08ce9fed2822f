// A fiber: code on its own stack.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <cstddef>

#include "../../core/support/error.h"
#include "sanitizers.h"

namespace gradual::cuda::emulator {

struct Fiber {
  static constexpr std::size_t kStack = 256 << 10;
  ucontext_t context;
  void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* thread = new_thread();

  Fiber() {
    if (stack == MAP_FAILED) throw_error("emulated CUDA: no memory for the stack of a thread");
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
    drop_thread(thread);
    munmap(stack, kStack);
  }
  // Starts at `entry` at the next switch.
  void begin(void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStack;
    makecontext(&context, entry, 0);
  }
};

}  // namespace gradual::cuda::emulator
