// The measured peaks of the machine: multiply-adds in registers, and loops over arrays beyond the caches.
#pragma once

#include "worker.h"

namespace compare {

// of: "f32" (fused multiply-adds), "bf16" (AVX512-BF16 dot products), or loops of STREAM (McCalpin 1995), in bytes read
// and written: "stream" (copy: as many read as written), "stream_add" (a + b: two read for one written). The facts hold
// "work", FLOP or bytes per step, and "how", the instructions used. Throws if the CPU has no known way.
std::unique_ptr<Job> machine_peak(const std::string& of, int threads);

}  // namespace compare
