// Parts of documentation pages that tests generate, between the marks "<!-- generated: NAME -->" and "<!-- end -->".
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/source_dir.h"

namespace gradual::test {

inline std::string table_row(const std::vector<std::string>& cells) {
  std::string text = "|";
  for (const std::string& c : cells) text += " " + c + " |";
  return text + "\n";
}
inline std::string table_head(const std::vector<std::string>& cells) {
  std::string text = table_row(cells) + "|";
  for (std::size_t i = 0; i < cells.size(); ++i) text += "---|";
  return text + "\n";
}

// Checks that the part `name` of the page docs/NAME.md is `fresh`. With GRADUAL_WRITE_DOCS in the environment it is
// written instead.
inline void check_part(const std::string& page, const std::string& name, const std::string& fresh) {
  const std::string path = source_dir() + "/docs/" + page;
  std::ostringstream read;
  read << std::ifstream(path).rdbuf();
  std::string text = read.str();
  const std::string begin = "<!-- generated: " + name + " -->\n";
  const std::size_t from = text.find(begin);
  REQUIRE_MESSAGE(from != std::string::npos, page << " has lost the marks around its part " << name);
  const std::size_t first = from + begin.size();
  const std::size_t to = text.find("<!-- end -->\n", first);
  REQUIRE_MESSAGE(to != std::string::npos, page << " has lost the marks around its part " << name);
  if (std::getenv("GRADUAL_WRITE_DOCS")) {
    text.replace(first, to - first, fresh);
    std::ofstream(path) << text;
  } else {
    CHECK_MESSAGE(text.substr(first, to - first) == fresh, "stale; run ./dev docs");
  }
}

}  // namespace gradual::test
