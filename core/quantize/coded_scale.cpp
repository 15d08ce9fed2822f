#include "coded_scale.h"

#include <cmath>

#include "../support/throwf.h"
#include "stored_scale.h"

namespace gradual {
namespace {

template <class Kind> void set_coded(const Kind& kind, CodedRule rule, detail::ScaleSpec& spec) {
  const Format& format = kind.scale_format;
  spec.oracle = kind.oracle;
  // Scaled to 4, the largest block's scale is 3/2 of what it is for 6: 384 and 256 in e4m3fn.
  const bool four = rule == CodedRule::four_over_six;
  detail::set_coded(spec, format, four ? std::exp2(format.max_exponent()) : format.max());
}

// The scale for the amax, and those that take it to these parts of the largest value.
std::vector<detail::Scale> scales_to(const std::vector<double>& parts, double amax, const detail::ScaleSpec& spec) {
  std::vector<detail::Scale> all{scale_of(amax, spec)};
  if (!(amax > 0) || detail::is_inf(amax)) return all;
  detail::ScaleSpec other = spec;
  for (const double part : parts) {
    other.most = spec.most * part;
    all.push_back(scale_of(amax, other));
  }
  return all;
}
std::vector<detail::Scale> six_and_four(double amax, const detail::ScaleSpec& spec) {
  return scales_to({2.0 / 3}, amax, spec);
}
std::vector<detail::Scale> sixteenths(double amax, const detail::ScaleSpec& spec) {
  std::vector<double> parts;
  for (int i = 8; i <= 24; ++i) parts.push_back(i / 16.0);
  return scales_to(parts, amax, spec);
}
detail::ScaleSearch search_of(CodedRule rule) {
  if (rule == CodedRule::four_over_six) return six_and_four;
  return rule == CodedRule::least_squares ? sixteenths : nullptr;
}

std::string rule_text(CodedRule rule) {
  return rule == CodedRule::nearest ? "" : fmt::format(" ({})", to_string(rule));
}

}  // namespace

void CodedBlocks::check(const Format&) const {
  detail::check_block(block);
  detail::check_scale_format(scale_format);
}
void CodedParts::check(const Format&) const {
  detail::check_block(block);
  detail::check_scale_format(scale_format);
  detail::check_parts(block, part, inner_part);
}
void Nvfp4Blocks::check(const Format& format) const {
  detail::check_block(block);
  detail::check_two_levels(kKind, format, scale_format);
}

std::string CodedBlocks::text() const {
  return fmt::format(", {} with {} scales{}", detail::blocks_text(block, square), to_string(scale_format),
                     rule_text(rule));
}
std::string CodedParts::text() const {
  return fmt::format(", {} with {} scales{}", detail::blocks_text(block, false), to_string(scale_format),
                     detail::parts_text(part, inner_part));
}
std::string Nvfp4Blocks::text() const {
  return fmt::format(", {} with {} scales under one of the tensor{}", detail::blocks_text(block, square),
                     to_string(scale_format), rule_text(rule));
}

void CodedBlocks::set(detail::ScaleSpec& spec) const { set_coded(*this, rule, spec); }
void CodedParts::set(detail::ScaleSpec& spec) const { set_coded(*this, CodedRule::nearest, spec); }
void Nvfp4Blocks::set(detail::ScaleSpec& spec) const {
  set_coded(*this, rule, spec);
  spec.two_levels = true;
}

detail::ScaleSearch CodedBlocks::search() const { return search_of(rule); }
detail::ScaleSearch Nvfp4Blocks::search() const { return search_of(rule); }

Format CodedBlocks::codes() const { return detail::stored_as(scale_format); }
Format Nvfp4Blocks::codes() const { return detail::stored_as(scale_format); }

}  // namespace gradual
