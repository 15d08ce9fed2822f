#include <doctest/doctest.h>
#include <gradual/data/csv.h>

#include <string>
#include <vector>

#include "support/files.h"

using namespace gradual;
using namespace gradual::data;
using test::message_of;

TEST_CASE("csv: numbers, blanks and line ends") {
  const Tensor plain = parse_csv("1,2.5, -3e2\r\n+4,\t.5 ,6\n\n", "x");
  CHECK(plain.sizes() == Shape{2, 3});
  CHECK(plain.dtype() == DType::f64);
  CHECK(plain.to_vector<double>() == std::vector<double>{1, 2.5, -300, 4, 0.5, 6});
}

TEST_CASE("csv: a byte order mark, and lines that end with CR alone") {
  const std::vector<double> expected{1, 2, 3, 4};
  CHECK(parse_csv("\xEF\xBB\xBF"
                  "1,2\n3,4\n",
                  "x")
            .to_vector<double>() == expected);
  CHECK(parse_csv("1,2\r3,4\r", "x").to_vector<double>() == expected);
  CHECK(parse_csv("1,2\r\n3,4\r\n", "x").sizes() == Shape{2, 2});
}

TEST_CASE("csv: an error names the line and the column") {
  struct Row {
    std::string text, message;
    std::int64_t columns = 0;
  };
  const Row rows[] = {
      {"", "csv \"t.csv\": it is empty"},
      {"\n\n", "csv \"t.csv\": it is empty"},
      {"1,2\n3\n", "csv \"t.csv\", line 2, column 1: the last of this line; each line has 2 columns"},
      {"1,2\n3,4,5\n", "csv \"t.csv\", line 2, column 3: one too many; each line has 2 columns"},
      {"1,2\n3,four\n", "csv \"t.csv\", line 2, column 2: \"four\" is not a number"},
      {"1,,3\n", "csv \"t.csv\", line 1, column 2: empty, a number is needed"},
      {"1,2,\n", "csv \"t.csv\", line 1, column 3: empty, a number is needed"},
      {"1,2x\n", "csv \"t.csv\", line 1, column 2: \"2x\" is not a number"},
      {"1,+-2\n", "csv \"t.csv\", line 1, column 2: \"+-2\" is not a number"},
      {"1,1e999\n", "csv \"t.csv\", line 1, column 2: \"1e999\" is out of f64's range"},
      {"1\n\n2\n", "csv \"t.csv\", line 2, column 1: empty, a number is needed"},
      {"1,2,3\n", "csv \"t.csv\", line 1, column 3: one too many; each line has 2 columns", 2},
      {"1\n", "csv \"t.csv\", line 1, column 1: the last of this line; each line has 2 columns", 2},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(message_of([&] { parse_csv(row.text, "t.csv", row.columns); }) == row.message);
  }
}
