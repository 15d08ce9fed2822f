#include "range_scale.h"

#include <algorithm>
#include <cmath>

#include "../formats/format_table.h"
#include "../support/throwf.h"
#include "quantizer_kernels.h"

namespace gradual {
namespace {

// Whether the values are the integers from min() to max(), with 0.
bool is_integer(const Format& f) {
  if (!f.table) return f.has_zero && f == Format::fixed_point(f.mantissa_bits + 1, 0, f.is_signed);
  return f.min() <= 0 && f.max() - f.min() == static_cast<double>(f.table->values.size() - 1) &&
         std::ranges::all_of(f.table->values, [](float v) { return v == std::trunc(v); });
}

void check_integers(const Format& format) {
  if (format.bits() > 16 || !is_integer(format)) throw_error("zero points go with integers of at most 16 bits");
}

}  // namespace

void TensorRange::check(const Format& format) const { check_integers(format); }
void RowRange::check(const Format& format) const { check_integers(format); }
void RangeBlocks::check(const Format& format) const {
  detail::check_block(block);
  check_integers(format);
}

std::string TensorRange::text() const { return ", one scale per tensor with a zero point"; }
std::string RowRange::text() const { return ", one scale per row with a zero point"; }
std::string RangeBlocks::text() const {
  return fmt::format(", {} with f32 scales with a zero point", detail::blocks_text(block, square));
}

void TensorRange::set(detail::ScaleSpec& spec) const { spec.zero_point = true; }
void RowRange::set(detail::ScaleSpec& spec) const { spec.zero_point = true; }
void RangeBlocks::set(detail::ScaleSpec& spec) const { spec.zero_point = true; }

}  // namespace gradual
