#include "stored_scale.h"

#include "../support/throwf.h"

namespace gradual::detail {

void check_two_levels(std::string_view kind, const Format& element, const Format& scale) {
  if (element.bits() > 8) throwf("{} scales are for elements of at most 8 bits, not {}", kind, element.bits());
  check_scale_format(scale);
  if (scale.max() > 0x1p64) throwf("the tensor's scale takes the largest block's to {}", scale.max());
}

void set_coded(ScaleSpec& spec, const Format& scale, double largest) {
  spec.form = ScaleForm::coded;
  spec.stored = rounding_spec<std::uint64_t>({scale, {}, Overflow::saturate}, false);
  spec.largest_scale = static_cast<float>(largest);
}

Format stored_as(const Format& scale) { return scale.storage_bits() == 8 ? scale : Format::ieee(8, 23); }

}  // namespace gradual::detail
