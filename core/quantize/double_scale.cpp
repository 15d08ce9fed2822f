#include "double_scale.h"

#include "../support/throwf.h"
#include "stored_scale.h"

namespace gradual {

void DoubleBlocks::check(const Format& format) const {
  detail::check_block(block);
  if (outer < block || outer % block != 0)
    throwf("an outer block of {} has no blocks of {}; allowed are multiples of the block", outer, block);
  detail::check_two_levels(kKind, format, scale_format);
}

std::string DoubleBlocks::text() const {
  return fmt::format(", {} with {} scales under f32 scales of {}", detail::blocks_text(block, false),
                     to_string(scale_format), outer);
}

void DoubleBlocks::set(detail::ScaleSpec& spec) const { detail::set_coded(spec, scale_format, scale_format.max()); }

}  // namespace gradual
