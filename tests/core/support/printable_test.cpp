#include <doctest/doctest.h>
#include <gradual/core/support/printable.h>

using gradual::is_printable_name;
using gradual::printable;

TEST_CASE("control characters are shown by their codes, all other text is as it was") {
  CHECK(printable("") == "");
  CHECK(printable("fp16-static:1024 ±\n\tü 日本") == "fp16-static:1024 ±\n\tü 日本");
  CHECK(printable("\033[31mred\r\a\x7f") == "\\x1b[31mred\\x0d\\x07\\x7f");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("\xc2\x9b"
                  "31m \xc2\xa0 \xc3\x9b") ==
        "\\xc2\\x9b"
        "31m \xc2\xa0 \xc3\x9b");  // U+009B begins a sequence
  CHECK(printable("a\nb", "") == "a\\x0ab");
  CHECK(printable("\xc2") == "\xc2");
}

TEST_CASE("a name stands in one line") {
  CHECK(is_printable_name("mx:e2m1"));
  CHECK(is_printable_name("größe"));
  for (const char* name : {"a\nb", "a\tb", "\033[2J", "\xc2\x9b", "\x7f"}) CHECK_FALSE(is_printable_name(name));
}
