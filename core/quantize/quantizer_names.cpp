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
  const char* one = s.power_of_two ? "power of two" : "scale";
  switch (s.kind) {
    case ScalingKind::none: break;
    case ScalingKind::fixed: text += fmt::format(", scale {}", s.value); break;
    case ScalingKind::tensor: text += fmt::format(", one {} a tensor", one); break;
    case ScalingKind::delayed:
      text += fmt::format(", one delayed scale a tensor (history {}, {})", s.history,
                          s.most_recent ? "most recent" : "max");
      break;
    case ScalingKind::row: text += fmt::format(", one {} a row", one); break;
    case ScalingKind::block:
      text += fmt::format(", {} with {} scales", blocks, to_string(s.scale));
      if (s.scale != ScaleFormat::f32) text += fmt::format(" ({})", to_string(s.rule));
      break;
    case ScalingKind::nvfp4: text += fmt::format(", {} with e4m3fn scales under one of the tensor", blocks); break;
  }
  return text + (q.hadamard ? ", Hadamard transform" : "");
}

}  // namespace gradual
