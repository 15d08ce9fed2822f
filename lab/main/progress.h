// The progress bar of the terminal program.
#pragma once

#include <gradual/lab/lab.h>

#include <chrono>
#include <string>
#include <vector>

namespace gradual::lab {

// One line per run on stderr, redrawn in place on a terminal; otherwise one line when a run ends.
class ProgressBar {
 public:
  ProgressBar(bool quiet, const std::vector<amp::Recipe>& recipes);
  void operator()(const Progress& p);

 private:
  std::string line(const Progress& p) const;

  bool quiet_, terminal_;
  std::size_t width_ = 0;  // of the longest name
  std::chrono::steady_clock::time_point run_started_{}, drawn_{};
  int run_ = -1;
};

}  // namespace gradual::lab
