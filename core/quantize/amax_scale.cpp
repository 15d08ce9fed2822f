#include "amax_scale.h"

#include <fmt/format.h>

#include <cmath>

#include "quantizer_kernels.h"

namespace gradual {
namespace {

template <class Kind> void set_float(const Kind& kind, detail::ScaleSpec& spec) {
  spec.factor = static_cast<float>(std::exp2(-kind.margin));
  spec.power_of_two = kind.power_of_two;
  spec.oracle = kind.oracle;
}

std::string one_per(const char* unit, bool power_of_two) {
  return fmt::format(", one {} per {}", power_of_two ? "power of two" : "scale", unit);
}

}  // namespace

void TensorScale::check(const Format&) const { detail::check_margin(margin); }
void RowScale::check(const Format&) const { detail::check_margin(margin); }
void FloatBlocks::check(const Format&) const {
  detail::check_block(block);
  detail::check_margin(margin);
}
void FloatParts::check(const Format&) const {
  detail::check_block(block);
  detail::check_margin(margin);
  detail::check_parts(block, part, inner_part);
}

std::string TensorScale::text() const { return one_per("tensor", power_of_two); }
std::string RowScale::text() const { return one_per("row", power_of_two); }
std::string FloatBlocks::text() const {
  return fmt::format(", {} with f32 scales", detail::blocks_text(block, square));
}
std::string FloatParts::text() const {
  return fmt::format(", {} with f32 scales{}", detail::blocks_text(block, false), detail::parts_text(part, inner_part));
}

void TensorScale::set(detail::ScaleSpec& spec) const { set_float(*this, spec); }
void RowScale::set(detail::ScaleSpec& spec) const { set_float(*this, spec); }
void FloatBlocks::set(detail::ScaleSpec& spec) const { set_float(*this, spec); }
void FloatParts::set(detail::ScaleSpec& spec) const { set_float(*this, spec); }

}  // namespace gradual
