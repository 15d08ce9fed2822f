#include "eden_scale.h"

#include <cmath>

#include "../support/throwf.h"
#include "stored_scale.h"

namespace gradual {

void EdenBlocks::check(const Format& format) const {
  detail::check_block(block);
  if (group < block || group % block != 0)
    throwf("a group of {} has no blocks of {}; allowed are multiples of the block", group, block);
  detail::check_two_levels(kKind, format, scale_format);
}

std::string EdenBlocks::text() const {
  return fmt::format(", {} with random {} scales under one of the tensor (MS-EDEN, groups of {})",
                     detail::blocks_text(block, false), to_string(scale_format), group);
}

void EdenBlocks::set(detail::ScaleSpec& spec) const {
  detail::set_coded(spec, scale_format, std::exp2(scale_format.max_exponent()));
  spec.two_levels = true;
}

Format EdenBlocks::codes() const { return detail::stored_as(scale_format); }

}  // namespace gradual
