// What a diagnosis of an instance is worth.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "instance.h"

namespace gradual::precision_bench {

// Whether an instance is what it claims: trained without any diagnosis.
struct Check {
  bool counts = false;
  std::string why = {};  // not: the reason
};
// A failure: f32 trains well, the recipe's run fails by the verdict, the mended one does not. A control: the twin with
// nothing planted is better by five points of accuracy. Healthy: two other seeds are as good as f32.
Check check(const Instance& instance, const Instance& twin);

// What a tool says about an instance; the likeliest of several answers comes first.
struct Answer {
  std::optional<inspect::Cause> cause = {};  // none: it names none
  bool precision = true;                     // false: it blames data, rates or code
  std::string site = {};
  std::optional<Phase> phase = {};
  Role role = Role::none;
  std::string cure = {};  // an edit of the recipe
  std::string sentence = {};
};

// One record a finished instance.
struct Score {
  std::string id = {};
  std::string kind = {};
  std::string family = {};
  Group group = Group::failure;
  std::uint64_t seed = 0;
  std::vector<std::string> rejected = {};  // why earlier draws do not count
  bool counts = false;                     // false: no draw did
  std::string verdict = {};                // in words
  bool verdict_right = false;
  std::string cause = {};  // the first finding's
  std::string site = {};
  std::string phase = {};
  std::string cure = {};  // the edit that it offers first
  std::string sentence = {};
  bool cause_first = false;
  bool cause_listed = false;  // among the first three findings
  bool has_site = false;      // the truth names one
  bool site_right = false;
  bool phase_right = false;
  std::string role = {};
  bool role_right = false;
  bool specific = false;         // the cure offered first is specific
  bool cure_works = false;       // its run does not fail
  bool false_alarm = false;      // of a healthy run
  double cost = 0;               // of the diagnosis, in units of the run that it explains, which may have ended early
  double cost_in_trainings = 0;  // in units of f32's training
  double seconds = 0;            // of the whole instance
  std::string description = {};
};
Score diagnose(const Instance& instance);
// The same for the answers of another tool. No answer: it finds nothing wrong. The verdict is right if it blames the
// recipe of a failure, something else of a control, and nothing of a healthy run. Costs are not scored.
Score score_of(const Instance& instance, const std::vector<Answer>& answers);

std::string to_json(const Score& score);
// None for a line that was cut off.
std::optional<Score> score_from_json(const std::string& line);

// True if a finding's site lies at one of the truth's.
bool is_site(const std::string& found, const std::vector<std::string>& sites);
// True if the recipes differ, and in fields that are among these or inside of one: "/quantization/forward_x/scaling".
bool is_specific(const amp::Recipe& from, const amp::Recipe& to, const std::vector<std::string>& fields);

}  // namespace gradual::precision_bench
