// Every relative link of the pages leads to a file, and its anchor to a heading there.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/source_dir.h"

namespace fs = std::filesystem;

namespace {

// The page's text without its fenced code.
std::string prose(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file, path.string());
  std::string text, line;
  for (bool code = false; std::getline(file, line);) {
    if (line.starts_with("```")) code = !code;
    else if (!code) text += line + "\n";
  }
  return text;
}

// A heading's anchor as GitHub makes it: lower case, spaces to hyphens, other punctuation dropped.
std::string anchor(const std::string& heading) {
  std::string out;
  for (const char c : heading) {
    if (c == ' ') out += '-';
    else if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_')
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::set<std::string> anchors(const fs::path& path) {
  static const std::regex kHeading(R"((^|\n)#+ ([^\n]+))");
  const std::string text = prose(path);
  std::set<std::string> all;
  for (std::sregex_iterator m(text.begin(), text.end(), kHeading), end; m != end; ++m)
    all.insert(anchor((*m)[2].str()));
  return all;
}

// The targets of [text](target) and ![text](target) on this machine; a text may span lines.
std::vector<std::string> links(const std::string& text) {
  static const std::regex kLink(R"(\]\(([^)\s]+)\))");
  std::vector<std::string> all;
  for (std::sregex_iterator m(text.begin(), text.end(), kLink), end; m != end; ++m)
    if (const std::string target = (*m)[1].str(); target.find("://") == std::string::npos) all.push_back(target);
  return all;
}

// What is wrong with a link of `page`; empty: nothing.
std::string broken(const fs::path& page, const std::string& link) {
  const std::size_t hash = link.find('#');
  const std::string file = link.substr(0, hash);
  const fs::path target = file.empty() ? page : page.parent_path() / file;
  if (!fs::exists(target)) return link + " does not exist";
  if (hash == std::string::npos || anchors(target).contains(link.substr(hash + 1))) return "";
  return link + " names no heading";
}

std::vector<fs::path> pages() {
  const fs::path top = source_dir();
  std::vector<fs::path> all;
  for (const fs::directory_entry& e : fs::directory_iterator(top))
    if (e.path().extension() == ".md") all.push_back(e.path());
  for (const char* folder : {"docs", "bench", "data"})
    for (const fs::directory_entry& e : fs::recursive_directory_iterator(top / folder))
      if (e.path().extension() == ".md") all.push_back(e.path());
  return all;
}

}  // namespace

TEST_CASE("pages: every relative link leads to a file and a heading") {
  const std::vector<fs::path> all = pages();
  CHECK(std::ranges::count(all, fs::path(source_dir()) / "README.md") == 1);
  std::size_t checked = 0;
  for (const fs::path& page : all)
    for (const std::string& link : links(prose(page))) {
      const std::string problem = broken(page, link);
      CHECK_MESSAGE(problem.empty(), page.string(), ": ", problem);
      ++checked;
    }
  CHECK(checked > 60);
}

TEST_CASE("pages: a link to a missing file or heading is found") {
  const fs::path page = fs::path(source_dir()) / "README.md";
  CHECK(broken(page, "docs/no_such_page.md") == "docs/no_such_page.md does not exist");
  CHECK(broken(page, "docs/precision.md#no-such-heading") == "docs/precision.md#no-such-heading names no heading");
  CHECK(broken(page, "docs/precision.md#the-accumulator").empty());
  CHECK(links("see [a\nb](c.md#d) and ![e](f.svg), not [g](https://h)") == std::vector<std::string>{"c.md#d", "f.svg"});
}
