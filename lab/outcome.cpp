#include "outcome.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "../core/support/message_text.h"

namespace gradual::lab {
namespace {

// The facts of an outcome by the names that sentences use.
class Facts {
 public:
  explicit Facts(const Outcome& o) {
    if (!std::isnan(o.points)) {
      add("points", o.points);
      add("deficit", -o.points);
      add("interval", o.interval);
    }
    add_difference(o);
    if (!std::isnan(o.loss)) {
      add("loss", o.loss);
      if (!std::isnan(o.loss_interval)) add("loss_interval", o.loss_interval);
    }
    if (!std::isnan(o.high)) {
      add("low", o.low);
      add("high", o.high);
    }
    if (o.needed >= 0) add("needed", o.needed);
    if (o.step >= 0) add("step", o.step);
    if (o.skipped >= 0) add("skipped", o.skipped);
    if (o.steps >= 0) add("steps", o.steps);
  }
  // What the metric differs by, where the interval is known.
  void add_difference(const Outcome& o) {
    if (std::isnan(o.points) || std::isnan(o.interval)) return;
    const bool is_share = o.metric.empty();
    const std::string difference = is_share ? fmt::format("{:+.1f} ± {:.1f} points", o.points, o.interval)
                                            : fmt::format("{} {:+.1f} ± {:.1f}%", o.metric, o.change, o.interval);
    add("difference", difference);
    add("named", is_share ? "accuracy " + difference : difference);
    add("shortfall", is_share ? fmt::format("{:.1f} ± {:.1f} points", -o.points, o.interval)
                              : fmt::format("{:.1f} ± {:.1f}% of fp32's {}", -o.points, o.interval, o.metric));
  }
  template <class T> void add(const char* name, const T& value) {
    names_.emplace_back(name);
    values_.push_back(fmt::arg(name, value));
  }
  // The first sentence whose facts are known; the name if there is none, and "" for a kind without sentences.
  std::string sentence(const VerdictInfo& info) const {
    if (info.sentences[0].empty()) return "";
    for (const std::string_view text : info.sentences)
      if (!text.empty() && knows_all_of(text)) return fmt::vformat(text, values_);
    return std::string(info.name);
  }

 private:
  bool knows_all_of(std::string_view text) const {
    for (std::size_t at = text.find('{'); at != std::string_view::npos; at = text.find('{', at + 1)) {
      const std::string_view name = text.substr(at + 1, text.find_first_of(":}", at) - at - 1);
      if (std::ranges::find(names_, name) == names_.end()) return false;
    }
    return true;
  }

  std::vector<std::string> names_;
  fmt::dynamic_format_arg_store<fmt::format_context> values_;
};

std::string beside(const Outcome& fp32) {
  const std::string_view words = verdict_info(fp32.kind).beside;
  return words.empty() ? to_string(fp32) : std::string(words);
}

}  // namespace

std::string_view to_string(Status status) {
  return enum_name(status, {"", "ok", "all skipped", "diverged", "interrupted"});
}

std::string_view to_string(Tone tone) { return enum_name(tone, {"plain", "good", "warning", "bad"}); }

std::string to_string(const Note& note) {
  return fmt::format(fmt::runtime(kNoteInfos[static_cast<int>(note.kind)].sentence), fmt::arg("value", note.value),
                     fmt::arg("of", note.of));
}

std::string to_string(const Outcome& o) { return Facts(o).sentence(verdict_info(o.kind)); }

std::string to_string(const Verdict& v) {
  if (!v.earlier.empty()) return v.earlier;
  Facts facts(v);
  if (v.own) facts.add("own", to_string(*v.own));
  if (v.fp32) facts.add("fp32", beside(*v.fp32));
  std::string text = facts.sentence(verdict_info(v.kind));
  for (const Note& note : v.notes) text += (&note == v.notes.data() ? ", but " : ", ") + to_string(note);
  return text;
}

std::string brief(const Verdict& v) {
  if (v.kind == VerdictKind::diverged) return to_string(v);
  return std::string(verdict_info(v.kind).name) + (v.notes.empty() ? "" : ", but");
}

}  // namespace gradual::lab
