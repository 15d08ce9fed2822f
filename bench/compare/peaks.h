// What the machine can do at most, measured: multiply-adds in registers, and a copy between arrays beyond the caches.
#pragma once

#include "worker.h"

namespace compare {

// of: "f32" (fused multiply-adds), "bf16" (AVX512-BF16 dot products) or "stream" (bytes read and written). The facts
// hold "work", FLOP or bytes a step, and "how", the instructions used. Throws where this CPU has no way known here.
std::unique_ptr<Job> machine_peak(const std::string& of, int threads);

}  // namespace compare
