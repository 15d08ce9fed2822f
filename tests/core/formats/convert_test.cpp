#include <doctest/doctest.h>
#include <gradual/core/formats/cast_element.h>
#include <gradual/core/formats/convert.h>
#include <gradual/core/formats/float_types.h>
#include <gradual/core/support/philox.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "format_reference.h"

#include "support/source_dir.h"

using namespace gradual;
using reference::format;
using reference::kNarrow;

namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

std::uint32_t encode_one(DType dtype, double value) { return reference::encode(dtype, std::vector<double>{value})[0]; }

// The scalar types of float_types.h.
std::uint32_t encode_scalar(DType dtype, float value) {
  switch (dtype) {
    case DType::f16: return Half(value).bits;
    case DType::bf16: return BFloat16(value).bits;
    case DType::f8e4m3fn: return Float8E4M3FN(value).bits;
    default: return Float8E5M2(value).bits;
  }
}

// Floats from random bits, and random values about the range of f16, where all formats have something to do.
std::vector<float> random_floats(std::size_t n, std::uint64_t stream) {
  std::vector<std::uint32_t> words(n);
  philox_fill(1, stream, 0, words.data(), static_cast<std::int64_t>(n));
  std::vector<float> floats(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t exponent = 127 - 27 + (words[i] >> 23) % 46;
    const std::uint32_t in_range = (words[i] & 0x807fffff) | exponent << 23;
    floats[i] = from_bits(i % 2 == 0 ? words[i] : in_range);
  }
  return floats;
}

}  // namespace

TEST_CASE("every 8- and 16-bit pattern widens exactly and comes back") {
  reference::for_each_isa([](CpuIsa isa) {
    for (const DType dtype : kNarrow) {
      CAPTURE(std::string(to_string(dtype)));
      CAPTURE(static_cast<int>(isa));
      const auto codes = reference::all_codes(dtype);
      const std::vector<float> values = reference::decode(dtype, codes);
      const std::vector<std::uint32_t> back = reference::encode(dtype, values);
      int failures = 0;
      for (const std::uint32_t code : codes) {
        const double expected = format(dtype).decode(code);
        const float value = values[code];
        if (format(dtype).is_nan(code)) {
          // A NaN keeps its sign and payload; on the way it became quiet.
          const std::uint32_t quiet = format(dtype).has_inf ? format(dtype).nan_code() : 0;
          failures += !(std::isnan(value) && back[code] == (code | quiet));
        } else {
          failures += !(value == expected && std::signbit(value) == std::signbit(expected) && back[code] == code);
        }
      }
      CHECK(failures == 0);
    }
  });
}

TEST_CASE("NaN codes") {
  struct Row {
    std::uint32_t bits, f16, bf16, e4m3fn, e5m2;
  };
  // The standard NaN, a negative one, payloads in the upper and in the lower bits, signalling ones.
  const Row rows[] = {{0x7fc00000, 0x7e00, 0x7fc0, 0x7f, 0x7e}, {0xffc00000, 0xfe00, 0xffc0, 0xff, 0xfe},
                      {0x7fe00000, 0x7f00, 0x7fe0, 0x7f, 0x7f}, {0x7fc00001, 0x7e00, 0x7fc0, 0x7f, 0x7e},
                      {0x7f800001, 0x7e00, 0x7fc0, 0x7f, 0x7e}, {0xff812345, 0xfe09, 0xffc1, 0xff, 0xfe},
                      {0x7fffffff, 0x7fff, 0x7fff, 0x7f, 0x7f}, {0xffffffff, 0xffff, 0xffff, 0xff, 0xff}};
  reference::for_each_isa([&](CpuIsa) {
    for (const Row& row : rows) {
      CAPTURE(row.bits);
      // Forty of them, so that both the vectors and the rest of a loop see one.
      const std::vector<float> nan(40, from_bits(row.bits));
      CHECK(reference::encode(DType::f16, nan) == std::vector<std::uint32_t>(40, row.f16));
      CHECK(reference::encode(DType::bf16, nan) == std::vector<std::uint32_t>(40, row.bf16));
      CHECK(reference::encode(DType::f8e4m3fn, nan) == std::vector<std::uint32_t>(40, row.e4m3fn));
      CHECK(reference::encode(DType::f8e5m2, nan) == std::vector<std::uint32_t>(40, row.e5m2));
    }
  });
  // A double's NaN goes the same way.
  CHECK(Half::from_double(std::bit_cast<double>(0x7ff8000000000000)).bits == 0x7e00);
  CHECK(Half::from_double(std::bit_cast<double>(0xfff0000000000001)).bits == 0xfe00);
  CHECK(Float8E4M3FN::from_double(std::bit_cast<double>(0xfff8000000000000)).bits == 0xff);
}

