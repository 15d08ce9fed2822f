// The table of a run of the benchmark.
#pragma once

#include <string>
#include <vector>

#include "diagnosis_score.h"

namespace gradual::precision_bench {

// Aims, kinds, families, and what was missed, as Markdown.
std::string table_of(const std::vector<Score>& scores);

}  // namespace gradual::precision_bench
