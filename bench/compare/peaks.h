// What the machine can do at most, measured: multiply-adds in registers, and loops over arrays beyond the caches.
#pragma once

#include "worker.h"

namespace compare {

// of: "f32" (fused multiply-adds), "bf16" (AVX512-BF16 dot products), or of STREAM's loops (McCalpin 1995), in bytes
// read and written, "stream" (copy: as many read as written) or "stream_add" (a + b: two read for one written). The
// facts hold "work", FLOP or bytes a step, and "how", the instructions used. Throws where this CPU has no way known
// here.
std::unique_ptr<Job> machine_peak(const std::string& of, int threads);

}  // namespace compare
