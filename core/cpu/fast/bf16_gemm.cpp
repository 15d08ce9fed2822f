#include "bf16_gemm.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "../../support/error.h"
#include "../../support/multiversion.h"
#include "../../tensor/memory.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace gradual::cpu {
namespace {

// Both kernels read tiles in the layout of AMX: 16 rows of a, or columns of b, by 32 values of k.
inline constexpr int kSide = 16;
inline constexpr int kDepth = 32;
inline constexpr std::int64_t kTile = kSide * kDepth;  // elements of a tile of a or b, 1 KiB
inline constexpr std::int64_t kPair = 2 * kSide;       // rows of c computed together: two tiles of a
inline constexpr std::int64_t kOf = kSide * kSide;     // elements of a tile of c
inline constexpr std::int64_t kBlockRows = 128;        // rows of a block of c, whose sums stay in the L2 cache
inline constexpr std::int64_t kPackedA = 4 << 20;      // bytes of a that are packed at once; at least kBlockRows rows

std::int64_t pieces(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// A packed operand. A line is a row of a or a column of b. The tiles of 16 lines are adjacent along k; those of the
// next 16 lines begin `next` elements later.
struct Tiles {
  const BFloat16* data;
  std::int64_t next;
  Tiles at(std::int64_t line, std::int64_t tile) const { return {data + line / kSide * next + tile * kTile, next}; }
};

// c += a b for at most kPair rows and a kernel's columns, over k products. If `first` is not null, each row of c starts
// from it, the bias. c's tiles are adjacent, those of its upper rows first; each row of tiles has space for all of the
// kernel's columns.
struct Sums {
  std::int64_t rows, columns, k;
  const float* first;  // or null
  float* c;
};

// Inline assembly, because the intrinsics of compilers differ, and those of g++ 12 do not declare that they read
// memory.
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

// Eight tile registers with 16 rows of 64 bytes. Registers 0 to 3 hold c, 4 and 5 hold a, 6 and 7 hold b.
struct alignas(64) Configuration {
  std::uint8_t palette = 1;
  std::uint8_t start = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

class Amx : Pinned {
 public:
  static constexpr std::int64_t kColumns = kPair;     // columns of c: of a multiply
  static constexpr std::int64_t kBlockColumns = 256;  // of a block
  // Tiles along k: two columns of tiles of b fill 2/3 of the L1 cache.
  static constexpr std::int64_t kBlockTiles = 512 / kDepth;
  Amx() {
    static constexpr Configuration kConfiguration;
    asm volatile("ldtilecfg %0" ::"m"(kConfiguration));
  }
  ~Amx() { asm volatile("tilerelease"); }
  static std::int64_t columns(std::int64_t rest) { return std::min(rest, kColumns); }
  static void multiply(const Tiles& a, const Tiles& b, const Sums& s) {
    const std::int64_t tiles = pieces(s.k, kDepth);
    const bool high = s.rows > kSide;
    const bool wide = s.columns > kSide;
    if (high && wide) multiply<2, 2>(a, b, tiles, s.first, s.c);
    else if (high) multiply<2, 1>(a, b, tiles, s.first, s.c);
    else if (wide) multiply<1, 2>(a, b, tiles, s.first, s.c);
    else multiply<1, 1>(a, b, tiles, s.first, s.c);
  }

 private:
  // Computes kR x kC tiles of c. The next rows use b's tiles again; a's tiles are loaded with the hint not to cache
  // them.
  template <int kR, int kC>
  static void multiply(const Tiles& a, const Tiles& b, std::int64_t tiles, const float* first, float* c) {
    constexpr std::int64_t kRow = 64;  // bytes of a tile's row
    const std::int64_t step = first ? 0 : kRow;
    const float* const from = first ? first : c;
    load<0>(from, step);
    if constexpr (kC > 1) load<1>(from + (first ? kSide : kOf), step);
    if constexpr (kR > 1) load<2>(first ? first : c + 2 * kOf, step);
    if constexpr (kR > 1 && kC > 1) load<3>(first ? first + kSide : c + 3 * kOf, step);
    const BFloat16* at_a = a.data;
    const BFloat16* at_b = b.data;
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
};

// VDPBF16PS adds two products to each of 16 sums. Eight rows of a and three columns of tiles of b have 24 vectors of
// sums: 24 instructions for 11 loads, and enough independent sums for two instructions per cycle.
struct Dots {
  static constexpr std::int64_t kColumns = 3 * kSide;
  static constexpr std::int64_t kBlockColumns = 384;
  static constexpr std::int64_t kBlockTiles = 256 / kDepth;  // three columns of tiles of b fill half of the L1 cache
  // 49 to 64 columns are cut after 32, not after 48: 16 columns need more loads than multiply-adds.
  static std::int64_t columns(std::int64_t rest) {
    return rest > kColumns && rest <= 2 * kPair ? kPair : std::min(rest, kColumns);
  }
  static void multiply(const Tiles& a, const Tiles& b, const Sums& s) {
    if (s.columns > kPair) strip<3>(a, b, s);
    else if (s.columns > kSide) strip<2>(a, b, s);
    else strip<1>(a, b, s);
  }

 private:
  // All rows and kC columns of tiles.
  template <int kC> static void strip(const Tiles& a, const Tiles& b, const Sums& s) {
    constexpr int kMost = kC == 1 ? kSide : kSide / 2;
    for (std::int64_t i = 0; i < s.rows; i += kMost)
      [&]<int... kR>(std::integer_sequence<int, kR...>) {
        const std::int64_t rows = std::min<std::int64_t>(kMost, s.rows - i);
        static_cast<void>(((rows == kMost - kR && (multiply<kMost - kR, kC>(a, b, i, s), true)) || ...));
      }(std::make_integer_sequence<int, kMost>());
  }
  // kRows rows of a tile, from `row` on, and kC columns of tiles.
  template <int kRows, int kC>
  [[gnu::target("avx512f")]] static void multiply(const Tiles& a, const Tiles& b, std::int64_t row, const Sums& s) {
    float* const c = s.c + row / kSide * (kColumns / kSide) * kOf + row % kSide * kSide;
    const float* const from = s.first ? s.first : c;
    const std::int64_t down = s.first ? 0 : kSide;
    const std::int64_t right = s.first ? kSide : kOf;
    __m512 sums[kRows][kC];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < kC; ++j) sums[i][j] = _mm512_loadu_ps(from + i * down + j * right);
    const BFloat16* at_a = a.at(row, 0).data + row % kSide * kDepth;
    const BFloat16* at_b = b.data;
    for (std::int64_t rest = pieces(s.k, 2); rest > 0; rest -= kSide, at_a += kTile - kDepth) {
      for (std::int64_t p = std::min<std::int64_t>(rest, kSide); p > 0; --p, at_a += 2, at_b += kDepth) {
        __m512i columns[kC];
#pragma GCC unroll 3
        for (int j = 0; j < kC; ++j) columns[j] = _mm512_load_si512(at_b + j * b.next);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          std::int32_t pair;
          std::memcpy(&pair, at_a + i * kDepth, sizeof(pair));
          const __m512i row_of_a = _mm512_set1_epi32(pair);
#pragma GCC unroll 3
          for (int j = 0; j < kC; ++j) {
            __m512 sum = sums[i][j];  // a copy: g++ 12 would keep sums[i][j] in memory
            asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(row_of_a), "v"(columns[j]));  // the intrinsic crashes clang 16
            sums[i][j] = sum;
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 3
      for (int j = 0; j < kC; ++j) _mm512_store_ps(c + i * kSide + j * kOf, sums[i][j]);
  }
};

// Transposes 16 x 16 elements of 32 bits: interleaves pairs, then fours, then the quarters of vectors.
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

// Rows of a or columns of b: element p of line i is data[i * line + p * place].
struct Lines {
  const BFloat16* data;
  std::int64_t line, place;
};

// Packs 32 elements of each of 16 lines as a tile; missing elements become 0. A row of a tile of a holds one line; a
// row of a tile of b holds two elements of every line.
template <bool kOfB>
[[gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline]] inline void pack_tile(const Lines& from,
                                                                                       std::int64_t lines,
                                                                                       std::int64_t places,
                                                                                       BFloat16* to) {
  __m512i rows[kSide];
  const bool along = from.place == 1;  // the elements of a line are adjacent
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
      __m512i even = _mm512_setzero_si512();
      __m512i odd = even;
      if (2 * i < places) even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, at));
      if (2 * i + 1 < places) odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, at + from.place));
      rows[i] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
    }
  }
  if (along == kOfB) transpose(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) _mm512_store_si512(to + i * kDepth, rows[i]);
}

