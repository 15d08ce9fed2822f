#include "product_transform.h"

#include <cstddef>
#include <cstdint>
#include <random>

#include "../core/ops/ops.h"
#include "../core/support/philox.h"
#include "../core/tensor/device_recording.h"

namespace gradual::amp {
namespace {

constexpr std::uint16_t kSigns = 0x9d2b;

}  // namespace

std::vector<bool> fixed_signs(HadamardSize of) {
  std::mt19937 bits(kSigns);
  std::vector<bool> all;
  for (int i = 0; i < of.size; ++i) all.push_back(of.size == 16 ? (kSigns >> i & 1) != 0 : (bits() & 1) != 0);
  return all;
}

std::vector<bool> drawn_signs(HadamardSize of, RandomKey key) {
  device::need_no_capture("a Hadamard transform with drawn signs");
  std::vector<bool> all;
  for (int i = 0; i < of.size; ++i)
    all.push_back(philox_word(key.seed, key.stream, static_cast<std::uint64_t>(i)) >> 31 != 0);
  return all;
}

Tensor transformed(const Tensor& t, int axis, const std::vector<bool>& signs) {
  const auto size = std::ssize(signs);
  const Tensor wide = t.dtype() == DType::f64 ? t : t.to(DType::f32);
  const Tensor last = wide.transpose(axis, -1).contiguous();
  const std::int64_t k = last.sizes().back();
  const std::int64_t extra = (size - k % size) % size;
  Shape before = Shape::filled(last.dim(), 0);
  Shape after = before;
  after[last.dim() - 1] = extra;
  return hadamard(extra ? pad(last, before, after) : last, signs).transpose(axis, -1);
}

}  // namespace gradual::amp
