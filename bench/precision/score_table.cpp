#include "score_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gradual::precision_bench {
namespace {

using Scores = std::vector<const Score*>;

struct Share {
  int right = 0;
  int all = 0;
  double percent() const { return all == 0 ? std::numeric_limits<double>::quiet_NaN() : 100.0 * right / all; }
};
std::string to_string(const Share& s) {
  return s.all == 0 ? "-" : fmt::format("{} of {} ({:.0f}%)", s.right, s.all, s.percent());
}
std::string brief(const Share& s) { return s.all == 0 ? "-" : fmt::format("{}/{}", s.right, s.all); }

template <class F> Share share_of(const Scores& scores, const F& right) {
  Share share{0, static_cast<int>(scores.size())};
  for (const Score* s : scores) share.right += right(*s);
  return share;
}
template <class F> Scores those(const std::vector<Score>& all, const F& wanted) {
  Scores some;
  for (const Score& s : all)
    if (s.counts && wanted(s)) some.push_back(&s);
  return some;
}

bool cause_first(const Score& s) { return s.cause_first; }
bool cause_listed(const Score& s) { return s.cause_listed; }
bool verdict_right(const Score& s) { return s.verdict_right; }
bool site_right(const Score& s) { return s.site_right; }
bool place_right(const Score& s) { return s.site_right && s.phase_right && s.role_right; }
bool phase_right(const Score& s) { return s.phase_right; }
bool role_right(const Score& s) { return s.role_right; }
bool cure_works(const Score& s) { return s.cure_works; }
bool specific_works(const Score& s) { return s.cure_works && s.specific; }
bool false_alarm(const Score& s) { return s.false_alarm; }

Scores with_site(const Scores& scores) {
  Scores some;
  std::ranges::copy_if(scores, std::back_inserter(some), &Score::has_site);
  return some;
}

double median_cost(const Scores& scores, double Score::*unit = &Score::cost) {
  std::vector<double> costs;
  for (const Score* s : scores)
    if (s->*unit > 0) costs.push_back(s->*unit);
  if (costs.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(costs);
  return (costs[(costs.size() - 1) / 2] + costs[costs.size() / 2]) / 2;
}

std::string met(bool is_met) { return is_met ? "met" : "**missed**"; }
std::string aim_row(const char* what, double aim, const Share& share, bool at_most = false) {
  const bool is_met = at_most ? share.percent() <= aim : share.percent() >= aim;
  return fmt::format("| {} | {} {:.0f}% | {} | {} |\n", what, at_most ? "at most" : "at least", aim, to_string(share),
                     share.all == 0 ? "not measured" : met(is_met));
}

std::string aims(const Scores& failures, const Scores& controls, const Scores& healthy) {
  std::string text = "| | aim | measured | |\n|---|---|---|---|\n";
  text += aim_row("cause right first", 90, share_of(failures, cause_first));
  text += aim_row("site right: layer or line, phase, and role", 90, share_of(with_site(failures), place_right));
  text += aim_row("specific cure that works", 80, share_of(failures, specific_works));
  text += aim_row("false alarms on healthy runs", 2, share_of(healthy, false_alarm), true);
  text += aim_row("controls named rightly", 80, share_of(controls, cause_first));
  Scores explained = failures;
  explained.insert(explained.end(), controls.begin(), controls.end());
  const double cost = median_cost(explained);
  const bool measured = !std::isnan(cost);  // answers of other tools have none
  text += fmt::format("| median cost of a diagnosis | at most 1.5 runs | {} | {} |\n",
                      measured ? fmt::format("{:.2f} runs", cost) : "-", measured ? met(cost <= 1.5) : "not measured");
  text += "\nWhat has no aim:\n\n| | |\n|---|---|\n";
  text += fmt::format("| verdict right, failures | {} |\n", to_string(share_of(failures, verdict_right)));
  text +=
      fmt::format("| verdict right, controls (not precision) | {} |\n", to_string(share_of(controls, verdict_right)));
  text += fmt::format("| verdict right, healthy runs | {} |\n", to_string(share_of(healthy, verdict_right)));
  text += fmt::format("| cause among the first three | {} |\n", to_string(share_of(failures, cause_listed)));
  text += fmt::format("| layer or line right | {} |\n", to_string(share_of(with_site(failures), site_right)));
  text += fmt::format("| phase right | {} |\n", to_string(share_of(failures, phase_right)));
  text += fmt::format("| role right | {} |\n", to_string(share_of(failures, role_right)));
  text += fmt::format("| any cure that works | {} |\n", to_string(share_of(failures, cure_works)));
  if (measured)
    text += fmt::format("| median cost, in trainings of f32 | {:.2f} |\n",
                        median_cost(explained, &Score::cost_in_trainings));
  return text;
}

std::string failure_cells(const Scores& s) {
  return fmt::format("{} | {} | {} | {} | {} | {:.2f}", brief(share_of(s, cause_first)),
                     brief(share_of(with_site(s), place_right)), brief(share_of(s, specific_works)),
                     brief(share_of(s, cure_works)), brief(share_of(s, verdict_right)), median_cost(s));
}

std::string failure_table(const std::vector<Score>& scores, std::string Score::*key, const char* what, Group group) {
  std::vector<std::string> keys;
  for (const Score& s : scores)
    if (s.group == group && std::ranges::find(keys, s.*key) == keys.end()) keys.push_back(s.*key);
  std::string text = fmt::format("| {} | cause first | site | specific cure | any cure | verdict | cost |\n", what);
  text += "|---|---|---|---|---|---|---|\n";
  for (const std::string& k : keys)
    text += fmt::format("| {} | {} |\n", k,
                        failure_cells(those(scores, [&](const Score& s) { return s.group == group && s.*key == k; })));
  return text;
}

std::string cell(std::string text) {
  constexpr std::size_t kLongest = 60;
  std::ranges::replace(text, '|', '/');
  return text.size() > kLongest ? text.substr(0, kLongest) + " .." : text;
}

std::string missed(const Scores& failures, const Scores& controls) {
  std::string text = "| instance | cause named | at | cure offered | |\n|---|---|---|---|---|\n";
  for (const Scores* all : {&failures, &controls})
    for (const Score* s : *all) {
      const bool wanted = s->group == Group::control
                              ? s->cause_first
                              : s->cause_first && (!s->has_site || place_right(*s)) && specific_works(*s);
      if (wanted) continue;
      std::string wrong;
      if (!s->cause_first) wrong += "cause ";
      if (s->has_site && s->group == Group::failure && !place_right(*s)) {
        if (!s->site_right) wrong += "site ";
        if (!s->phase_right) wrong += "phase ";
        if (!s->role_right) wrong += "role ";
      }
      if (s->group == Group::failure && !s->specific) wrong += "no-specific-cure ";
      if (s->group == Group::failure && s->specific && !s->cure_works) wrong += "cure-fails ";
      text += fmt::format("| {} | {} | {} | `{}` | {}|\n", s->id, s->cause.empty() ? "none" : s->cause, cell(s->site),
                          cell(s->cure), wrong);
    }
  return text;
}

std::string alarms(const Scores& healthy) {
  std::string text;
  for (const Score* s : healthy)
    if (s->false_alarm) text += fmt::format("- {}: {}; {} at {}\n", s->id, s->verdict, s->cause, s->site);
  return text.empty() ? "None.\n" : text;
}

std::string rejections(const std::vector<Score>& scores) {
  int draws = 0;
  int lost = 0;
  std::string text;
  for (const Score& s : scores) {
    draws += static_cast<int>(s.rejected.size()) + s.counts;
    lost += !s.counts;
    if (!s.counts) text += fmt::format("- {}: {}\n", s.id, s.rejected.empty() ? "" : s.rejected.back());
  }
  return fmt::format("{} draws for {} instances; {} instances had no draw that counts{}\n{}", draws, scores.size(),
                     lost, lost > 0 ? ":\n" : ".", text);
}

}  // namespace

std::string table_of(const std::vector<Score>& scores) {
  const auto of = [&](Group group) { return those(scores, [=](const Score& s) { return s.group == group; }); };
  const Scores failures = of(Group::failure);
  const Scores controls = of(Group::control);
  const Scores healthy = of(Group::healthy);
  double seconds = 0;
  for (const Score& s : scores) seconds += s.seconds;
  std::string text =
      fmt::format("{} failures, {} controls and {} healthy runs count; {:.0f} seconds of processor time.\n\n",
                  failures.size(), controls.size(), healthy.size(), seconds);
  text += aims(failures, controls, healthy);
  text += "\n## Failures by kind\n\n" + failure_table(scores, &Score::kind, "kind", Group::failure);
  text += "\n## Failures by family\n\n" + failure_table(scores, &Score::family, "family", Group::failure);
  text += "\n## Controls by kind\n\n| kind | named rightly | verdict |\n|---|---|---|\n";
  std::map<std::string, Scores> by_kind;
  for (const Score* s : controls) by_kind[s->kind].push_back(s);
  for (const auto& [kind, some] : by_kind)
    text += fmt::format("| {} | {} | {} |\n", kind, brief(share_of(some, cause_first)),
                        brief(share_of(some, verdict_right)));
  text += "\n## What was missed\n\n" + missed(failures, controls);
  text += "\n## False alarms\n\n" + alarms(healthy);
  return text + "\n## Draws\n\n" + rejections(scores);
}

}  // namespace gradual::precision_bench
