#include "table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "../amp/cast_stats.h"
#include "../inspect/diagnosis.h"
#include "conclusions.h"
#include "decision.h"
#include "launch.h"
#include "objective.h"
#include "statistics.h"

namespace gradual::lab {
namespace {

bool as_if(const RecipeRuns& row) {  // losses are computed as if cast to f16
  return std::ranges::any_of(row.runs, [](const Result* r) {
    return std::ranges::any_of(r->histograms, [](const Histogram& h) { return h.as_if; });
  });
}

// The verdicts of a recipe's seeds, each once; without the numbers behind the words unless `whole`.
std::string verdict_of(const RecipeRuns& row, bool whole) {
  std::vector<std::string> different;
  for (const Result* r : row.runs) {
    std::string one = whole ? to_string(r->verdict) : brief(r->verdict);
    if (r->verdict.kind == VerdictKind::unjudged) one = to_string(r->status);
    if (std::ranges::find(different, one) == different.end()) different.push_back(one);
  }
  std::string text;
  for (const std::string& one : different) text += (text.empty() ? "" : "; ") + one;
  return text;
}

std::string scale_text(double scale) {
  return scale == 1 || std::isnan(scale) ? "-" : fmt::format("2^{:.4g}", std::log2(scale));
}

// A number with its unit; "-" for NaN, the mean over no run.
std::string cell(double value, int digits, const char* unit = "") {
  return std::isnan(value) ? "-" : fmt::format("{:.{}f}{}", value, digits, unit);
}

// A lost share: "0" only if nothing was lost.
std::string lost_cell(double percent) { return percent > 0 && percent < 5e-4 ? "<0.001%" : cell(percent, 3, "%"); }

std::string megabytes(double bytes) {
  return bytes >= 1 << 20 ? fmt::format("{:.1f} MiB", bytes / (1 << 20)) : fmt::format("{:.0f} KiB", bytes / 1024);
}

Spread metric_spread(const RecipeRuns& row) {
  std::vector<double> values;
  for (const Result* r : row.runs) values.push_back(metric_of(*r));
  return spread(values);
}

// The mean of the metric, and with several seeds the deviation between them.
std::string metric_cell(const RecipeRuns& row) {
  const Spread s = metric_spread(row);
  const MetricInfo& metric = row.first().metric;
  const std::string mean = value_text(metric, s.mean);
  if (s.count < 2) return mean;
  if (metric.is_share()) return fmt::format("{} ± {:.2f}", mean, 100 * s.deviation);
  return fmt::format("{} ± {:.2g}", mean, s.deviation);
}

// At most `width` characters of a text without multi-byte ones.
std::string cut(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 2) + "..";
}

// The layer in which rounding makes most gradients zero, or too large; "-": none loses a thousandth.
std::string worst_layer(const RecipeRuns& row) {
  double worst = 0.1;
  std::string layer = "-";
  for (const Result* r : row.runs)
    for (const CastRow& c : r->casts) {
      const double lost = c.underflow_percent + c.overflow_percent;
      if (std::ranges::find(amp::kGradients, c.role) == amp::kGradients.end() || !(lost > worst)) continue;
      worst = lost;
      layer = c.layer;
    }
  return layer.empty() ? "the loss" : layer;
}

// The text in the colour of a verdict.
std::string coloured(const Verdict& verdict, const std::string& text, bool colour) {
  constexpr int kCodes[] = {0, 32, 33, 31};  // by Tone
  const int code = kCodes[static_cast<int>(verdict_info(verdict.kind).tone)];
  return colour && code ? fmt::format("\033[{}m{}\033[0m", code, text) : text;
}

// `text` in lines of at most 80 columns, those after the first indented.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out;
  std::size_t column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::size_t length = end - at;
    if (column > 0 && column + 1 + length > 80) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (at > 0) {
      out += ' ';
      ++column;
    }
    out += text.substr(at, length);
    column += length;
    at = end + 1;
  }
  return out;
}

constexpr const char* kAsIf = "* gradients stay in f32 and lose nothing; shown: what f16 would lose\n";

double error_of(const std::vector<RecipeRuns>& rows) {
  for (const RecipeRuns& row : rows)
    if (row.first().difference) return row.first().difference->error;
  return 0.05;
}

// How many seeds would decide the recipes that are undecided.
std::string seeds_needed(const std::vector<RecipeRuns>& rows) {
  std::string text;
  for (const RecipeRuns& row : rows) {
    const Verdict& v = row.first().verdict;
    if (v.kind != VerdictKind::undecided) continue;
    const bool one_seed = std::isnan(v.interval) || std::isnan(v.loss_interval);
    const std::string few = one_seed ? "a second seed" : "no number of seeds, but more test samples";
    const std::string seeds = v.needed < 0 ? few : fmt::format("{}", v.needed);
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", row.first().recipe, seeds);
  }
  return text.empty() ? text : "cannot tell yet; about so many seeds would (--until decided): " + text + "\n";
}

