// The progress bar of the terminal program.
#pragma once

#include <gradual/lab/lab.h>

#include <chrono>
#include <string>
#include <vector>

namespace gradual::lab {

// One line per run on stderr, redrawn in place on a terminal; otherwise one line when a run ends, and every ten
// seconds. Each tells how long the rest takes at the speed so far, and a comparison of more than a minute says so at
// its start.
class ProgressBar {
 public:
  // lines: never redrawn in place.
  ProgressBar(bool quiet, const std::vector<amp::Recipe>& recipes, bool lines = false);
  void operator()(const Progress& p);

 private:
  std::string line(const Progress& p) const;
  double seconds_left(const Progress& p) const;

  bool quiet_, terminal_;
  std::size_t width_ = 0;  // of the longest name
  std::chrono::steady_clock::time_point started_{};
  std::chrono::steady_clock::time_point run_started_{};
  std::chrono::steady_clock::time_point drawn_{};
  int run_ = -1;
  std::int64_t seen_ = 0;  // steps
  bool told_ = false;      // how long it will take
};

}  // namespace gradual::lab
