#include <doctest/doctest.h>
#include <gradual/core/formats/bit_fields.h>
#include <gradual/core/formats/format.h>
#include <gradual/core/support/error.h>

#include <algorithm>
#include <string>

using namespace gradual;

namespace {

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("bit_fields: the groups of all lines stand below each other") {
  CHECK(bit_fields({"fp16", "bf16", "e8m0"}) ==
        "fp16  s    eeeee mmmmmmmmmm  1 + 5 + 10\n"
        "bf16  s eeeeeeee mmmmmmm     1 + 8 + 7\n"
        "e8m0    eeeeeeee             0 + 8 + 0\n");
}

TEST_CASE("bit_fields_svg: a square for each bit of every named format") {
  for (const NamedFormat& n : named_formats()) {
    CAPTURE(n.name);
    if (n.format.table) continue;
    const std::string picture = bit_fields_svg({n.name});
    CHECK(count(picture, "<rect ") == n.format.bits());
    CHECK(count(picture, "class=\"exponent\"") == n.format.exponent_bits);
    CHECK(count(picture, "class=\"mantissa\"") == n.format.mantissa_bits);
    const std::string line = bit_fields({n.name}).substr(n.name.size());
    const std::size_t letters = line.find(" + ");
    CHECK(std::count(line.begin(), line.begin() + static_cast<long>(letters), 'm') == n.format.mantissa_bits);
  }
}

TEST_CASE("bit_fields: a list of values and an unknown name are errors") {
  CHECK_THROWS_WITH_AS(bit_fields({"fp16", "nf4"}),
                       "bit_fields: nf4 is a list of values; its bits are no sign, exponent and mantissa", Error);
  CHECK_THROWS_AS(bit_fields_svg({"e9m2"}), Error);
}