// Packs an operand as Tiles, in its memory order: along the lines or across them. Two groups of 16 lines are packed
// together; if lines are adjacent, the groups share cache lines.
template <bool kOfB>
[[gnu::target("avx512f,avx512bw,avx512vl")]] void pack(const Lines& from, std::int64_t lines, std::int64_t k,
                                                       BFloat16* to) {
  const std::int64_t tiles = pieces(k, kDepth);
  const std::int64_t pairs = pieces(lines, kPair);
  const bool along = from.place == 1;
  for (std::int64_t outer = 0; outer < (along ? pairs : tiles); ++outer)
    for (std::int64_t inner = 0; inner < (along ? tiles : pairs); ++inner) {
      const std::int64_t t = along ? inner : outer;
      const std::int64_t pair = (along ? outer : inner) * kPair;
      for (std::int64_t i = pair; i < std::min(lines, pair + kPair); i += kSide)
        pack_tile<kOfB>({from.data + i * from.line + t * kDepth * from.place, from.line, from.place}, lines - i,
                        k - t * kDepth, to + (i * tiles / kSide + t) * kTile);
    }
}

// Writes sums from tiles to c; the tiles of the next 16 rows begin `next` elements later. Rounding is that of
// BFloat16(float): the instruction turns subnormal numbers into 0, but sums have none.
template <class Tc>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512bf16")]] void write(const float* sums, std::int64_t next,
                                                                   std::int64_t rows, std::int64_t columns, Tc* c,
                                                                   std::int64_t across, bool relu) {
  for (std::int64_t j = 0; j < columns; j += kPair) {
    const auto some = static_cast<__mmask32>((std::uint64_t{1} << std::min(kPair, columns - j)) - 1);
    const auto left = static_cast<__mmask16>(some);
    const auto right = static_cast<__mmask16>(some >> kSide);
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* const row = sums + i / kSide * next + i % kSide * kSide + j * kSide;
      Tc* const to = c + i * across + j;
      __m512 low = _mm512_load_ps(row);
      __m512 high = _mm512_maskz_load_ps(right, row + kOf);
      if (relu) {
        low = _mm512_max_ps(_mm512_setzero_ps(), low);  // max(0, NaN) is the second operand, NaN
        high = _mm512_max_ps(_mm512_setzero_ps(), high);
      }
      if constexpr (std::is_same_v<Tc, float>) {
        _mm512_mask_storeu_ps(to, left, low);
        if (right) _mm512_mask_storeu_ps(to + kSide, right, high);
      } else {
        _mm512_mask_storeu_epi16(to, some, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
      }
    }
  }
}