// How often answers are wrong, of one recipe and of the whole table.
std::string errors_of_all(const std::vector<RecipeRuns>& rows) {
  std::vector<const Result*> compared;
  std::vector<double> p;
  for (const RecipeRuns& row : rows) {
    if (!row.first().difference) continue;
    compared.push_back(&row.first());
    p.push_back(row.first().verdict.p);
  }
  const std::vector<bool> holds = hold_together(p, error_of(rows));
  std::string alone;
  std::ptrdiff_t together = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    together += holds[i] ? 1 : 0;
    if (!holds[i] && !std::isnan(p[i])) alone += (alone.empty() ? "" : ", ") + compared[i]->recipe;
  }
  if (together == 0 && alone.empty()) return "";
  std::string text = "matches, worse, better: each answer is wrong in at most 5% of comparisons";
  if (p.size() < 2) return text + "\n";
  if (alone.empty()) return text + ", and so is any answer of the whole table (Holm)\n";
  return text + "; over the whole table (Holm) this holds without " + alone + "\n";
}

std::string narrow_table(const std::vector<RecipeRuns>& rows, bool colour) {
  std::size_t width = 12;
  for (const RecipeRuns& row : rows) width = std::max(width, row.first().recipe.size());
  width = std::min<std::size_t>(width, 20);
  std::vector<std::string> differences;
  std::size_t wide = 13;
  for (const RecipeRuns& row : rows) {
    const std::optional<Difference>& d = row.first().difference;
    differences.push_back(d ? difference_text(row.first().metric, d->mean, d->half) : "");
    wide = std::max(wide, differences.back().size() - (d ? 1 : 0));  // "±" has two bytes
  }
  const std::size_t used = width + 55 + std::min<std::size_t>(wide - 13, 8);
  const std::size_t left = used < 76 ? 80 - used : 4;  // of the last column
  std::string text = fmt::format("{:<{}} {:<18} {:>8}  {:<{}} {:>9}  {}\n", "recipe", width, "verdict",
                                 cut(rows[0].first().metric.name, 10), "vs fp32", wide, "underflow",
                                 left < 11 ? "layer" : "worst layer");
  for (const RecipeRuns& row : rows) {
    const std::string& difference = differences[static_cast<std::size_t>(&row - rows.data())];
    const std::string verdict = fmt::format("{:<18}", cut(verdict_of(row, false), 18));
    text += fmt::format("{:<{}} {} {:>8}  {:<{}} {:>8}{}  {}\n", cut(row.first().recipe, width), width,
                        coloured(row.first().verdict, verdict, colour),
                        value_text(row.first().metric, metric_spread(row).mean), difference, wide,
                        lost_cell(row.of(&Result::underflow_percent).mean), as_if(row) ? "*" : " ",
                        cut(worst_layer(row), left));
  }
  const Result& one = rows[0].first();
  const MetricInfo& metric = one.metric;
  text += fmt::format("\nvs fp32: {}{} ± the {:.4g}% interval", metric.is_share() ? "points of " : "", metric.name,
                      100 * (1 - error_of(rows)));
  if (!metric.is_share()) text += fmt::format("; {} is better", to_string(metric.better));
  else if (one.test_samples > 0)
    text += fmt::format("; one test sample is {:.2g} points", 100 / static_cast<double>(one.test_samples));
  text += "\nunderflow: gradients that rounding makes zero\n";
  text += wrapped(errors_of_all(rows), 2) + wrapped(seeds_needed(rows), 2);
  return text;
}

