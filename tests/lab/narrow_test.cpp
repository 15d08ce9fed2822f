// Text in 80 columns: what fits stays, tables lose blanks that all lines have and go on in indented lines.
#include <doctest/doctest.h>
#include <gradual/lab/narrow.h>

#include <algorithm>
#include <sstream>
#include <string>

using gradual::lab::narrowed;

namespace {

std::size_t widest(const std::string& text) {
  std::size_t most = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    most = std::max(most,
                    static_cast<std::size_t>(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; })));
  return most;
}

std::string words_of(const std::string& text) {
  std::istringstream in(text);
  std::string all;
  for (std::string word; in >> word;) all += word + " ";
  return all;
}

}  // namespace

TEST_CASE("narrowed: what fits stays as it is") {
  for (const char* text : {"", "a", "a\n", "layer   a   b\n1       2   3\n\nprose\n"})
    CHECK(narrowed(text, 20) == text);
}

TEST_CASE("narrowed: a table loses the blanks that all of its lines have") {
  CHECK(narrowed("layer        error       share\n"
                 "4            1e-2         50%\n"
                 "9            2e-2        100%\n",
                 24) ==
        "layer  error  share\n"
        "4      1e-2    50%\n"
        "9      2e-2   100%\n");
}

TEST_CASE("narrowed: columns that do not fit go on in indented lines, header and rows alike") {
  CHECK(narrowed("layer        error       share\n"
                 "4            1e-2        50%\n",
                 14) ==
        "layer  error\n"
        "    share\n"
        "4      1e-2\n"
        "    50%\n");
}

TEST_CASE("narrowed: prose is parted between words, and no word is lost; signs of several bytes take one column") {
  const std::string prose = "  the loss ± its interval lies above the one of fp32\n";
  CHECK(narrowed(prose, 20) == "  the loss ± its\n    interval lies\n    above the one of\n    fp32\n");
  const std::string text =
      prose + "a    b    c ± d    " + std::string(30, 'x') + "    y\n1    2    3    4    5\n" + prose;
  const std::string narrow = narrowed(text, 20);
  CHECK(words_of(narrow).size() == words_of(text).size());
  CHECK(widest(narrowed(text, 40)) <= 40);
}
