// What a comparison writes while its runs go on: curves.csv, and event files of TensorBoard.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lab.h"

namespace gradual::lab {

// The lines of curves.csv for the steps of a run from `from` on.
std::string curve_lines(const std::string& recipe, std::int64_t seed, const Curve& curve, std::size_t from = 0);

// curves.csv of a folder while one run goes on: the lines of the results so far, and those of its steps, about once a
// second. Folder::write() replaces it. A file that cannot be written stays as it is: the end of the run tells.
class LiveCurves {
 public:
  // folder "": none.
  LiveCurves(const std::string& folder, const std::vector<Result>& before, std::string recipe, std::int64_t seed);
  void update(const Curve& curve, bool finished);

 private:
  std::string path_, recipe_;
  std::int64_t seed_;
  std::size_t written_ = 0;  // steps
  std::chrono::steady_clock::time_point last_{};
};

// Scalars of runs as event files, DIR/RECIPE-seedN/events.out.tfevents.*: loss, loss scale, skipped steps, and the
// metric after each epoch. It is a value of Options::progress. Error if a file cannot be made or written.
class TensorBoard {
 public:
  explicit TensorBoard(std::string folder);
  void operator()(const Progress& progress);

 private:
  struct Events {
    std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{nullptr, nullptr};
    std::string path = {};
    std::int64_t step = 0;   // the last one
    std::int64_t epoch = 0;  // that ended
    std::chrono::steady_clock::time_point flushed = {};
  };
  Events& events_of(const Progress& progress);

  std::string folder_;
  std::shared_ptr<std::map<std::string, Events>> runs_;  // by folder; shared by the copies of a std::function
};

namespace detail {
// CRC-32C (Castagnoli) of bytes, as RFC 3720 has it.
std::uint32_t crc32c(const std::string& bytes);
// A record of TFRecord files: length, checksum of the length, bytes, checksum; little endian, checksums masked.
std::string tf_record(const std::string& bytes);
}  // namespace detail

}  // namespace gradual::lab
