// gradual-inspect-cost: what the ledger and the shadow of a step cost, relative to the step without: CPU time on one
// thread (the median over the rounds, each of which runs all in turn) and peak memory. And what gradient_sites() costs,
// in steps per site.
//   gradual-inspect-cost [--rounds N] [MODEL RECIPE]
#include <fmt/format.h>
#include <gradual/core/observe/observer.h>
#include <gradual/core/support/threads.h>
#include <gradual/inspect/gradient_sites.h>
#include <gradual/inspect/ledger.h>
#include <gradual/inspect/shadow.h>
#include <gradual/lab/models.h>
#include <gradual/lab/study.h>
#include <gradual/lab/tasks.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

using namespace gradual;

namespace {

double cpu_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

struct Counting final : Observer {
  bool wants_counts() const override { return true; }
};

// The time of gradient_sites() in steps per site, as text; `step`: milliseconds.
std::string steps_a_site(lab::Study& study, const amp::Recipe& recipe, double step) {
  if (!recipe.quantization && recipe.mode != amp::Mode::autocast) return "-";  // it has no sites
  std::vector<double> times;
  for (int round = 0; round < 3; ++round) {
    const double begin = cpu_milliseconds();
    const auto sites = inspect::gradient_sites(recipe, study.model(), [&] { return study.loss(); }).sites.size();
    times.push_back((cpu_milliseconds() - begin) / step / static_cast<double>(sites));
  }
  return fmt::format("{:.2f}", median(times));
}

void measure(const std::string& model, const std::string& recipe, int rounds) {
  const lab::LabData task = lab::data_for(model == "gpt" ? "addition" : "digits");
  lab::Study study(lab::model_for(model, task.load(0).train), task, amp::recipe(recipe), {.step = 20});
  const auto shadowed = [&](bool attribution) {
    inspect::Shadow shadow(study.model(), &study.run().optimizer(), {.attribution = attribution});
    const ObserverScope scope(shadow);
    study.step();
  };
  const std::function<void()> ways[] = {[&] { study.step(); },
                                        [&] {
                                          Counting counting;
                                          const ObserverScope scope(counting);
                                          study.step();
                                        },
                                        [&] {
                                          inspect::Ledger ledger(study.model());
                                          const ObserverScope scope(ledger);
                                          study.step();
                                        },
                                        [&] { shadowed(false); }, [&] { shadowed(true); }};
  constexpr std::size_t kWays = std::size(ways);
  double time[kWays] = {};
  double peak[kWays] = {};
  std::vector<double> plain, ratios[kWays];
  for (int round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < kWays; ++i) {
      study.step();  // so that each begins with the same caches
      reset_peak_memory();
      const double begin = cpu_milliseconds();
      ways[i]();
      time[i] = cpu_milliseconds() - begin;
      peak[i] = static_cast<double>(memory_stats().total.peak);
      ratios[i].push_back(time[i] / time[0]);
      if (i == 0) plain.push_back(time[0]);
    }
  fmt::print("| {} | {} | {:.2f} ms, {:.2f} MiB |", model, recipe, median(plain), peak[0] / (1 << 20));
  for (std::size_t i = 1; i < kWays; ++i) fmt::print(" {:.2f} |", median(ratios[i]));
  fmt::print(" {:.2f} | {:.2f} | {} |\n", peak[3] / peak[0], peak[4] / peak[0],
             steps_a_site(study, amp::recipe(recipe), median(plain)));
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 30;
  std::vector<std::string> only;
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--rounds" && i + 1 < argc) rounds = std::max(1, std::atoi(argv[++i]));
    else only.emplace_back(argv[i]);
  if (!only.empty() && only.size() != 2) {
    fmt::print(stderr, "usage: gradual-inspect-cost [--rounds N] [MODEL RECIPE]\n");
    return 2;
  }
  gradual::set_num_threads(1);
  fmt::print(
      "| model | recipe | a step | counts | ledger | shadow | with attribution | memory, shadow | with attribution | "
      "sites |\n|---|---|---|---|---|---|---|---|---|---|\n");
  if (!only.empty()) {
    measure(only[0], only[1], rounds);
    return 0;
  }
  for (const char* model : {"cnn", "mlp", "gpt"})
    for (const char* recipe : {"fp32", "amp-bf16", "amp-fp16", "fp8-current", "mxfp4"}) measure(model, recipe, rounds);
  return 0;
}
