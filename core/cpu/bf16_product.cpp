#include "bf16_product.h"

#include <algorithm>
#include <type_traits>

#include "../error.h"
#include "../memory.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gradual::cpu {
namespace {

inline constexpr int kSide = 16, kDepth = 32;          // a tile: 16 rows (columns) and 32 places of k
inline constexpr std::int64_t kTile = kSide * kDepth;  // its numbers, 1 KiB
inline constexpr std::int64_t kPair = 2 * kSide;       // rows and columns of c at a time: two tiles of each operand
inline constexpr std::int64_t kSums = kPair * kPair;   // four tiles of c, one after the other
inline constexpr std::int64_t kBlockTiles =
    512 / kDepth;  // of k at a time: two tiles' columns of b fill 2/3 of the first cache
inline constexpr std::int64_t kBlockRows = 128, kBlockColumns = 256;  // of c, whose sums stay in the second cache
inline constexpr std::int64_t kPackedA = 4 << 20;  // bytes of a that are put in order at once, or kBlockRows rows

std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// Eight tile registers of 16 rows of 64 bytes: 0 to 3 hold c, 4 and 5 a, 6 and 7 b.
struct alignas(64) Configuration {
  std::uint8_t palette = 1, start = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
class TilesScope : Pinned {
 public:
  TilesScope() {
    static constexpr Configuration kConfiguration;
    asm volatile("ldtilecfg %0" ::"m"(kConfiguration));
  }
  ~TilesScope() { asm volatile("tilerelease"); }
};

// By hand, for compilers differ in their intrinsics, and g++ 12's do not say that they read memory.
template <int kT> [[gnu::always_inline]] inline void load(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kT) : "memory");
}
template <int kT> [[gnu::always_inline]] inline void load_passing(const void* from, std::int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kT) : "memory");
}
template <int kT> [[gnu::always_inline]] inline void store(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kT) : "memory");
}
template <int kC, int kA, int kB> [[gnu::always_inline]] inline void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

// Tiles of 16 lines follow each other along k; `next` numbers on are those of the next 16 lines.
struct Tiles {
  const BFloat16* data;
  std::int64_t next;
  Tiles at(std::int64_t line, std::int64_t tile) const { return {data + line / kSide * next + tile * kTile, next}; }
};

// c += a b for kR x kC tiles of c, over `tiles` tiles of a's rows and b's columns. `first`: c begins with 16 (32) numbers for
// every row, the bias. The rows of a pass by, b's columns are wanted again.
template <int kR, int kC>
void multiply(const Tiles& a, const Tiles& b, std::int64_t tiles, const float* first, float* c) {
  constexpr std::int64_t kRow = 64, kOf = kSide * kSide;  // bytes of a tile's row, numbers of a tile of c
  const std::int64_t step = first ? 0 : kRow;
  const float* const from = first ? first : c;
  load<0>(from, step);
  if constexpr (kC > 1) load<1>(from + (first ? kSide : kOf), step);
  if constexpr (kR > 1) load<2>(first ? first : c + 2 * kOf, step);
  if constexpr (kR > 1 && kC > 1) load<3>(first ? first + kSide : c + 3 * kOf, step);
  const BFloat16 *at_a = a.data, *at_b = b.data;
  for (std::int64_t t = 0; t < tiles; ++t, at_a += kTile, at_b += kTile) {
    load<6>(at_b, kRow);
    load_passing<4>(at_a, kRow);
    add_product<0, 4, 6>();
    if constexpr (kR > 1) {
      load_passing<5>(at_a + a.next, kRow);
      add_product<2, 5, 6>();
    }
    if constexpr (kC > 1) {
      load<7>(at_b + b.next, kRow);
      add_product<1, 4, 7>();
    }
    if constexpr (kR > 1 && kC > 1) add_product<3, 5, 7>();
  }
  store<0>(c, kRow);
  if constexpr (kC > 1) store<1>(c + kOf, kRow);
  if constexpr (kR > 1) store<2>(c + 2 * kOf, kRow);
  if constexpr (kR > 1 && kC > 1) store<3>(c + 3 * kOf, kRow);
}

// What follows is compiled for AVX-512, which every processor with AMX has.