// The scratch memory of a product: packed a, packed b, sums, bias.
template <class Kernel> struct Room {
  std::int64_t rows, b, sums, bias, all;  // rows of a packed at once; offsets of b, sums and bias; size in bytes
  template <class Tc> explicit Room(const Bf16Product<Tc>& p) {
    const std::int64_t tiles = pieces(p.k, kDepth);
    const std::int64_t line = tiles * kDepth * 2;
    // If all columns fit in a block, each row of a is needed once: then only kBlockRows rows are packed at a time,
    // which stay in the L2 cache.
    rows = p.n <= Kernel::kBlockColumns ? kBlockRows : std::max(kBlockRows, kPackedA / line / kBlockRows * kBlockRows);
    const std::int64_t columns = std::min(Kernel::kBlockColumns, pieces(p.n, kSide) * kSide);
    b = pieces(std::min(rows, p.m), kSide) * kSide * line;
    sums = b + columns * line;
    const std::int64_t parts = pieces(std::min(kBlockRows, p.m), kPair) * pieces(columns, Kernel::kColumns);
    bias = sums + (tiles > Kernel::kBlockTiles ? parts : 1) * kPair * Kernel::kColumns * 4;
    all = bias + Kernel::kBlockColumns * 4;
  }
};

// Computes a block of c. The sums stay in `sums` until all of k is added.
template <class Kernel, class Tc>
void block(const Bf16Product<Tc>& p, const Tiles& a, const Tiles& b, const float* bias, float* sums) {
  constexpr std::int64_t kBlock = Kernel::kBlockTiles;
  constexpr std::int64_t kSums = kPair * Kernel::kColumns;
  const std::int64_t tiles = pieces(p.k, kDepth);
  for (std::int64_t t = 0; t < tiles; t += kBlock) {
    const std::int64_t k = std::min(kBlock * kDepth, p.k - t * kDepth);
    float* c = sums;
    for (std::int64_t j = 0, columns; j < p.n; j += columns) {
      columns = Kernel::columns(p.n - j);
      for (std::int64_t i = 0; i < p.m; i += kPair) {
        const std::int64_t rows = std::min(kPair, p.m - i);
        Kernel::multiply(a.at(i, t), b.at(j, t), {rows, columns, k, t == 0 ? bias + j : nullptr, c});
        if (t + kBlock >= tiles) write(c, kSums / 2, rows, columns, p.c + i * p.across + j, p.across, p.relu);
        if (tiles > kBlock) c += kSums;
      }
    }
  }
}

