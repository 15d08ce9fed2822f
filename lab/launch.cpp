#include "launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../amp/recipe.h"
#include "../core/support/error.h"
#include "../core/support/printable.h"
#include "lab.h"
#include "search.h"

namespace gradual::lab {
namespace {

using Words = std::vector<std::string>;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

// ".a = 1, .b = 2" of pairs; those alone whose names are listed, in that order.
std::string designated(const Words& pairs, std::span<const char* const> names) {
  Words fields;
  for (const char* name : names)
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2)
      if (pairs[i] == name) fields.push_back(fmt::format(".{} = {}", name, pairs[i + 1]));
  return fmt::format("{}", fmt::join(fields, ", "));
}

std::string enumerator(ScheduleKind kind) {
  std::string name(to_string(kind));
  std::ranges::replace(name, '-', '_');
  return "lab::ScheduleKind::" + name;
}

std::string rates_text(const Rates& r) {
  Words fields;
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) fields.push_back(fmt::format(".{} = {}", name, *value));
  };
  add("weight_decay", r.weight_decay);
  add("momentum", r.momentum);
  add("beta1", r.beta1);
  add("beta2", r.beta2);
  add("eps", r.eps);
  return fmt::format("{}", fmt::join(fields, ", "));
}

// The fields that differ from the usual training.
std::string training_text(const Training& t) {
  const Training usual;
  Words fields;
  const std::string rates = rates_text(t.rates);
  if (!rates.empty()) fields.push_back(".rates = {" + rates + "}");
  if (t.schedule != usual.schedule) fields.push_back(".schedule = " + enumerator(t.schedule));
  if (t.warmup != usual.warmup) fields.push_back(fmt::format(".warmup = {}", t.warmup));
  if (t.clip != usual.clip) fields.push_back(fmt::format(".clip = {}", t.clip));
  if (t.accumulate != usual.accumulate) fields.push_back(fmt::format(".accumulate = {}", t.accumulate));
  if (t.average != usual.average) fields.push_back(fmt::format(".average = {}", t.average));
  return fmt::format("{}", fmt::join(fields, ", "));
}

// Names and values of what decides a training, besides model and data. A loss or metric that is a function stands for
// the caller's variable of this name.
Words fields_of(const Options& o) {
  Words pairs = {"epochs", std::to_string(o.epochs), "batch", std::to_string(o.batch)};
  const auto add = [&](const char* name, const std::string& value) { pairs.insert(pairs.end(), {name, value}); };
  add("lr", fmt::format("{}", o.lr));
  add("optimizer", quoted(o.optimizer));
  if (o.loss.function || !o.loss.name.empty()) add("loss", o.loss.function ? "loss" : quoted(o.loss.name));
  if (o.metric.function || !o.metric.name.empty()) add("metric", o.metric.function ? "metric" : quoted(o.metric.name));
  const std::string training = training_text(o.training);
  if (!training.empty()) add("training", "{" + training + "}");
  if (!o.device.is_cpu()) add("device", fmt::format("Device::cuda({})", o.device.index));
  return pairs;
}

// In the order of their declarations.
constexpr std::array kStudyFields = {"step",      "seed", "batch",    "epochs", "lr",
                                     "optimizer", "loss", "training", "device"};
constexpr std::array kRunFields = {"epochs", "batch",    "lr",    "optimizer", "loss",
                                   "metric", "training", "seeds", "device"};

std::string study_options(const Origin& origin, const StepOfRun& at) {
  Words pairs = origin.options;
  pairs.insert(pairs.end(), {"step", std::to_string(at.step)});
  if (at.seed != 0) pairs.insert(pairs.end(), {"seed", std::to_string(at.seed)});
  return "{" + designated(pairs, kStudyFields) + "}";
}

// JSON in one line; its strings have no line breaks.
std::string in_one_line(const std::string& json) {
  std::string line;
  bool indent = false;
  for (const char c : json) {
    indent = c == '\n' || (indent && c == ' ');
    if (!indent) line += c;
  }
  return line;
}

// True if the name alone gives the recipe. A name of the user's own may look like one that the table cannot read.
bool is_named(const amp::Recipe& recipe, const std::string& json) {
  try {
    return amp::is_recipe(recipe.name) && amp::to_json(amp::recipe(recipe.name)) == json;
  } catch (const Error&) { return false; }
}