// What GPUs take in the place of their own conversion.
TEST_CASE("NaN between f32 and f64 by bits is what the processor makes of it") {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff812345u, 0x7fffffffu}) {
    CAPTURE(bits);
    volatile const float nan = from_bits(bits);
    const auto wide = static_cast<double>(nan);
    CHECK(std::bit_cast<std::uint64_t>(detail::nan_as_f64(from_bits(bits))) == std::bit_cast<std::uint64_t>(wide));
  }
  for (const std::uint64_t bits :
       {0x7ff8000000000000u, 0xfff8000000000000u, 0x7ff0000000000001u, 0xfff0123456789abcu, 0x7fffffffffffffffu}) {
    CAPTURE(bits);
    volatile const double nan = std::bit_cast<double>(bits);
    const auto narrow = static_cast<float>(nan);
    CHECK(std::bit_cast<std::uint32_t>(detail::nan_as_f32(std::bit_cast<double>(bits))) ==
          std::bit_cast<std::uint32_t>(narrow));
  }
}

TEST_CASE("known vectors of the formats") {
  struct Row {
    DType dtype;
    float value;
    std::uint32_t code;
  };
  const auto up = [](float x) { return std::nextafter(x, INFINITY); };
  using enum DType;
  const Row rows[] = {// ml_dtypes and the CUDA headers agree on these.
                      {f8e4m3fn, 448, 0x7e},
                      {f8e4m3fn, 464, 0x7e},
                      {f8e4m3fn, up(464), 0x7f},
                      {f8e4m3fn, 480, 0x7f},
                      {f8e4m3fn, 17, 0x58},
                      {f8e4m3fn, 19, 0x5a},
                      {f8e4m3fn, 248, 0x78},
                      {f8e4m3fn, 0x1p-10f, 0x00},
                      {f8e4m3fn, up(0x1p-10f), 0x01},
                      {f8e4m3fn, 1.5f * 0x1p-9f, 0x02},
                      {f8e4m3fn, 0x1.Ep-7f, 0x08},
                      {f8e4m3fn, -0.0f, 0x80},
                      {f8e4m3fn, INFINITY, 0x7f},
                      {f8e4m3fn, -INFINITY, 0xff},
                      {f8e4m3fn, 1.31640625f, 0x3b},  // 1.375; by way of bf16 it would be 1.25
                      {f8e5m2, 61439.996f, 0x7b},
                      {f8e5m2, 61440, 0x7c},
                      {f8e5m2, 0x1p-17f, 0x00},
                      {f8e5m2, 1.5f * 0x1p-16f, 0x02},
                      {f8e5m2, 9, 0x48},
                      {f8e5m2, 11, 0x4a},
                      {f8e5m2, -0.0f, 0x80},
                      {f8e5m2, -INFINITY, 0xfc},
                      {f16, 65519.996f, 0x7bff},
                      {f16, 65520, 0x7c00},
                      {f16, 0x1p-25f, 0x0000},
                      {f16, up(0x1p-25f), 0x0001},
                      {f16, 2049, 0x6800},
                      {f16, 2051, 0x6802},
                      {f16, -0.0f, 0x8000},
                      {f16, -INFINITY, 0xfc00},
                      {bf16, 257, 0x4380},
                      {bf16, 259, 0x4382},
                      {bf16, 0x1.FEp127f, 0x7f7f},
                      {bf16, 0x1.FFp127f, 0x7f80},
                      {bf16, std::nextafter(0x1.FFp127f, 0.0f), 0x7f7f},
                      {bf16, 0x1p-133f, 0x0001},
                      {bf16, 0x1p-134f, 0x0000},
                      {bf16, up(0x1p-134f), 0x0001},
                      {bf16, -0.0f, 0x8000}};
  reference::for_each_isa([&](CpuIsa) {
    for (const Row& row : rows) {
      CAPTURE(std::string(to_string(row.dtype)));
      CAPTURE(row.value);
      CHECK(reference::encode(row.dtype, std::vector<float>(40, row.value)) ==
            std::vector<std::uint32_t>(40, row.code));
      CHECK(encode_scalar(row.dtype, row.value) == row.code);
      CHECK(encode_one(row.dtype, row.value) == row.code);
    }
  });
  CHECK(encode_scalar(bf16, 1.31640625f) == 0x3fa8);
  CHECK(encode_scalar(f8e4m3fn, static_cast<float>(BFloat16(1.31640625f))) == 0x3a);  // rounded twice: 1.25
}

