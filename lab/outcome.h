// How a run ended, and the verdict on it, as values. verdict.h makes verdicts; the rows of verdicts.def say what they
// mean.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace gradual::lab {

// all_skipped: no step was applied, the parameters are the initial ones. none: a result without a run.
enum class Status : std::uint8_t { none, ok, all_skipped, diverged, interrupted, count_ };
std::string_view to_string(Status status);  // "", "ok", "all skipped", "diverged", "interrupted"

enum class VerdictKind : std::uint8_t {
#define GRADUAL_VERDICT(kind, ...) kind,
#include "verdicts.def"
  count_
};
enum class Tone : std::uint8_t { plain, good, warning, bad };
std::string_view to_string(Tone tone);

struct VerdictInfo {
  VerdictKind kind;
  std::string_view name;  // its first words
  Tone tone;
  bool fails;  // such a run has something to explain
  std::string_view sentences[3];
  std::string_view beside;   // the words for fp32 that does this; empty: its sentence
  std::string_view meaning;  // for docs/why.md
};
inline constexpr VerdictInfo kVerdictInfos[static_cast<int>(VerdictKind::count_)] = {
#define GRADUAL_VERDICT(kind, name, tone, fails, first, second, third, beside, meaning) \
  {VerdictKind::kind, name, Tone::tone, fails, {first, second, third}, beside, meaning},
#include "verdicts.def"
};
constexpr const VerdictInfo& verdict_info(VerdictKind kind) { return kVerdictInfos[static_cast<int>(kind)]; }
constexpr std::string_view to_string(VerdictKind kind) { return verdict_info(kind).name; }

// What a run does, with the facts of its kind.
struct Outcome {
  VerdictKind kind = VerdictKind::unjudged;
  double points = std::numeric_limits<double>::quiet_NaN();    // of accuracy above fp32
  double interval = std::numeric_limits<double>::quiet_NaN();  // half the interval of 95% of points
  // The same of another metric than accuracy, in its own unit, and its name; empty: it is accuracy.
  double change = std::numeric_limits<double>::quiet_NaN();
  std::string metric = {};
  std::int64_t step = -1;  // of divergence; -1: in evaluation
  std::int64_t skipped = -1, steps = -1;
  bool operator==(const Outcome&) const = default;
};

struct Verdict : Outcome {
  std::optional<Outcome> own = {};   // of a baseline that fails, and where precision is not to blame: what the run does
  std::optional<Outcome> fp32 = {};  // what fp32 does, if it fails
  std::string earlier = {};          // the sentence in a file of a version that stored nothing else
  // True if the run has something to explain.
  bool fails() const { return verdict_info(kind).fails || (own && verdict_info(own->kind).fails); }
};

// The sentence with the facts of its kind.
std::string to_string(const Outcome& outcome);
std::string to_string(const Verdict& verdict);
// Without the numbers behind the words, but for the step of divergence.
std::string brief(const Verdict& verdict);

}  // namespace gradual::lab
