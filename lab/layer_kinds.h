// Layers named with their kind, "4 (Conv2d)", in sentences for people.
#pragma once

#include <string>
#include <vector>

#include "result.h"

namespace gradual::lab {

// The sentence with the kind of its layer `path` after each "layer PATH". As it is if the kind is not known.
std::string with_kind(const std::string& sentence, const std::string& path, const std::string& kind);

// The kinds of modules in what rounding did to them; "" if the path is none of theirs.
std::string kind_of(const std::vector<CastRow>& casts, const std::string& path);

// The same in the sentences and remedies of a run's findings.
void name_kinds(std::vector<Finding>& findings, const std::vector<CastRow>& casts);

}  // namespace gradual::lab
