// Stores that bypass the caches, for results larger than the caches: a line is written without being read first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace gradual::cpu {

inline constexpr std::size_t kStreamed = 16 << 20;  // bytes of the smallest result that is streamed

// Copies bytes. `to` and `bytes` are multiples of 64. Call stream_end() before another thread reads the bytes.
inline void stream(const void* from, void* to, std::size_t bytes) {
  const auto* in = static_cast<const char*>(from);
  auto* out = static_cast<char*>(to);
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
#else
  std::memmove(out, in, bytes);
#endif
}
inline void stream_end() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace gradual::cpu