std::string wide_table(const std::vector<RecipeRuns>& rows, bool colour) {
  std::size_t width = 12;
  std::size_t accuracy = 9;
  for (const RecipeRuns& row : rows) {
    width = std::max(width, row.first().recipe.size());
    accuracy = std::max(accuracy, metric_cell(row).size() - (row.runs.size() > 1));  // "±" has two bytes
  }
  std::string text = fmt::format("{:<{}} {:>{}} {:>10} {:>10} {:>8} {:>10} {:>7} {:>8} {:>10}  {:>9}  {:>7}   {}\n",
                                 "recipe", width, rows[0].first().metric.name, accuracy, "test loss", "train loss",
                                 "ms/step", "peak", "scale", "skipped", "underflow", "overflow", "zero", "verdict");
  for (const RecipeRuns& row : rows) {
    const char* mark = as_if(row) ? "*" : " ";
    const std::string verdict = verdict_of(row, true);
    text += fmt::format(
        "{:<{}} {:>{}} {:>10} {:>10} {:>8} {:>10} {:>7} {:>8} {:>10}{} {:>9}{} {:>7}{}  {}\n", row.first().recipe,
        width, metric_cell(row), accuracy, cell(row.of(&Result::test_loss).mean, 4),
        cell(row.of(&Result::train_loss).mean, 4), cell(row.of(&Result::ms_per_step).mean, 2),
        megabytes(row.of(&Result::peak_total).mean), scale_text(row.of(&Result::final_scale).mean),
        cell(row.of(&Result::skipped_steps).mean, 1), lost_cell(row.of(&Result::underflow_percent).mean), mark,
        lost_cell(row.of(&Result::overflow_percent).mean), mark, cell(row.of(&Result::zero_percent).mean, 1, "%"), mark,
        coloured(row.first().verdict, verdict, colour));
  }
  return text;
}

}  // namespace

// The accuracy, or the number of another metric.
static std::string tried_text(const Finding::Tried& t) {
  return std::isnan(t.accuracy) ? cell(t.metric, 4) : cell(100 * t.accuracy, 2, "%");
}

std::string to_string(const Finding& f) {
  std::string text = f.step < 0 ? "" : fmt::format("step {}: ", f.step);
  text += fmt::format("{} [{}]", f.sentence, inspect::cause_text(f.cause, f.operands));
  if (f.undone) text += fmt::format(". Undone in a trial: {:.0f}% of the failure", 100 * std::max(0.0, *f.undone));
  if (!f.cure.empty()) text += ". Cure: " + f.remedy;
  if (f.tried) text += fmt::format(". Tried: {}, {}", tried_text(*f.tried), to_string(f.tried->verdict));
  return text;
}

// The phases of recipes with a schedule: one line if all seeds began them alike, else a line for each seed.
static std::string phases_text(const std::vector<RecipeRuns>& rows) {
  std::string text;
  for (const RecipeRuns& row : rows) {
    std::vector<std::string> of_runs;
    for (const Result* run : row.runs) {
      std::string line;
      for (const PhaseEntry& phase : run->phases) line += (line.empty() ? "" : "; ") + to_string(phase);
      of_runs.push_back(line);
    }
    const bool alike = std::ranges::all_of(of_runs, [&](const std::string& line) { return line == of_runs[0]; });
    for (std::size_t i = 0; i < (alike ? 1 : of_runs.size()); ++i) {
      const std::string seed = alike ? "" : fmt::format(", seed {}", row.runs[i]->seed);
      if (!of_runs[i].empty()) text += wrapped(fmt::format("{}{}: {}", row.first().recipe, seed, of_runs[i]), 2) + "\n";
    }
  }
  return text;
}

std::string table(const std::vector<Result>& results, const TableOptions& options) {
  const std::vector<RecipeRuns> rows = by_recipe(results);
  if (rows.empty()) return "no run has ended\n";
  std::string text = options.wide ? wide_table(rows, options.colour) : narrow_table(rows, options.colour);
  if (std::ranges::any_of(rows, as_if)) text += kAsIf;
  for (const RecipeRuns& row : rows)
    if (const double sent = row.of(&Result::bytes_sent).mean; sent > 0)
      text += fmt::format("{}: the exchange sends {} in a step, all ranks together\n", row.first().recipe,
                          megabytes(sent / row.of(&Result::steps).mean));
  text += phases_text(rows);
  if (!options.wide)
    for (const Conclusion& c : conclusions(results)) {
      text += "\n" + wrapped("- " + c.sentence, 2) + "\n";
      if (c.command.empty()) continue;
      text += "    " + (c.is_code ? c.command : wrapped_command(c.command, 76, "        ")) + "\n";
    }
  const bool tried = std::ranges::any_of(results, [](const Result& r) {
    return std::ranges::any_of(r.findings, [](const Finding& f) { return f.tried.has_value(); });
  });
  if (!options.wide && !tried) return text;
  for (const RecipeRuns& row : rows) {  // of a recipe's seeds the first that has findings
    const auto said = std::ranges::find_if(row.runs, [](const Result* r) { return !r->findings.empty(); });
    if (said == row.runs.end()) continue;
    text += fmt::format("\n{}: {}\n", (*said)->recipe, to_string((*said)->verdict));
    for (const Finding& f : (*said)->findings)
      text += "  " + (options.wide ? to_string(f) : wrapped("  " + to_string(f), 4).substr(2)) + "\n";
  }
  return text;
}

}  // namespace gradual::lab
