// What a comparison prints at its end.
#pragma once

#include <string>
#include <vector>

#include "result.h"

namespace gradual::lab {

struct TableOptions {
  // All columns and every finding; otherwise at most 80 columns: verdict, accuracy, its difference from fp32,
  // underflow, the layer that loses most, and what the comparison teaches (conclusions.h). Findings follow if cures
  // were tried.
  bool wide = true;
  bool colour = false;  // ANSI colours for the verdicts
};

// One line per recipe, means over seeds (with several, their standard deviation). A star marks losses computed as if
// cast to f16.
std::string table(const std::vector<Result>& results, const TableOptions& options = {});
// A line: step, sentence, cause, cure, what it gave.
std::string to_string(const Finding& finding);

}  // namespace gradual::lab
