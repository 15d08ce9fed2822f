#include "tables.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "../amp/cast_stats.h"
#include "../core/files/atomic_file.h"
#include "../inspect/csv_text.h"
#include "objective.h"
#include "pairs.h"
#include "statistics.h"

namespace gradual::lab {
namespace {

std::string cell(double value, int digits) { return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : ""; }

TextTable results_table(const std::vector<RecipeRuns>& rows) {
  const MetricInfo& metric = rows[0].first().metric;
  TextTable t{.name = "results", .texts = 2};
  t.caption = fmt::format("{}{}, mean over seeds ± their standard deviation; vs fp32: paired difference ± its interval",
                          metric.name, metric.is_share() ? " in percent" : "");
  t.columns = {"recipe",     "verdict", "seeds",   metric.name,     "vs fp32",      "test loss",
               "train loss", "bits",    "ms/step", "underflow [%]", "overflow [%]", "zero [%]"};
  const double scale = metric.is_share() ? 100 : 1;
  for (const RecipeRuns& row : rows) {
    const Result& first = row.first();
    std::vector<double> values;
    for (const Result* r : row.runs) values.push_back(scale * metric_of(*r));
    const Spread s = spread(values);
    const int digits = metric.is_share() ? 2 : 4;
    std::string value = cell(s.mean, digits);
    if (s.count > 1) value += " ± " + cell(s.deviation, digits);
    const std::optional<Difference>& d = first.difference;
    t.rows.push_back({first.recipe, brief(first.verdict), std::to_string(row.runs.size()), value,
                      d ? difference_text(metric, d->mean, d->half) : "", cell(row.of(&Result::test_loss).mean, 4),
                      cell(row.of(&Result::train_loss).mean, 4), cell(first.operand_bits, 2),
                      cell(row.of(&Result::ms_per_step).mean, 2), cell(row.of(&Result::underflow_percent).mean, 3),
                      cell(row.of(&Result::overflow_percent).mean, 3), cell(row.of(&Result::zero_percent).mean, 1)});
  }
  return t;
}

// The cell of a pair as the row's recipe sees it; sign -1: the row is the pair's second.
std::string pair_cell(const MetricInfo& metric, const RecipePair& p, double sign) {
  return difference_text(metric, sign * p.metric.mean + 0.0, p.half_together) + (p.holds ? "*" : "");
}

TextTable pairs_table(const std::vector<RecipeRuns>& rows, const std::vector<RecipePair>& pairs) {
  const MetricInfo& metric = rows[0].first().metric;
  TextTable t{.name = "pairs"};
  t.caption = fmt::format(
      "{}of {}, the row's recipe minus the column's ± half its interval; intervals hold together "
      "with probability 95% (Bonferroni); *: the difference holds over the whole table (Holm)",
      metric.is_share() ? "points " : "differences ", metric.name);
  t.columns = {"recipe"};
  for (const RecipeRuns& row : rows) t.columns.push_back(row.first().recipe);
  std::map<std::pair<std::string, std::string>, std::string> cells;
  for (const RecipePair& p : pairs) {
    cells[{p.first, p.second}] = pair_cell(metric, p, 1);
    cells[{p.second, p.first}] = pair_cell(metric, p, -1);
  }
  for (const RecipeRuns& row : rows) {
    std::vector<std::string>& texts = t.rows.emplace_back();
    texts.push_back(row.first().recipe);
    for (const RecipeRuns& column : rows) {
      const auto found = cells.find({row.first().recipe, column.first().recipe});
      texts.push_back(found == cells.end() ? "" : found->second);
    }
  }
  if (pairs.empty()) t.rows.clear();
  return t;
}

TextTable findings_table(const std::vector<RecipeRuns>& rows) {
  TextTable t{.name = "findings", .caption = "why runs failed", .texts = 6};
  t.columns = {"recipe", "seed", "step", "cause", "sentence", "cure"};
  for (const RecipeRuns& row : rows)
    for (const Result* r : row.runs)
      for (const Finding& f : r->findings)
        t.rows.push_back({r->recipe, std::to_string(r->seed), f.step < 0 ? "" : std::to_string(f.step),
                          std::string(inspect::to_string(f.cause)), f.sentence, f.remedy});
  return t;
}

TextTable layers_table(const std::vector<RecipeRuns>& rows) {
  TextTable t{.name = "layers", .caption = "what rounding loses in each layer, of a recipe's first seed", .texts = 4};
  t.columns = {"recipe", "layer", "kind", "role", "elements", "underflow [%]", "overflow [%]", "NaN"};
  for (const RecipeRuns& row : rows)
    for (const CastRow& c : row.first().casts)
      t.rows.push_back({row.first().recipe, c.layer, c.kind, std::string(to_string(c.role)), std::to_string(c.elements),
                        fmt::format("{:.4g}", c.underflow_percent), fmt::format("{:.4g}", c.overflow_percent),
                        std::to_string(c.nan)});
  return t;
}

std::string latex(const std::string& text) {
  static const std::map<std::string_view, std::string_view> kMarks = {{"\\", "\\textbackslash{}"},
                                                                      {"&", "\\&"},
                                                                      {"%", "\\%"},
                                                                      {"$", "\\$"},
                                                                      {"#", "\\#"},
                                                                      {"_", "\\_"},
                                                                      {"{", "\\{"},
                                                                      {"}", "\\}"},
                                                                      {"~", "\\textasciitilde{}"},
                                                                      {"^", "\\textasciicircum{}"},
                                                                      {"<", "\\textless{}"},
                                                                      {">", "\\textgreater{}"},
                                                                      {"±", "$\\pm$"}};
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = static_cast<unsigned char>(text[i]) == 0xC2 ? 2 : 1;  // U+0080 to U+00BF
    const std::string one = text.substr(i, length);
    const auto mark = kMarks.find(one);
    out += mark == kMarks.end() ? one : std::string(mark->second);
    i += length;
  }
  return out;
}

std::string latex_row(const std::vector<std::string>& texts) {
  std::string line;
  for (const std::string& text : texts) line += (line.empty() ? "" : " & ") + (text.empty() ? "{}" : latex(text));
  return line + " \\\\\n";
}

}  // namespace