// Rows of 16 numbers of 32 bits change places with columns: pairs, fours, and then the vectors' quarters.
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline void transpose(__m512i (&rows)[kSide]) {
  __m512i pairs[kSide], fours[kSide];
#pragma GCC unroll 8
  for (int i = 0; i < kSide; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kSide; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {  // quarter q of fours[4 g + c] holds column 4 q + c of rows 4 g to 4 g + 3
    const __m512i even = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0x88);
    const __m512i odd = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0xdd);
    const __m512i even_below = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0x88);
    const __m512i odd_below = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0xdd);
    rows[c] = _mm512_shuffle_i32x4(even, even_below, 0x88);
    rows[4 + c] = _mm512_shuffle_i32x4(odd, odd_below, 0x88);
    rows[8 + c] = _mm512_shuffle_i32x4(even, even_below, 0xdd);
    rows[12 + c] = _mm512_shuffle_i32x4(odd, odd_below, 0xdd);
  }
}

// Rows of a or columns of b: number p of line i is data[i * line + p * place].
struct Lines {
  const BFloat16* data;
  std::int64_t line, place;
};

// 32 places of 16 lines as a tile, zeros where there are fewer. a's rows hold a line each; b's 16 rows hold two places each
// of all lines.
template <bool kOfB>
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline void pack_tile(const Lines& from,
                                                                                       std::int64_t lines,
                                                                                       std::int64_t places,
                                                                                       BFloat16* to) {
  __m512i rows[kSide];
  const bool along = from.place == 1;  // a line's numbers are next to each other
  if (along) {
    const auto some = static_cast<__mmask32>((std::uint64_t{1} << std::min<std::int64_t>(places, kDepth)) - 1);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i)
      rows[i] = i < lines ? _mm512_maskz_loadu_epi16(some, from.data + i * from.line) : _mm512_setzero_si512();
  } else {
    const auto some = static_cast<__mmask16>((1U << std::min<std::int64_t>(lines, kSide)) - 1);
#pragma GCC unroll 16
    for (int i = 0; i < kSide; ++i) {
      const BFloat16* const at = from.data + 2 * i * from.place;
      __m512i even = _mm512_setzero_si512(), odd = even;
      if (2 * i < places) even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, at));
      if (2 * i + 1 < places) odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, at + from.place));
      rows[i] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
    }
  }
  if (along == kOfB) transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) _mm512_store_si512(to + i * kDepth, rows[i]);
}

// Tiles of 16 lines follow each other along k. Two of them at a time, which share the lines of memory, in the order of memory:
// line by line or place by place.
template <bool kOfB>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void pack(const Lines& from, std::int64_t lines, std::int64_t k,
                                                       BFloat16* to) {
  const std::int64_t tiles = pieces(k, kDepth), pairs = pieces(lines, kPair);
  const bool along = from.place == 1;
  for (std::int64_t outer = 0; outer < (along ? pairs : tiles); ++outer)
    for (std::int64_t inner = 0; inner < (along ? tiles : pairs); ++inner) {
      const std::int64_t t = along ? inner : outer, pair = (along ? outer : inner) * kPair;
      for (std::int64_t i = pair; i < std::min(lines, pair + kPair); i += kSide)
        pack_tile<kOfB>({from.data + i * from.line + t * kDepth * from.place, from.line, from.place}, lines - i,
                        k - t * kDepth, to + (i * tiles / kSide + t) * kTile);
    }
}

