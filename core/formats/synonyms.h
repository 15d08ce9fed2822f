// Names of dtypes, formats and recipes in other libraries and in papers.
#pragma once

#include <span>

#include "../support/message_text.h"

namespace gradual {

// For did_you_mean(): "half" stands for fp16 and f16, "fp8" for the 8-bit formats, "mixed" for recipes with amp.
std::span<const Synonym> format_synonyms();

}  // namespace gradual
