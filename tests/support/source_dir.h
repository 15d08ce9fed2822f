#pragma once

#include <string>

// The top of the source tree. A function and not a macro, so that no test's text holds a path of the machine: checkouts
// in different folders then share a compiler cache.
std::string source_dir();