// Sums in four tiles to where they belong, rounded as BFloat16(float) does: the tiles hold no subnormal numbers, which these
// instructions would make zeros.
template <class Tc>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void write(const float* sums, std::int64_t rows,
                                                                   std::int64_t columns, Tc* c, std::int64_t across,
                                                                   bool relu) {
  constexpr std::int64_t kOf = kSide * kSide;
  const auto some = static_cast<__mmask32>((std::uint64_t{1} << columns) - 1);
  const auto left = static_cast<__mmask16>(some), right = static_cast<__mmask16>(some >> kSide);
  for (std::int64_t i = 0; i < rows; ++i, c += across) {
    const float* const row = sums + i / kSide * 2 * kOf + i % kSide * kSide;
    __m512 low = _mm512_load_ps(row), high = _mm512_load_ps(row + kOf);
    if (relu) {
      low = _mm512_max_ps(_mm512_setzero_ps(), low);  // of NaN and 0 the second, NaN
      high = _mm512_max_ps(_mm512_setzero_ps(), high);
    }
    if constexpr (std::is_same_v<Tc, float>) {
      _mm512_mask_storeu_ps(c, left, low);
      if (right) _mm512_mask_storeu_ps(c + kSide, right, high);
    } else {
      _mm512_mask_storeu_epi16(c, some, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }
}

// Where a product keeps what it has put in order, and sums.
struct Room {
  std::int64_t rows, b, sums, bias, all;  // of a at a time; bytes before each, and of all
  template <class Tc> explicit Room(const Bf16Product<Tc>& p) {
    const std::int64_t tiles = pieces(p.k, kDepth), line = tiles * kDepth * 2;
    // All columns at once want a's rows one time alone: then a block of them, which the second cache keeps.
    rows = p.n <= kBlockColumns ? kBlockRows : std::max(kBlockRows, kPackedA / line / kBlockRows * kBlockRows);
    const std::int64_t columns = std::min(kBlockColumns, pieces(p.n, kPair) * kPair);
    b = pieces(std::min(rows, p.m), kSide) * kSide * line;
    sums = b + columns * line;
    const std::int64_t block = tiles > kBlockTiles ? std::min(kBlockRows, pieces(p.m, kPair) * kPair) * columns : kSums;
    bias = sums + block * 4;
    all = bias + kBlockColumns * 4;
  }
};

// A block of c: sums stay in `sums` until all of k is added.
template <class Tc>
void block(const Bf16Product<Tc>& p, const Tiles& a, const Tiles& b, const float* bias, float* sums) {
  const std::int64_t tiles = pieces(p.k, kDepth);
  for (std::int64_t t = 0; t < tiles; t += kBlockTiles) {
    const std::int64_t some = std::min(kBlockTiles, tiles - t);
    float* c = sums;
    for (std::int64_t j = 0; j < p.n; j += kPair)
      for (std::int64_t i = 0; i < p.m; i += kPair) {
        const float* const first = t == 0 ? bias + j : nullptr;
        const bool high = p.m - i > kSide, wide = p.n - j > kSide;
        if (high && wide) multiply<2, 2>(a.at(i, t), b.at(j, t), some, first, c);
        else if (high) multiply<2, 1>(a.at(i, t), b.at(j, t), some, first, c);
        else if (wide) multiply<1, 2>(a.at(i, t), b.at(j, t), some, first, c);
        else multiply<1, 1>(a.at(i, t), b.at(j, t), some, first, c);
        if (t + some == tiles)
          write(c, std::min(kPair, p.m - i), std::min(kPair, p.n - j), p.c + i * p.across + j, p.across, p.relu);
        if (tiles > kBlockTiles) c += kSums;
      }
  }
}

bool may_use_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kTiles = 1U << 24, kBf16 = 1U << 22;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0 || (d & kBf16) == 0) return false;
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  // Linux saves the tiles of a process that asked for it (Documentation/arch/x86/xstate.rst).
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

bool has_amx() {
  static const bool may = may_use_amx();
  return may;
}
bool has_bf16_product() { return has_amx() && cpu_isa() == CpuIsa::avx512; }

template <class Tc> void bf16_product(const Bf16Product<Tc>& p) {
  const Room room(p);
  const Scratch scratch(static_cast<std::size_t>(room.all));
  char* const own = scratch.as<char>();
  auto *const a = reinterpret_cast<BFloat16*>(own), *const b = reinterpret_cast<BFloat16*>(own + room.b);
  auto *const sums = reinterpret_cast<float*>(own + room.sums), *const bias = reinterpret_cast<float*>(own + room.bias);
  std::fill_n(bias, kBlockColumns, 0.0F);
  const TilesScope scope;
  const std::int64_t line = pieces(p.k, kDepth) * kTile;
  for (std::int64_t i = 0; i < p.m; i += room.rows) {
    const std::int64_t rows = std::min(room.rows, p.m - i);
    pack<false>({p.a.data + i * p.a.row_stride, p.a.row_stride, p.a.col_stride}, rows, p.k, a);
    for (std::int64_t j = 0; j < p.n; j += kBlockColumns) {
      Bf16Product<Tc> part = p;
      part.n = std::min(kBlockColumns, p.n - j);
      const bool packed = i > 0 && p.n <= kBlockColumns;
      if (!packed) pack<true>({p.b.data + j * p.b.col_stride, p.b.col_stride, p.b.row_stride}, part.n, p.k, b);
      if (p.bias) std::copy_n(p.bias + j, part.n, bias);
      for (std::int64_t r = 0; r < rows; r += kBlockRows) {
        part.m = std::min(kBlockRows, rows - r);
        part.c = p.c + (i + r) * p.across + j;
        block(part, Tiles{a, line}.at(r, 0), {b, line}, bias, sums);
      }
    }
  }
}

}  // namespace gradual::cpu

#else

namespace gradual::cpu {

bool has_amx() { return false; }
bool has_bf16_product() { return false; }
template <class Tc> void bf16_product(const Bf16Product<Tc>&) { fail("internal: this build has no bf16_product"); }

}  // namespace gradual::cpu

#endif

namespace gradual::cpu {

template void bf16_product(const Bf16Product<float>& p);
template void bf16_product(const Bf16Product<BFloat16>& p);

}  // namespace gradual::cpu