TEST_CASE("around every value and every midpoint between neighbours") {
  for (const DType dtype : kNarrow) {
    CAPTURE(std::string(to_string(dtype)));
    std::vector<float> floats;
    std::vector<double> doubles;
    const auto add = [&](double x) {
      for (const double signed_x : {x, -x}) {
        const auto narrow = static_cast<float>(signed_x);
        for (const float end : {0.0f, INFINITY}) floats.push_back(std::nextafter(narrow, std::copysign(end, narrow)));
        for (const double end : {0.0, HUGE_VAL})
          doubles.push_back(std::nextafter(signed_x, std::copysign(end, signed_x)));
        floats.push_back(narrow);
        doubles.push_back(signed_x);
      }
    };
    for (const double value : format(dtype).values) add(value);
    for (const double midpoint : format(dtype).midpoints) add(midpoint);
    reference::for_each_isa([&](CpuIsa isa) {
      CAPTURE(static_cast<int>(isa));
      const auto from_floats = reference::encode(dtype, floats);
      const auto from_doubles = reference::encode(dtype, doubles);
      int failures = 0;
      for (std::size_t i = 0; i < floats.size(); ++i) {
        failures += from_floats[i] != format(dtype).encode(floats[i]);
        failures += from_doubles[i] != format(dtype).encode(doubles[i]);
      }
      CHECK(failures == 0);
    });
  }
}

TEST_CASE("all paths and the scalar types give the same bits on millions of floats") {
  constexpr std::size_t kFloats = 1 << 21;
  for (const DType dtype : kNarrow) {
    CAPTURE(std::string(to_string(dtype)));
    const std::vector<float> floats = random_floats(kFloats, static_cast<std::uint64_t>(dtype));
    std::vector<std::uint32_t> scalar(kFloats);
    int failures = 0;
    for (std::size_t i = 0; i < kFloats; ++i) {
      scalar[i] = encode_scalar(dtype, floats[i]);
      const std::uint32_t expected = format(dtype).encode(floats[i]);
      failures += !(scalar[i] == expected || (std::isnan(floats[i]) && format(dtype).is_nan(scalar[i])));
    }
    CHECK(failures == 0);
    reference::for_each_isa([&](CpuIsa isa) {
      CAPTURE(static_cast<int>(isa));
      CHECK(reference::encode(dtype, floats) == scalar);
    });
  }
}

TEST_CASE("all paths agree on every upper half of a float") {
  // Lower halves at and about the ties of bf16, and none.
  for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    std::vector<float> floats(1 << 16);
    for (std::uint32_t high = 0; high < 1 << 16; ++high) floats[high] = from_bits(high << 16 | low);
    for (const DType dtype : kNarrow) {
      CAPTURE(std::string(to_string(dtype)));
      CAPTURE(low);
      std::vector<std::uint32_t> scalar(floats.size());
      for (std::size_t i = 0; i < floats.size(); ++i) scalar[i] = encode_scalar(dtype, floats[i]);
      reference::for_each_isa([&](CpuIsa) { CHECK(reference::encode(dtype, floats) == scalar); });
    }
  }
}

