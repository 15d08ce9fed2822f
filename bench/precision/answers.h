// Answers of other tools to instances, read from a file and scored as the lab's own are.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis_score.h"
#include "instance.h"

namespace gradual::precision_bench {

// By instance ("floor-clipping/mlp/0"). An instance with an empty answer is one about which the tool says nothing.
using Answers = std::map<std::string, std::vector<Answer>>;

// docs/precision-bench.md has the format. Error that names the instance and the field, and what is allowed.
Answers answers_from_json(const std::string& text);

}  // namespace gradual::precision_bench
