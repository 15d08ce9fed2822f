// Numbers in formats that are not dtypes: packed codes and their scales. Only dequantize() and quantised contractions
// take them; ops do not.
#pragma once

#include "../formats/format.h"
#include "../tensor/tensor.h"

namespace gradual {

// Codes and scales have the layout of a matrix [rows, K]: K is the dim `axis`, rows are the other dims in order.
struct QuantizedTensor {
  Format format;
  Shape shape;
  int axis = 0;
  Tensor codes;  // u8 [bytes]: format.storage_bits() bits per code, the first code in the lowest bits
  // elements under one scale; the last blocks may be smaller
  std::int64_t block_rows = 0;
  std::int64_t block_cols = 0;
  Format scale_format;  // the format of scales: fp32, e8m0fnu or e4m3fn
  Tensor scales;        // [ceil(rows / block_rows), ceil(K / block_cols)], f32 or u8 codes. Undefined: 1
  Tensor zero_points;   // f32, sizes of scales: what is subtracted from the codes' values. Undefined: 0
  Tensor global_scale;  // a factor of all values (nvfp4), f32 []. Undefined: 1

  std::int64_t numel() const { return gradual::numel(shape); }
  std::size_t nbytes() const;   // bytes of codes and scales
  Tensor scale_values() const;  // f32, sizes of scales: their values without global_scale; undefined if scales is
  Tensor decode() const;        // f32 [shape]: the codes' values without scales
  Tensor dequantize() const;    // f32 [shape]: the codes' values less zero points, times their scales
  Tensor unpack() const;        // i32 [shape]: the codes

  Device device() const { return codes.device(); }
  QuantizedTensor to(Device device) const;
};

// Packs n codes of at most 8 bits, one per byte, to codes of 4, 6 or 8 bits, and unpacks them. Unused bits of the last
// byte are zero.
void pack_codes(const std::uint8_t* codes, std::int64_t n, int storage_bits, std::uint8_t* packed);
void unpack_codes(const std::uint8_t* packed, std::int64_t n, int storage_bits, std::uint8_t* codes);
// Bytes of n packed codes.
constexpr std::int64_t packed_bytes(std::int64_t n, int storage_bits) { return (n * storage_bits + 7) / 8; }

namespace detail {
// t on that device. The dispatch chain does not see the copy.
Tensor moved(const Tensor& t, Device device);
// A view of `matrix` [rows, K] with the sizes `shape`: K is the dim `axis`, rows are the other dims in order.
Tensor with_axis_last(const Tensor& matrix, Shape shape, int axis);
}  // namespace detail

}  // namespace gradual
