#include "power_scale.h"

#include "../formats/format_table.h"
#include "../support/throwf.h"
#include "quantizer_kernels.h"

namespace gradual {
namespace {

template <class Kind> void set_power(const Kind& kind, detail::ScaleSpec& spec) {
  spec.form = detail::ScaleForm::power;
  spec.e8m0 = kind.scale == ScaleFormat::e8m0;
  spec.rule = kind.rule;
  spec.oracle = kind.oracle;
}

Format stored_as(ScaleFormat scale) { return scale == ScaleFormat::e8m0 ? format("e8m0fnu") : Format::ieee(8, 23); }

// Floor's scale, twice it, half and a quarter of it.
std::vector<detail::Scale> nearby_powers(double amax, const detail::ScaleSpec& spec) {
  std::vector<detail::Scale> all{scale_of(amax, spec)};
  if (!(amax > 0) || detail::is_inf(amax)) return all;
  for (const int more : {1, -1, -2}) all.push_back(detail::power_scale(block_exponent(amax, spec) + more));
  return all;
}

}  // namespace

void PowerBlocks::check(const Format&) const { detail::check_block(block); }
void PowerParts::check(const Format&) const {
  detail::check_block(block);
  if (rule == ScaleRule::least_squares) throw_error("parts need a rule that does not search");
  detail::check_parts(block, part, inner_part);
}

std::string PowerBlocks::text() const {
  return fmt::format(", {} with {} scales ({})", detail::blocks_text(block, square), to_string(scale), to_string(rule));
}
std::string PowerParts::text() const {
  return fmt::format(", {} with {} scales ({}){}", detail::blocks_text(block, false), to_string(scale), to_string(rule),
                     detail::parts_text(part, inner_part));
}

void PowerBlocks::set(detail::ScaleSpec& spec) const { set_power(*this, spec); }
void PowerParts::set(detail::ScaleSpec& spec) const { set_power(*this, spec); }

detail::ScaleSearch PowerBlocks::search() const { return rule == ScaleRule::least_squares ? nearby_powers : nullptr; }

Format PowerBlocks::codes() const { return stored_as(scale); }
Format PowerParts::codes() const { return stored_as(scale); }

}  // namespace gradual
