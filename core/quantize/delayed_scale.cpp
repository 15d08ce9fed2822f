#include "delayed_scale.h"

#include <cmath>

#include "../support/throwf.h"
#include "quantizer_kernels.h"

namespace gradual {

void DelayedScale::check(const Format&) const {
  if (history < 1) throwf("the history keeps at least 1 amax, not {}", history);
  detail::check_margin(margin);
}

std::string DelayedScale::text() const {
  return fmt::format(", one delayed scale per tensor (history {}, {})", history, most_recent ? "most recent" : "max");
}

void DelayedScale::set(detail::ScaleSpec& spec) const {
  spec.factor = static_cast<float>(std::exp2(-margin));
  spec.history = history;
  spec.most_recent = most_recent;
}

}  // namespace gradual
