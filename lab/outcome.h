// How a run ended, and the verdict on it, as values. verdict.h makes verdicts; the rows of verdicts.def say what they
// mean.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

// What a verdict names beside its answer, with the numbers of its sentence.
enum class NoteKind : std::uint8_t {
#define GRADUAL_NOTE(kind, ...) kind,
#include "verdicts.def"
  count_
};
struct NoteInfo {
  NoteKind kind;
  std::string_view name, sentence, meaning;
};
inline constexpr NoteInfo kNoteInfos[static_cast<int>(NoteKind::count_)] = {
#define GRADUAL_NOTE(kind, name, sentence, meaning) {NoteKind::kind, name, sentence, meaning},
#include "verdicts.def"
};
constexpr std::string_view to_string(NoteKind kind) { return kNoteInfos[static_cast<int>(kind)].name; }

struct Note {
  NoteKind kind = NoteKind::skipped_steps;
  double value = 0;
  double of = 0;
  bool operator==(const Note&) const = default;
};
std::string to_string(const Note& note);

// What a run does, with the facts of its kind.
struct Outcome {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  VerdictKind kind = VerdictKind::unjudged;
  double points = kNone;    // of accuracy above fp32
  double interval = kNone;  // half the interval of points
  // Of another metric than a share: points and interval are percent of fp32's value, above 0 if better; the change has
  // the metric's sign.
  std::string metric = {};
  double change = kNone;
  std::int64_t step = -1;  // of divergence; -1: in evaluation
  std::int64_t skipped = -1;
  std::int64_t steps = -1;
  double loss = kNone;           // test loss above fp32's, in percent of that
  double loss_interval = kNone;  // half the interval of loss
  std::int64_t needed = -1;      // seeds that would decide, with a chance of 80%; -1: no number of seeds does
  double low = kNone;            // a training loss that rises: of the first step
  double high = kNone;           // of the last epoch
  double p = kNone;              // the chance of results like these if the answer is wrong
  bool looks_worse = false;  // undecided, but the trained models differ by more than margin and test samples explain
  bool operator==(const Outcome&) const = default;
};

struct Verdict : Outcome {
  std::optional<Outcome> own = {};   // of a baseline that fails, and where precision is not to blame: what the run does
  std::optional<Outcome> fp32 = {};  // what fp32 does, if it fails
  std::string earlier = {};          // the sentence in a file of a version that stored nothing else
  std::vector<Note> notes = {};      // what an answer that is not worse has beside it
  // True if the run has something to explain.
  bool fails() const {
    return verdict_info(kind).fails || looks_worse || !notes.empty() || (own && verdict_info(own->kind).fails);
  }
};

// The sentence with the facts of its kind.
std::string to_string(const Outcome& outcome);
std::string to_string(const Verdict& verdict);
// Without the numbers behind the words, but for the step of divergence.
std::string brief(const Verdict& verdict);

}  // namespace gradual::lab
