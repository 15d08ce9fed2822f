// The text and the files of a search.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "../core/files/atomic_file.h"
#include "../core/support/error.h"
#include "../core/support/message_text.h"
#include "../inspect/csv_text.h"
#include "search.h"
#include "statistics.h"

namespace gradual::lab {
namespace {

// The loss minus that of the found assignment with the same seeds: mean, standard error, and on how many seeds it is
// higher.
std::string difference(const Trial& t, const Trial& found) {
  std::vector<double> differences;
  for (std::size_t i = 0; i < std::min(t.loss.size(), found.loss.size()); ++i)
    differences.push_back(t.loss[i] - found.loss[i]);
  const Spread s = spread(differences);
  return fmt::format("{:+.2g} +- {:.2g}, higher in {} of {}", s.mean,
                     s.count > 1 ? s.deviation / std::sqrt(s.count) : 0,
                     std::ranges::count_if(differences, [](double d) { return d > 0; }), differences.size());
}

// The trial on the seeds of the last proof; null if there is none.
const Trial* proof_of(const Search& s, const inspect::Assignment& a) {
  const auto found =
      std::ranges::find_if(s.trials, [&](const Trial& t) { return t.first_seed == s.proof_seed && t.assignment == a; });
  return s.proof_seed == 0 || found == s.trials.end() ? nullptr : &*found;
}

const char* proof_sentence(const Search& s) {
  const Trial* proof = s.found ? proof_of(s, *s.found) : nullptr;
  if (s.proven && proof && !proof->is_certain)
    return "its means hold on seeds that the search never saw, but NOT certain: these cannot tell yet\n";
  if (s.proven) return "it holds on seeds that the search never saw\n";
  if (s.proof_seed == 0) return "NOT proven on seeds that the search never saw\n";
  return "NOT proven on seeds that the search never saw: cheaper ones failed their proof\n";
}

// In the order in which they are removed: a recipe without its trials is of no search.
constexpr const char* kFiles[] = {"/recipe.json", "/trials.csv", "/front.svg"};

}  // namespace

static std::string certainty(const Trial& t) { return t.passes && !t.is_certain ? " (passes, not certain)" : ""; }

std::string to_string(const Search& s) {
  if (!s.found) return fmt::format("no assignment passed in {} trainings\n", s.trainings);
  std::string text =
      fmt::format("found: {}\ncost: {:.1f}% of uniform bf16\n", s.to_string(*s.found), 100 * s.cost(*s.found));
  text += s.complete
              ? "no layer can go to a cheaper format\n"
              : "cheaper formats are left that were not tried: the search was stopped, or its trainings ran out\n";
  text += proof_sentence(s);
  if (const Trial* base = proof_of(s, {}))
    text += fmt::format("fp32's {} with the seeds of the proof: {} to {}\n", s.metric.name,
                        value_text(s.metric, std::ranges::min(base->accuracy)),
                        value_text(s.metric, std::ranges::max(base->accuracy)));
  text += fmt::format("trainings: {} of search and proof, {} of the comparison\n", s.trainings, s.compared);
  if (s.proof_seed == 0) return text;
  std::vector<std::vector<std::string>> rows = {
      {"", "assignment", "cost", s.metric.name, "loss", "verdict", "loss minus the found one's"}};
  const Trial* proof = proof_of(s, *s.found);
  for (const Trial& t : s.trials) {
    if (t.first_seed != s.proof_seed) continue;
    const bool compared = proof && &t != proof;
    rows.push_back({t.why, s.to_string(t.assignment), fmt::format("{:.1f}%", 100 * t.cost),
                    value_text(s.metric, spread(t.accuracy).mean), fmt::format("{:.4g}", spread(t.loss).mean),
                    to_string(t.verdict) + certainty(t), compared ? difference(t, *proof) : ""});
  }
  return text + "\n" + table_of(rows);
}

std::string trials_csv(const Search& s) {
  std::string text = "trial,why,first_seed,seeds,cost_of_bf16";
  for (const auto& site : s.sites) text += "," + inspect::csv_field(site.layer);
  text += "," + inspect::csv_field(s.metric.name) + ",loss,points,loss_change,loss_noise,passes,certain,verdict\n";
  int number = 0;
  for (const Trial& t : s.trials) {
    text += fmt::format("{},{},{},{},{:.4f}", number++, t.why, t.first_seed, t.loss.size(), t.cost);
    for (std::size_t i = 0; i < s.sites.size(); ++i)
      text += "," + inspect::csv_field(t.assignment.empty() ? "fp32" : s.formats[t.assignment[i]]);
    text += fmt::format(",{:.6g},{:.6g},{:.4g},{:.4g},{:.4g},{},{},{}\n", spread(t.accuracy).mean, spread(t.loss).mean,
                        t.points, t.loss_change, t.loss_noise, t.passes, t.is_certain,
                        inspect::csv_field(to_string(t.verdict)));
  }
  return text;
}

// The trial's class of styles in front_svg.
static const char* kind_of(const Search& s, const Trial& t) {
  if (s.found && t.assignment == *s.found) return "found";
  return t.passes ? "passes" : "fails";
}

std::string front_svg(const Search& s) {
  // Cost relative to bf16, loss relative to fp32. Both axes are logarithmic; the loss is clamped to 1/2 .. 8.
  double least = 1;
  double most = 1.5;
  for (const Trial& t : s.trials) {
    least = std::min(least, t.cost);
    if (const double ratio = spread(t.loss).mean / t.fp32_loss; ratio > most) most = std::min(ratio, 8.0);
  }
  const auto x = [&](double cost) { return 610 - 540 * std::log2(2 / cost) / std::log2(2 / least); };
  const auto y = [&](double v) {
    return 350 - 310 * (v > 0 ? std::clamp(std::log2(2 * v) / std::log2(2 * most), 0.0, 1.0) : 1);
  };
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 400\">\n<style>text{font:12px sans-serif;fill:#333}"
      "path{stroke:#bbb}rect{stroke:#357;fill:#fff}.passes{fill:#357}.found{stroke:#c30;fill:#c30}</style>\n"
      "<text x=\"60\" y=\"20\">filled: passes; hollow: fails; red: found; squares: on the seeds of the proof</text>\n"
      "<text x=\"250\" y=\"390\">cost, of uniform bf16's</text>\n"
      "<text x=\"14\" y=\"260\" transform=\"rotate(-90 14 260)\">test loss, of fp32's</text>\n";
  for (const double v : {0.0625, 0.125, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 4.0, 8.0}) {
    if (v >= 0.5 && v <= most)
      text += fmt::format("<path d=\"M60 {0:.1f}H620\"/><text x=\"30\" y=\"{0:.1f}\">{1}</text>\n", y(v), v);
    if (v >= least && v <= 2) text += fmt::format("<text x=\"{:.1f}\" y=\"370\">{}</text>\n", x(v) - 8, v);
  }
  for (const Trial& t : s.trials) {
    text += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"9\" height=\"9\" rx=\"{}\"><title>{}: {}, loss "
        "{:.4g}, fp32's {:.4g}</title></rect>\n",
        kind_of(s, t), x(t.cost) - 4.5, y(spread(t.loss).mean / t.fp32_loss) - 4.5, t.first_seed > 0 ? 0 : 4.5, t.why,
        s.to_string(t.assignment), spread(t.loss).mean, t.fp32_loss);
  }
  return text + "</svg>\n";
}

void begin_search(const std::string& folder, bool overwrite) {
  for (const char* file : kFiles) {
    if (!std::filesystem::exists(folder + file)) continue;
    if (!overwrite) throw_error(folder + file + " exists; choose another --out, or replace it with --overwrite");
    std::filesystem::remove(folder + file);
  }
  std::filesystem::create_directories(folder);
}

void save_search(const std::string& folder, const Search& search) {
  if (!search.found) std::filesystem::remove(folder + "/recipe.json");
  write_file_atomically(folder + "/trials.csv", trials_csv(search));
  write_file_atomically(folder + "/front.svg", front_svg(search));
  if (search.found) amp::save_recipes(folder + "/recipe.json", {search.recipe(*search.found)});
}

}  // namespace gradual::lab