TEST_CASE("arrays of every length write just their elements") {
  const std::vector<float> floats = random_floats(80, 3);
  for (const DType dtype : kNarrow) {
    const std::size_t size = size_of(dtype);
    reference::for_each_isa([&](CpuIsa) {
      for (std::size_t n = 0; n <= 70; ++n) {
        std::vector<std::uint8_t> narrow(size * (n + 8), 0xa5);
        convert(DType::f32, floats.data(), dtype, narrow.data(), static_cast<std::int64_t>(n));
        const auto codes = reference::codes_of(dtype, narrow.data(), n);
        bool same = true;
        for (std::size_t i = 0; i < n; ++i) same = same && codes[i] == encode_scalar(dtype, floats[i]);
        for (std::size_t i = size * n; i < narrow.size(); ++i) same = same && narrow[i] == 0xa5;
        std::vector<float> wide(n + 8, 77.0f);
        convert(dtype, narrow.data(), DType::f32, wide.data(), static_cast<std::int64_t>(n));
        for (std::size_t i = 0; i < n; ++i) {
          const auto expected = static_cast<float>(format(dtype).decode(codes[i]));
          same = same && (std::isnan(expected) ? std::isnan(wide[i]) : wide[i] == expected);
        }
        for (std::size_t i = n; i < wide.size(); ++i) same = same && wide[i] == 77.0f;
        CHECK(same);
      }
    });
  }
}

TEST_CASE("doubles and 64-bit integers are rounded once") {
  // Just above the tie between 1 and the next f16: the nearest float is the tie itself, which goes down to 1.
  const double above_tie = 1 + 0x1p-11 + 0x1p-40;
  CHECK(Half(static_cast<float>(above_tie)).bits == 0x3c00);
  CHECK(Half::from_double(above_tie).bits == 0x3c01);
  CHECK(encode_one(DType::f16, above_tie) == 0x3c01);
  CHECK(encode_one(DType::f16, -(1 + 0x1.8p-10 - 0x1p-40)) == 0xbc01);
  CHECK(encode_one(DType::bf16, 1 + 0x1p-8 + 0x1p-50) == 0x3f81);
  CHECK(encode_one(DType::f8e4m3fn, 464 + 0x1p-40) == 0x7f);
  CHECK(encode_one(DType::f8e5m2, 61440 - 0x1p-30) == 0x7b);
  CHECK(encode_one(DType::bf16, 0x1p-134 + 0x1p-180) == 0x0001);
  CHECK(encode_one(DType::bf16, 5e-324) == 0x0000);
  CHECK(encode_one(DType::bf16, -5e-324) == 0x8000);
  CHECK(encode_one(DType::bf16, 1e300) == 0x7f80);
  CHECK(encode_one(DType::f16, 1e300) == 0x7c00);

  std::vector<std::uint32_t> words(1 << 20);
  philox_fill(5, 0, 0, words.data(), 1 << 20);
  std::vector<double> doubles(words.size() / 2);
  for (std::size_t i = 0; i < doubles.size(); ++i) {
    // Values near a tie of some format: few leading bits, zeros, then a disturbance far below or none.
    const double head =
        std::ldexp(1.0 + (words[2 * i] & 0xfff) * 0x1p-12, static_cast<int>(words[2 * i] >> 12) % 50 - 30);
    const double tail = std::ldexp(head, -20 - static_cast<int>(words[2 * i + 1] % 40));
    doubles[i] = (words[2 * i + 1] & 0x80000000) != 0 ? head + tail : tail - head;
  }
  for (const DType dtype : kNarrow) {
    const auto codes = reference::encode(dtype, doubles);
    int failures = 0;
    for (std::size_t i = 0; i < doubles.size(); ++i) failures += codes[i] != format(dtype).encode(doubles[i]);
    CHECK(failures == 0);
  }

  // 2^62 + 2^54 is a tie of bf16 and even below; one more is not representable in a float.
  const std::vector<std::int64_t> integers = {(1ll << 62) + (1ll << 54),
                                              (1ll << 62) + (1ll << 54) + 1,
                                              -(1ll << 62) - (1ll << 54) - 1,
                                              2049,
                                              2050,
                                              2051,
                                              65519,
                                              65520,
                                              -65520,
                                              std::numeric_limits<std::int64_t>::min(),
                                              0};
  const std::vector<std::uint32_t> bf16 = {0x5e80, 0x5e81, 0xde81, 0x4500, 0x4500, 0x4500,
                                           0x4780, 0x4780, 0xc780, 0xdf00, 0};
  const std::vector<std::uint32_t> f16 = {0x7c00, 0x7c00, 0xfc00, 0x6800, 0x6801, 0x6802,
                                          0x7bff, 0x7c00, 0xfc00, 0xfc00, 0};
  std::vector<std::uint16_t> out(integers.size());
  cast_and_store(DType::bf16, integers.data(), out.data(), 1, static_cast<std::int64_t>(integers.size()));
  CHECK(reference::codes_of(DType::bf16, out.data(), out.size()) == bf16);
  cast_and_store(DType::f16, integers.data(), out.data(), 1, static_cast<std::int64_t>(integers.size()));
  CHECK(reference::codes_of(DType::f16, out.data(), out.size()) == f16);
  const std::int64_t odd = (1ll << 24) + 1;
  float single = 0;
  cast_and_store(DType::f32, &odd, &single, 1, 1);
  CHECK(single == 0x1p24f);
}

