// Numbers in formats that are no dtype: packed codes and their scales. They are data for dequantize and quantised
// contractions; no op takes them.
#pragma once

#include "../formats/format.h"
#include "../tensor/tensor.h"

namespace gradual {

// Seen as a matrix [rows, K] with `axis` last and the other dims, in order, as rows: so codes and scales are laid out.
struct QuantizedTensor {
  Format format;
  Shape shape;
  int axis = 0;
  Tensor codes;  // u8 [bytes]: format.storage_bits() a code, the first in the lowest bits
  std::int64_t block_rows = 0, block_cols = 0;  // elements under one scale; the last ones may be ragged
  Format scale_format;                          // of scales: fp32, e8m0fnu or e4m3fn
  Tensor scales;        // [ceil(rows / block_rows), ceil(K / block_cols)], f32 or u8 codes. Undefined: 1
  Tensor global_scale;  // times all (nvfp4): f32 []. Undefined: 1

  std::int64_t numel() const { return gradual::numel(shape); }
  std::size_t nbytes() const;   // of codes and scales
  Tensor scale_values() const;  // f32, sizes as scales: what decoded codes are multiplied by, global_scale aside
  Tensor decode() const;        // f32 [shape]: the codes' values without scales
  Tensor dequantize() const;    // f32 [shape]
  Tensor unpack() const;        // i32 [shape]: the codes

  Device device() const { return codes.device(); }
  QuantizedTensor to(Device device) const;
};

// n codes of up to 8 bits, one a byte, to packed ones of 4, 6 or 8 bits, and back. n is a multiple of 4, or what is
// left of the last byte is zero.
void pack_codes(const std::uint8_t* codes, std::int64_t n, int storage_bits, std::uint8_t* packed);
void unpack_codes(const std::uint8_t* packed, std::int64_t n, int storage_bits, std::uint8_t* codes);
// Bytes that n codes take.
constexpr std::int64_t packed_bytes(std::int64_t n, int storage_bits) { return (n * storage_bits + 7) / 8; }

namespace detail {
// t on that device, unseen by the dispatch chain.
Tensor moved(const Tensor& t, Device device);
}  // namespace detail

}  // namespace gradual
