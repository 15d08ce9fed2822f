#include "scale_kinds.h"

#include <cmath>

#include "../formats/format_table.h"
#include "../support/throwf.h"

namespace gradual::detail {

void check_block(int block) {
  if (block < 1) throwf("a block has at least 1 element, not {}", block);
}

void check_margin(double margin) {
  if (!(std::abs(margin) <= 64)) throwf("the margin is -64 to 64 (powers of two), not {}", margin);
}

void check_parts(int block, int part, int inner_part) {
  const bool divides = part >= 1 && block % part == 0;
  const bool inner_divides = inner_part == 0 || (inner_part > 0 && divides && part % inner_part == 0);
  if (!divides || !inner_divides) throwf("blocks of {} have no parts of {} with parts of {}", block, part, inner_part);
}

void check_scale_format(const Format& format) {
  check_valid(format);
  if (format.table || !format.has_zero)
    throwf("coded scales have a format of exponent and mantissa with a zero, not {}", to_string(format));
}

std::string blocks_text(int block, bool square) {
  return square ? fmt::format("tiles of {0}x{0}", block) : fmt::format("blocks of {}", block);
}

std::string parts_text(int part, int inner_part) {
  const std::string sizes = inner_part ? fmt::format("{} and {}", part, inner_part) : fmt::format("{}", part);
  return fmt::format(", parts of {} and their doubles", sizes);
}

}  // namespace gradual::detail