TEST_CASE("ml_dtypes and NumPy give the same codes") {
  std::ifstream file(source_dir() + "/tests/golden/conversions.csv");
  REQUIRE(file.good());
  std::string line;
  std::getline(file, line);
  REQUIRE(line == "f32,f16,bf16,f8e4m3fn,f8e5m2");
  std::vector<float> floats;
  std::array<std::vector<std::uint32_t>, 4> expected;
  while (std::getline(file, line)) {
    char* at = line.data();
    floats.push_back(from_bits(static_cast<std::uint32_t>(std::strtoul(at, &at, 16))));
    for (auto& column : expected) column.push_back(static_cast<std::uint32_t>(std::strtoul(at + 1, &at, 16)));
  }
  CHECK(floats.size() > 3000);
  reference::for_each_isa([&](CpuIsa) {
    for (std::size_t i = 0; i < kNarrow.size(); ++i) CHECK(reference::encode(kNarrow[i], floats) == expected[i]);
  });
}

// The codes of all floats of one sign in order, from the midpoints alone: rounding is monotone.
class Staircase {
 public:
  explicit Staircase(DType dtype) : format_(format(dtype)) {}

  std::uint32_t next(std::uint32_t magnitude_bits) {
    const double value = from_bits(magnitude_bits);
    while (code_ < format_.midpoints.size() &&
           (value > format_.midpoints[code_] || (value == format_.midpoints[code_] && code_ % 2 == 1))) {
      ++code_;
    }
    return std::min(code_, format_.overflow_code());
  }

 private:
  const reference::Format& format_;
  std::uint32_t code_ = 0;
};

TEST_CASE("all 2^32 floats into each format") {
  const char* exhaustive = std::getenv("GRADUAL_EXHAUSTIVE");
  if (exhaustive == nullptr || std::string(exhaustive) != "1") {
    MESSAGE("skipped: takes about a minute; set GRADUAL_EXHAUSTIVE=1 to run it");
    return;
  }
  constexpr std::uint32_t kChunk = 1 << 20;
  for (const DType dtype : kNarrow) {
    CAPTURE(std::string(to_string(dtype)));
    Staircase staircase(dtype);
    std::vector<float> floats(kChunk);
    std::vector<std::uint32_t> expected(kChunk);
    std::uint64_t failures = 0;
    for (std::uint32_t first = 0; first < 0x80000000; first += kChunk) {
      const bool nan = first >= 0x7f800000;  // Inf itself is checked with the vectors
      for (std::uint32_t i = 0; i < kChunk; ++i) {
        floats[i] = from_bits(first + i);
        expected[i] = nan ? encode_scalar(dtype, floats[i]) : staircase.next(first + i);
        if (nan && first + i > 0x7f800000) failures += !format(dtype).is_nan(expected[i]);
      }
      for (const bool negative : {false, true}) {
        if (negative) {
          for (float& x : floats) x = from_bits(std::bit_cast<std::uint32_t>(x) | 0x80000000);
          for (std::uint32_t& code : expected) code |= format(dtype).sign_bit();
        }
        reference::for_each_isa([&](CpuIsa) {
          const auto codes = reference::encode(dtype, floats);
          if (codes != expected) ++failures;
        });
      }
    }
    CHECK(failures == 0);
  }
}