template <class Kernel, class Tc> void multiply(const Bf16Product<Tc>& p) {
  const Room<Kernel> room(p);
  const Scratch scratch(static_cast<std::size_t>(room.all));
  char* const own = scratch.as<char>();
  auto* const a = reinterpret_cast<BFloat16*>(own);
  auto* const b = reinterpret_cast<BFloat16*>(own + room.b);
  auto* const sums = reinterpret_cast<float*>(own + room.sums);
  auto* const bias = reinterpret_cast<float*>(own + room.bias);
  std::fill_n(bias, Kernel::kBlockColumns, 0.0F);
  [[maybe_unused]] const Kernel kernel{};
  const std::int64_t line = pieces(p.k, kDepth) * kTile;
  for (std::int64_t i = 0; i < p.m; i += room.rows) {
    const std::int64_t rows = std::min(room.rows, p.m - i);
    pack<false>({p.a.data + i * p.a.row_stride, p.a.row_stride, p.a.col_stride}, rows, p.k, a);
    for (std::int64_t j = 0; j < p.n; j += Kernel::kBlockColumns) {
      Bf16Product<Tc> part = p;
      part.n = std::min(Kernel::kBlockColumns, p.n - j);
      const bool packed = i > 0 && p.n <= Kernel::kBlockColumns;
      if (!packed) pack<true>({p.b.data + j * p.b.col_stride, p.b.col_stride, p.b.row_stride}, part.n, p.k, b);
      if (p.bias) std::copy_n(p.bias + j, part.n, bias);
      for (std::int64_t r = 0; r < rows; r += kBlockRows) {
        part.m = std::min(kBlockRows, rows - r);
        part.c = p.c + (i + r) * p.across + j;
        block<Kernel>(part, Tiles{a, line}.at(r, 0), {b, line}, bias, sums);
      }
    }
  }
}

}  // namespace

bool has_bf16_product() { return cpu_isa() >= CpuIsa::avx512 && detail::has_avx512_bf16(); }

template <class Tc> void bf16_product(const Bf16Product<Tc>& p) {
  if (cpu_isa() == CpuIsa::amx) multiply<Amx>(p);
  else multiply<Dots>(p);
}

}  // namespace gradual::cpu

#else

namespace gradual::cpu {

bool has_bf16_product() { return false; }
template <class T> void bf16_product(const Bf16Product<T>&) { throw_error("internal: this build has no bf16_product"); }

}  // namespace gradual::cpu

#endif

namespace gradual::cpu {

template void bf16_product(const Bf16Product<float>& p);
template void bf16_product(const Bf16Product<BFloat16>& p);

}  // namespace gradual::cpu
