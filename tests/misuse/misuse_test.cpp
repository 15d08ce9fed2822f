// Every misuse of the tables gives the message or the value that is written there: no crash, no other exception, no
// silence.
#include <doctest/doctest.h>

#include <set>

#include "misuse.h"

using namespace test;

namespace {

void check(const Misuses& misuses) {
  std::set<std::string> names;
  for (const Misuse& m : misuses) {
    INFO(m.name());
    CHECK_MESSAGE(names.insert(m.name()).second, "two misuses have this name");
    CHECK_MESSAGE(!m.expected().empty(), "nothing is expected");
    const std::string got = m.outcome();
    const bool value = m.expected().starts_with("= ");
    CHECK_MESSAGE((value ? got == m.expected() : !got.starts_with("= ") && got.find(m.expected()) != std::string::npos),
                  "gave: ", got, "\n  expected: ", m.expected());
  }
}

}  // namespace

TEST_CASE("misuses of tensors") { check(tensor_misuses()); }
TEST_CASE("misuses of ops") { check(op_misuses()); }
TEST_CASE("misuses of the ops of layers and losses") { check(layer_op_misuses()); }
TEST_CASE("misuses of autograd") { check(autograd_misuses()); }
TEST_CASE("misuses of nn") { check(nn_misuses()); }
TEST_CASE("misuses of optim") { check(optim_misuses()); }
TEST_CASE("misuses of amp") { check(amp_misuses()); }
TEST_CASE("misuses of formats and quantizers") { check(format_misuses()); }
TEST_CASE("misuses of data") { check(data_misuses()); }
TEST_CASE("misuses of files") { check(file_misuses()); }
TEST_CASE("misuses of the lab") { check(lab_misuses()); }

TEST_CASE("the tables hold at least 288 misuses") {
  std::size_t all = 0;
  for (const auto& table :
       {tensor_misuses(), op_misuses(), layer_op_misuses(), autograd_misuses(), nn_misuses(), optim_misuses(),
        amp_misuses(), format_misuses(), data_misuses(), file_misuses(), lab_misuses()})
    all += table.size();
  CHECK(all >= 288);
}
