#pragma once

#include <string>

namespace gradual {

// All bytes of a regular file. Error that names it and says what the system said.
std::string read_file(const std::string& path);

}  // namespace gradual
