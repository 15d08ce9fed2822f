// What may follow an accumulator's name, for messages. Internal.
#pragma once

#include <string>
#include <vector>

namespace gradual {

// "chunk=N" and the others.
const std::vector<std::string>& accumulator_options();
// ":ROUNDING, /chunk=N" and so on.
std::string accumulator_suffixes();

}  // namespace gradual
