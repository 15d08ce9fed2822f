#include "minimal_set.h"

#include <algorithm>
#include <optional>

namespace gradual::lab {
namespace {

MemberSet without(MemberSet set, std::size_t at) {
  set.members.erase(set.members.begin() + static_cast<std::ptrdiff_t>(at));
  return set;
}

class Minimiser {
 public:
  explicit Minimiser(const SetTrials& trials) : trials_(trials) {}

  // ddmin, if the budget lasts.
  MemberSet fewer(MemberSet set) {
    std::size_t parts = 2;
    while (set.members.size() > 1 && !ended_) {
      const std::size_t size = (set.members.size() + parts - 1) / parts;
      if (const std::optional<MemberSet> part = averting_part(set, size)) {
        parts = part->members.size() <= size ? 2 : std::max<std::size_t>(2, parts - 1);
        set = *part;
        continue;
      }
      if (parts >= set.members.size()) return set;
      parts = std::min(set.members.size(), 2 * parts);
    }
    return set;
  }

  // Leaves out each member alone. One that is not needed goes, and the others are tried again.
  MinimalSet checked(const MemberSet& set) {
    MinimalSet found{.set = set};
    for (std::size_t i = 0; i < found.set.members.size() && found.set.members.size() > 1;) {
      const MemberSet rest = without(found.set, i);
      const SetAnswer answer = ask(rest);
      if (answer == SetAnswer::not_tried) return found;
      if (answer == SetAnswer::averts) {
        found = {.set = rest};
        i = 0;
        continue;
      }
      found.must_run = found.must_run || answer == SetAnswer::does_not_run;
      ++i;
    }
    found.is_minimal = true;
    return found;
  }

  // As few steps as possible at the end, then at the begin. The budget keeps the trials that checked() needs.
  MemberSet narrowed(MemberSet set) {
    const auto averts = [&](std::int64_t first, std::int64_t last) {
      return ask({.members = set.members, .first = first, .last = last}) == SetAnswer::averts;
    };
    const auto goes_on = [&] { return !ended_ && trials_.affords(set.members.size() + 1); };
    for (std::int64_t low = set.first; low < set.last && goes_on();) {
      const std::int64_t middle = (low + set.last) / 2;
      if (averts(set.first, middle)) set.last = middle;
      else low = middle + 1;
    }
    for (std::int64_t high = set.last; set.first < high && goes_on();) {
      const std::int64_t middle = (set.first + high + 1) / 2;
      if (averts(middle, set.last)) set.first = middle;
      else high = middle - 1;
    }
    return set;
  }

 private:
  SetAnswer ask(const MemberSet& set) {
    const SetAnswer answer = trials_.answer(set);
    ended_ = ended_ || answer == SetAnswer::not_tried;
    return answer;
  }

  // A part of `size` members that averts the failure, or what is left without a part.
  std::optional<MemberSet> averting_part(const MemberSet& set, std::size_t size) {
    for (const bool is_rest : {false, true})
      for (std::size_t at = 0; at < set.members.size() && !ended_; at += size) {
        MemberSet chosen{.first = set.first, .last = set.last};
        for (std::size_t i = 0; i < set.members.size(); ++i)
          if ((i >= at && i < at + size) != is_rest) chosen.members.push_back(set.members[i]);
        const bool is_smaller = !chosen.members.empty() && chosen.members.size() < set.members.size();
        if (is_smaller && ask(chosen) == SetAnswer::averts) return chosen;
      }
    return {};
  }

  const SetTrials& trials_;
  bool ended_ = false;
};

}  // namespace

MinimalSet minimal_set(const MemberSet& averting, const SetTrials& trials, bool narrows) {
  Minimiser search(trials);
  MinimalSet found = search.checked(search.fewer(averting));
  // Each round but the last one takes a member away.
  while (narrows && found.is_minimal) {
    const MemberSet narrow = search.narrowed(found.set);
    if (narrow == found.set) return found;
    const MinimalSet again = search.checked(narrow);
    if (!again.is_minimal) return found;
    const bool is_last = again.set.members.size() == found.set.members.size();
    found = again;
    if (is_last) return found;
  }
  return found;
}

}  // namespace gradual::lab
