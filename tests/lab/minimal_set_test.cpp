// Delta debugging: what is called 1-minimal is so, in whatever steps and with whatever budget it was found.
#include <doctest/doctest.h>
#include <gradual/lab/minimal_set.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

using namespace gradual::lab;

namespace {

bool has(const MemberSet& set, std::size_t member) {
  return std::ranges::find(set.members, member) != set.members.end();
}
bool covers(const MemberSet& set, std::int64_t first, std::int64_t last) {
  return set.first <= first && set.last >= last;
}

// Trials of a failure that `averts` describes, as many as the budget has.
struct Budget {
  std::function<bool(const MemberSet&)> averts;
  std::size_t left = 1000;

  SetTrials trials() {
    return {.answer =
                [this](const MemberSet& set) {
                  if (left == 0) return SetAnswer::not_tried;
                  --left;
                  return averts(set) ? SetAnswer::averts : SetAnswer::fails;
                },
            .affords = [this](std::size_t count) { return count <= left; }};
  }
  bool is_minimal(const MemberSet& set) const {
    if (!averts(set)) return false;
    for (std::size_t i = 0; i < set.members.size() && set.members.size() > 1; ++i) {
      MemberSet rest = set;
      rest.members.erase(rest.members.begin() + static_cast<std::ptrdiff_t>(i));
      if (averts(rest)) return false;
    }
    return true;
  }
};

const MemberSet kAll{.members = {0, 1, 2, 3, 4, 5, 6, 7}, .first = 0, .last = 31};

}  // namespace

TEST_CASE("minimal set: the members that avert a failure together, and their steps") {
  Budget b{.averts = [](const MemberSet& s) { return has(s, 2) && has(s, 5) && covers(s, 4, 8); }};
  const MinimalSet found = minimal_set(kAll, b.trials(), true);
  CHECK(found.is_minimal);
  CHECK_FALSE(found.must_run);
  CHECK(found.set == MemberSet{.members = {2, 5}, .first = 4, .last = 8});
  CHECK(minimal_set(kAll, b.trials(), false).set == MemberSet{.members = {2, 5}, .first = 0, .last = 31});
}

TEST_CASE("minimal set: a member that fewer steps do not need is left out") {
  // Member 3 is needed against what member 1 does in late steps.
  Budget b{.averts = [](const MemberSet& s) { return has(s, 1) && (has(s, 3) || s.last <= 10) && covers(s, 4, 8); }};
  const MinimalSet found = minimal_set(kAll, b.trials(), true);
  CHECK(found.is_minimal);
  CHECK(found.set == MemberSet{.members = {1}, .first = 4, .last = 8});
}

TEST_CASE("minimal set: what is called minimal is so with every budget, and nothing is called so without trials") {
  for (const bool late : {false, true})
    for (std::size_t budget = 0; budget < 80; ++budget) {
      CAPTURE(budget);
      Budget b{.averts =
                   [late](const MemberSet& s) {
                     return has(s, 1) && has(s, 6) && (has(s, 3) || (late && s.last <= 10)) && covers(s, 4, 8);
                   },
               .left = budget};
      const MinimalSet found = minimal_set(kAll, b.trials(), true);
      CHECK(b.averts(found.set));
      CHECK((!found.is_minimal || b.is_minimal(found.set)));
      CHECK((found.is_minimal || budget < 60));
      if (budget < 3) CHECK_FALSE(found.is_minimal);
    }
}

TEST_CASE("minimal set: a member without which nothing runs stays, and that is told") {
  Budget b{.averts = [](const MemberSet& s) { return has(s, 2) && has(s, 5); }};
  SetTrials trials = b.trials();
  trials.answer = [&](const MemberSet& s) {
    if (has(s, 2) && !has(s, 5)) return SetAnswer::does_not_run;
    return b.averts(s) ? SetAnswer::averts : SetAnswer::fails;
  };
  const MinimalSet found = minimal_set(kAll, trials, false);
  CHECK(found.set.members == std::vector<std::size_t>{2, 5});
  CHECK(found.is_minimal);
  CHECK(found.must_run);
}
