// Stacks for a program that was started with a small stack limit (ulimit -s).
#pragma once

#include <functional>

namespace gradual::lab {

// Runs `work`, which must not throw, and returns when it is done. If the stack limit is below 1 MiB, `work` runs on a
// thread with a stack of 8 MiB, and so does every thread that is started later: kernels and libraries need space for
// their frames, and the size depends on the processor (AMX: 8 KiB for the registers alone).
void on_large_stack(const std::function<void()>& work);

}  // namespace gradual::lab
