#include "eden_scale.h"

#include <cmath>

#include "../support/throwf.h"
#include "quantizer_kernels.h"

namespace gradual {

void EdenBlocks::check(const Format& format) const {
  detail::check_block(block);
  if (group < block || group % block != 0)
    throwf("a group of {} has no blocks of {}; allowed are multiples of the block", group, block);
  if (format.bits() > 8) throwf("ms-eden scales are for elements of at most 8 bits, not {}", format.bits());
  detail::check_scale_format(scale_format);
  if (scale_format.max() > 0x1p64) throwf("the tensor's scale takes the largest block's to {}", scale_format.max());
}

std::string EdenBlocks::text() const {
  return fmt::format(", {} with random {} scales under one of the tensor (MS-EDEN, groups of {})",
                     detail::blocks_text(block, false), to_string(scale_format), group);
}

void EdenBlocks::set(detail::ScaleSpec& spec) const {
  spec.form = detail::ScaleForm::coded;
  spec.two_levels = true;
  spec.stored = detail::rounding_spec<std::uint64_t>({scale_format, {}, Overflow::saturate}, false);
  spec.largest_scale = static_cast<float>(std::exp2(scale_format.max_exponent()));
}

// Codes of bytes; others are kept as the f32 that they stand for.
Format EdenBlocks::codes() const { return scale_format.storage_bits() == 8 ? scale_format : Format::ieee(8, 23); }

}  // namespace gradual
