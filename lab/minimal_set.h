// A 1-minimal set of members that averts a failure, found by trials (delta debugging: Zeller and Hildebrandt,
// "Simplifying and isolating failure-inducing input", 2002), and the steps in which it is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace gradual::lab {

// Members by number, and the steps in which they hold.
struct MemberSet {
  std::vector<std::size_t> members = {};  // in ascending order
  std::int64_t first = 0;
  std::int64_t last = 0;

  bool operator==(const MemberSet&) const = default;
};

// What a trial of a set says. does_not_run: the set does not fit the model. not_tried: the budget has ended.
enum class SetAnswer : std::uint8_t { averts, fails, does_not_run, not_tried };

struct SetTrials {
  std::function<SetAnswer(const MemberSet&)> answer;
  std::function<bool(std::size_t)> affords;  // whether the budget has so many more trials
};

struct MinimalSet {
  MemberSet set = {};
  // Shown by trials: with any one member left out, and the others in the same steps, the failure comes or nothing runs.
  // An empty set is not tried: it is the failing run itself.
  bool is_minimal = false;
  bool must_run = false;  // with some member left out nothing runs
};

// `averting` averts the failure. narrows: fewer steps are tried too, first at the end, then at the begin. A narrower
// set is taken only if it is shown to be 1-minimal as well; members that it does not need are left out.
MinimalSet minimal_set(const MemberSet& averting, const SetTrials& trials, bool narrows);

}  // namespace gradual::lab
