// The tables of a comparison as text for other programs: CSV, and LaTeX for a paper.
#pragma once

#include <string>
#include <vector>

#include "result.h"

namespace gradual::lab {

struct TextTable {
  std::string name = {};     // of its files: "results", "pairs", "findings", "layers"
  std::string caption = {};  // what its rows and numbers are
  std::vector<std::string> columns = {};
  std::vector<std::vector<std::string>> rows = {};  // of as many texts as there are columns
  int texts = 1;  // columns from the left that hold no numbers; LaTeX aligns the others to the right
};

// results: a row a recipe; pairs: a matrix, the row's recipe minus the column's (pairs.h); findings: why runs failed;
// layers: what rounding lost. A table without rows is left out.
std::vector<TextTable> tables_of(const std::vector<Result>& results);

std::string to_csv(const TextTable& table);    // RFC 4180 with a header
std::string to_latex(const TextTable& table);  // a tabular of the package booktabs, in a table with its caption
// Writes NAME.csv, or NAME.tex, of each table into the folder, each atomically. Returns the files.
std::vector<std::string> write_tables(const std::vector<Result>& results, const std::string& folder, bool latex);

}  // namespace gradual::lab
