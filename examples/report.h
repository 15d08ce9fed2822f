// Time and memory of a training run, and a table of several runs.
#pragma once

#include <gradual/core/tensor/device.h>
#include <gradual/core/tensor/memory.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace example {

using gradual::Category;
using gradual::Device;
using gradual::MemoryStats;

struct Report {
  std::string name;
  std::vector<double> losses = {};
  // of the fastest step; slower ones were disturbed
  double ms = 0;
  double ms_with_copies = 0;
  MemoryStats memory = {};
  MemoryStats before = {};  // the memory of the data
  double mb(Category c) const { return static_cast<double>(memory[c].peak - before[c].current) / 1e6; }
  double total() const { return static_cast<double>(memory.total.peak - before.total.current) / 1e6; }
};

// Milliseconds of f; on a GPU those of its work, between events before and after it.
template <class F> double milliseconds(Device device, const F& f) {
  if (device.is_cuda()) {
    gradual::device::Watch watch(device);
    f();
    return watch.stop().seconds * 1e3;
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  f();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// A line of the table: `value` for each run.
template <class F> void row(const char* name, const std::vector<Report>& runs, const char* format, const F& value) {
  std::printf("%-16s", name);
  for (const Report& r : runs) std::printf(format, value(r));
  std::printf("\n");
}

inline void print(const std::vector<Report>& runs) {
  std::printf("\n");
  row("", runs, "%16s", [](const Report& r) { return r.name.c_str(); });
  std::printf("loss by step\n");
  for (std::size_t i = 0; i < runs[0].losses.size(); ++i)
    row(std::to_string(i + 1).c_str(), runs, "%16.6f", [&](const Report& r) { return r.losses[i]; });
  std::printf("\npeak memory, MB, as the allocator counted it\n");
  for (const Category c : {Category::parameters, Category::masters, Category::activations, Category::gradients,
                           Category::optimizer, Category::workspace})
    row(to_string(c), runs, "%16.2f", [&](const Report& r) { return r.mb(c); });
  row("total", runs, "%16.2f", [](const Report& r) { return r.total(); });
  row("saving", runs, "%15.2fx", [&](const Report& r) { return runs[0].total() / r.total(); });
  std::printf(
      "(workspace: errors on their way back, temporaries, and what a contraction converts; parts peak at "
      "different times)\n\nms of the fastest step, with the upload of its batch (a copy, a cast) and without\n");
  row("with upload", runs, "%16.3f", [](const Report& r) { return r.ms_with_copies; });
  row("step alone", runs, "%16.3f", [](const Report& r) { return r.ms; });
  row("speed-up", runs, "%15.2fx", [&](const Report& r) { return runs[0].ms / r.ms; });
  std::printf("\n");
}

}  // namespace example