std::vector<TextTable> tables_of(const std::vector<Result>& results) {
  const std::vector<RecipeRuns> rows = by_recipe(results);
  std::vector<TextTable> tables;
  if (rows.empty()) return tables;
  for (TextTable& t : std::vector<TextTable>{results_table(rows), pairs_table(rows, recipe_pairs(results)),
                                             findings_table(rows), layers_table(rows)})
    if (!t.rows.empty()) tables.push_back(std::move(t));
  return tables;
}

std::string to_csv(const TextTable& table) {
  const auto line = [](const std::vector<std::string>& texts) {
    std::string text;
    for (std::size_t i = 0; i < texts.size(); ++i) text += (i == 0 ? "" : ",") + inspect::csv_field(texts[i]);
    return text + "\n";
  };
  std::string text = line(table.columns);
  for (const std::vector<std::string>& row : table.rows) text += line(row);
  return text;
}

std::string to_latex(const TextTable& table) {
  std::string columns;
  for (std::size_t i = 0; i < table.columns.size(); ++i) columns += static_cast<int>(i) < table.texts ? 'l' : 'r';
  std::string text = "% needs \\usepackage{booktabs}\n\\begin{table}\n\\caption{" + latex(table.caption) + "}\n";
  text += "\\begin{tabular}{" + columns + "}\n\\toprule\n" + latex_row(table.columns) + "\\midrule\n";
  for (const std::vector<std::string>& row : table.rows) text += latex_row(row);
  return text + "\\bottomrule\n\\end{tabular}\n\\end{table}\n";
}

std::vector<std::string> write_tables(const std::vector<Result>& results, const std::string& folder, bool latex) {
  std::filesystem::create_directories(folder);
  std::vector<std::string> files;
  for (const TextTable& t : tables_of(results)) {
    files.push_back(folder + "/" + t.name + (latex ? ".tex" : ".csv"));
    write_file_atomically(files.back(), latex ? to_latex(t) : to_csv(t));
  }
  return files;
}

}  // namespace gradual::lab
