#include "given_scale.h"

#include "../support/throwf.h"

namespace gradual {

void FixedScale::check(const Format&) const {
  if (!(value >= 0x1p-126 && value <= 0x1p126)) throwf("a fixed scale is a number from 2^-126 to 2^126, not {}", value);
}

std::string FixedScale::text() const { return fmt::format(", scale {}", value); }

}  // namespace gradual
