// docs/a-training-step.md names functions and the files that define them. This test fails where the code moved on.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "support/source_dir.h"

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file, path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Link {
  std::string symbol, file;
};

// Each [`symbol`](../file) of the page, in its order.
std::vector<Link> links_of(const std::string& page) {
  static const std::regex kLink(R"(\[`([^`]+)`\]\(\.\./([^)#]+)\))");
  std::vector<Link> links;
  for (std::sregex_iterator m(page.begin(), page.end(), kLink), end; m != end; ++m)
    links.push_back({(*m)[1].str(), (*m)[2].str()});
  return links;
}

// "next_below_amp" of "gradual::next_below_amp()".
std::string identifier(std::string symbol) {
  symbol = symbol.substr(0, symbol.find('('));
  const auto colon = symbol.rfind(':');
  return colon == std::string::npos ? symbol : symbol.substr(colon + 1);
}

bool names(const std::string& source, const std::string& word) {
  return std::regex_search(source, std::regex("\\b" + word + "\\b"));
}

}  // namespace

TEST_CASE("docs/a-training-step.md: every link names a file and a function in it, under 25 files") {
  const std::vector<Link> links = links_of(text_of(source_dir() + "/docs/a-training-step.md"));
  CHECK(links.size() > 20);
  std::set<std::string> files;
  for (const Link& link : links) {
    CAPTURE(link.symbol);
    CAPTURE(link.file);
    files.insert(link.file);
    CHECK(names(text_of(source_dir() + "/" + link.file), identifier(link.symbol)));
  }
  CHECK(files.size() < 25);
}