std::string recipe_expression(const amp::Recipe& recipe) {
  const std::string json = amp::to_json(recipe);
  if (is_named(recipe, json)) return "amp::recipe(" + quoted(recipe.name) + ")";
  return "amp::recipe_from_json(R\"json(" + in_one_line(json) + ")json\")";
}

std::string joined(const Words& words) {
  Words shell;
  for (const std::string& w : words) shell.push_back(shell_word(w));
  return fmt::format("{}", fmt::join(shell, " "));
}

Words command(const Origin& origin, const char* name) {
  Words words = {origin.program, name};
  words.insert(words.end(), origin.options.begin(), origin.options.end());
  return words;
}
void add_step(Words& words, const StepOfRun& at) {
  words.insert(words.end(), {"--step", std::to_string(at.step)});
  if (at.seed != 0) words.insert(words.end(), {"--seed", std::to_string(at.seed)});
}

}  // namespace

Origin origin_of(const amp::Recipe& recipe, const Options& options) {
  if (options.ranks || options.ranks_emulated) return {};
  const Launch& launch = options.launch;
  if (launch.program.empty()) return {"", fields_of(options), recipe_expression(recipe)};
  const auto named = launch.recipes.find(recipe.name);
  Origin origin{launch.program, launch.options, named == launch.recipes.end() ? recipe.name : named->second};
  Words all = origin.options;
  all.insert(all.end(), {origin.program, origin.recipe});
  const bool prints = std::ranges::all_of(all, [](const std::string& w) { return is_printable_name(w); });
  return prints ? origin : Origin{};
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "-_./,:=+@%";
  const bool plain = !word.empty() && std::ranges::all_of(word, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string step_command(const Origin& origin, const StepOfRun& at) {
  if (origin.recipe.empty()) return "";
  if (origin.program.empty())
    return fmt::format("lab::step_report(make_model, data, {}, {})", origin.recipe, study_options(origin, at));
  Words words = command(origin, "step");
  words.insert(words.end(), {"--recipe", origin.recipe});
  add_step(words, at);
  return joined(words);
}

std::string diff_command(const Origin& first, const Origin& second, const StepOfRun& at) {
  const bool alike = first.program.empty() == second.program.empty() && first.options == second.options;
  if (first.recipe.empty() || second.recipe.empty() || !alike) return "";
  if (first.program.empty())
    return fmt::format("lab::diff_report(make_model, data, {}, {}, {})", first.recipe, second.recipe,
                       study_options(first, at));
  Words words = command(first, "diff");
  add_step(words, at);
  words.insert(words.end(), {first.recipe, second.recipe});
  return joined(words);
}

std::string search_command(const Origin& origin, const StepOfRun& at) {
  if (origin.recipe.empty()) return "";
  if (!origin.program.empty()) {
    Words words = command(origin, "search");
    add_step(words, at);
    return joined(words);
  }
  Words run = origin.options;
  run.insert(run.end(), {"seeds", std::to_string(SearchOptions().run.seeds)});
  return fmt::format("lab::search(make_model, data, {{.step = {}, .run = {{{}}}}})", study_options(origin, at),
                     designated(run, kRunFields));
}

std::string wrapped_command(const std::string& command, std::size_t columns, const std::string& indent) {
  // An option stays with its values.
  Words groups;
  bool inside = false;  // of quotes, where no line may end
  for (std::size_t i = 0; i < command.size(); ++i) {
    const bool escaped = !inside && i > 0 && command[i - 1] == '\\';  // the apostrophe of shell_word
    if (command[i] == '\'' && !escaped) inside = !inside;
    const bool begins = !inside && command[i] == ' ' && command.substr(i + 1, 2) == "--";
    if (begins || groups.empty()) groups.emplace_back();
    if (!begins) groups.back() += command[i];
  }
  constexpr std::size_t kBackslash = 2;
  std::string out;
  std::size_t column = 0;
  for (const std::string& group : groups) {
    if (column > 0 && column + 1 + group.size() + kBackslash > columns) {
      out += " \\\n" + indent;
      column = indent.size();
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    out += group;
    column += group.size();
  }
  return out;
}

}  // namespace gradual::lab
