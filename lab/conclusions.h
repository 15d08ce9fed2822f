// What a comparison teaches, computed from its results: effects, each in one or two sentences, and the command that
// looks closer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "result.h"

namespace gradual::lab {

// failure: a recipe fails, and why. scale: two recipes round to the same bits, and the one with scales does better.
// range: as many bits without scales, parted otherwise between exponent and mantissa. loss: fp32's accuracy, but not
// its loss. narrowest: the fewest bits whose accuracy and loss are fp32's.
enum class Effect : std::uint8_t { failure, scale, range, loss, narrowest };

struct Conclusion {
  Effect effect = Effect::failure;
  std::string sentence = {};
  std::string command = {};  // that looks closer at these runs (launch.h); empty: nothing can repeat them
  bool is_code = false;      // the command is a call in C++
};

// At most five, failures first. A difference is reported only if it is larger than its interval of 95%.
std::vector<Conclusion> conclusions(const std::vector<Result>& results);

}  // namespace gradual::lab
