// gradual-bench: runs Google Benchmark and prints one median per name.
//   gradual-bench [--filter REGEX] [--json FILE] [--threads N] [--repetitions N]
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <gradual/core/support/threads.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

// Prints and keeps the median of each benchmark's repetitions, or the only one.
class MedianReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.error_occurred) {
        fmt::print(stderr, "{}: {}\n", run.benchmark_name(), run.error_message);
        failed = true;
        continue;
      }
      if (run.repetitions > 1 && run.aggregate_name != "median") continue;
      const std::string name = run.run_name.function_name;
      // A benchmark with a rate is reported by its rate, others by their time.
      double value = run.GetAdjustedRealTime();
      std::string unit = benchmark::GetTimeUnitString(run.time_unit);
      for (const auto& [counter, v] : run.counters) {
        value = v.value / 1e9;
        unit = counter;
      }
      fmt::print("{:<34} {:>12.2f} {}\n", name, value, unit);
      std::fflush(stdout);
      results.push_back({{"name", name}, {"value", value}, {"unit", unit}});
    }
  }
  nlohmann::json results = nlohmann::json::array();
  bool failed = false;
};

constexpr const char* kUsage = "usage: gradual-bench [--filter REGEX] [--json FILE] [--threads N] [--repetitions N]\n";

[[noreturn]] void usage(const std::string& problem) {
  fmt::print(stderr, "gradual-bench: {}\n{}", problem, kUsage);
  std::exit(2);
}

int number(const std::string& flag, const std::string& text) {
  try {
    std::size_t used = 0;
    const int n = std::stoi(text, &used);
    if (used == text.size() && n >= 1) return n;
  } catch (const std::exception&) {}
  usage(flag + " takes a whole number of at least 1, given '" + text + "'");
}

}  // namespace

int main(int argc, char** argv) {
  std::string filter = ".";
  std::string json;
  int threads = 1;
  int repetitions = 9;
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i];
    std::string value;
    if (flag == "-h" || flag == "--help") {
      fmt::print("{}", kUsage);
      return 0;
    }
    if (const auto equals = flag.find('='); equals != std::string::npos) {
      value = flag.substr(equals + 1);
      flag.resize(equals);
    } else if (i + 1 < argc) {
      value = argv[++i];
    } else {
      usage(flag + " needs a value");
    }
    if (flag == "--filter") filter = value;
    else if (flag == "--json") json = value;
    else if (flag == "--threads") threads = number(flag, value);
    else if (flag == "--repetitions") repetitions = number(flag, value);
    else usage("no flag '" + flag + "'");
  }
  gradual::set_num_threads(threads);

  const std::vector<std::string> flags = {"gradual-bench", "--benchmark_filter=" + filter,
                                          fmt::format("--benchmark_repetitions={}", repetitions),
                                          "--benchmark_min_time=0.1", "--benchmark_enable_random_interleaving=true"};
  std::vector<char*> raw;
  raw.reserve(flags.size());
  for (const std::string& f : flags) raw.push_back(const_cast<char*>(f.c_str()));
  int count = static_cast<int>(raw.size());
  benchmark::Initialize(&count, raw.data());
  MedianReporter reporter;
  const std::size_t run = benchmark::RunSpecifiedBenchmarks(&reporter);
  if (run == 0) usage("no benchmark matches '" + filter + "'");
  if (!json.empty()) {
    std::ofstream file(json);
    file << reporter.results.dump(2) << "\n";
    if (!file.flush()) {
      fmt::print(stderr, "gradual-bench: cannot write '{}'\n", json);
      return 1;
    }
  }
  return reporter.failed ? 1 : 0;
}
