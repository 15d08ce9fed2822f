// Stacks for a program that a shell started with a small one (ulimit -s).
#pragma once

#include <functional>

namespace gradual::lab {

// Runs `work`, which does not throw, and returns when it is done. Where the limit of stacks is below 1 MiB, `work` runs
// on a thread with a stack of 8 MiB, and so does every thread that is started from then on: kernels and libraries need
// room for their frames, how much differs by processor (AMX: 8 KiB for the registers alone).
void on_large_stack(const std::function<void()>& work);

}  // namespace gradual::lab
