// The text of describe(Quantizer).
#include <fmt/format.h>

#include "../support/message_text.h"
#include "quantizer.h"

namespace gradual {

std::string describe(const Quantizer& q) {
  const Scaling& s = q.scaling;
  std::string text = to_string(q.format);
  if (q.rounding.mode != RoundingMode::nearest_even) text += " " + to_string(q.rounding);
  const std::string blocks = s.square ? fmt::format("tiles of {0}x{0}", s.block) : fmt::format("blocks of {}", s.block);
  const bool nvfp4 = s.kind == ScalingKind::nvfp4;
  const bool coded = nvfp4 || s.scale == ScaleFormat::coded;
  const char* one = s.power_of_two ? "power of two" : "scale";
  switch (s.kind) {
    case ScalingKind::none: break;
    case ScalingKind::fixed: text += fmt::format(", scale {}", s.value); break;
    case ScalingKind::tensor:
    case ScalingKind::row: text += fmt::format(", one {} per {}", one, to_string(s.kind)); break;
    case ScalingKind::delayed:
      text += fmt::format(", one delayed scale per tensor (history {}, {})", s.history,
                          s.most_recent ? "most recent" : "max");
      break;
    case ScalingKind::block:
    case ScalingKind::nvfp4:
      text += fmt::format(", {} with {} scales{}", blocks,
                          coded ? to_string(s.scale_format) : std::string(to_string(s.scale)),
                          nvfp4 ? " under one of the tensor" : "");
      if (coded ? searches(s.rule) : s.scale != ScaleFormat::f32) text += fmt::format(" ({})", to_string(s.rule));
      if (s.part)
        text += fmt::format(", parts of {} and their doubles",
                            s.inner_part ? fmt::format("{} and {}", s.part, s.inner_part) : fmt::format("{}", s.part));
      break;
  }
  if (s.zero_point) text += " with a zero point";
  if (s.product == ScaledProduct::rounded) text += ", products rounded first";
  return text + (q.hadamard ? ", Hadamard transform" : "");
}

}  // namespace gradual
