#include "live.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <utility>

#include "../core/files/atomic_file.h"
#include "../core/support/error.h"
#include "../core/support/throwf.h"
#include "../inspect/csv_text.h"
#include "folder.h"

namespace gradual::lab {

std::string curve_lines(const std::string& recipe, std::int64_t seed, const Curve& curve, std::size_t from) {
  std::string text;
  for (std::size_t i = from; i < curve.step.size(); ++i) {
    const double underflow = curve.underflow_percent[i];
    text += fmt::format("{},{},{},{},{},{},{},{}\n", inspect::csv_field(recipe), seed, curve.step[i], curve.loss[i],
                        curve.scale[i], curve.skipped[i] ? 1 : 0,
                        std::isnan(underflow) ? std::string() : fmt::format("{}", underflow),
                        curve.phase.empty() ? 0 : curve.phase[i]);
  }
  return text;
}

LiveCurves::LiveCurves(const std::string& folder, const std::vector<Result>& before, std::string recipe,
                       std::int64_t seed)
    : path_(folder.empty() ? "" : folder + "/curves.csv"), recipe_(std::move(recipe)), seed_(seed) {
  if (!path_.empty()) write_file_atomically(path_, curves_csv(before));
}

void LiveCurves::update(const Curve& curve, bool finished) {
  constexpr std::chrono::seconds kEvery(1);
  const auto now = std::chrono::steady_clock::now();
  if (path_.empty() || (!finished && now - last_ < kEvery)) return;
  last_ = now;
  std::ofstream file(path_, std::ios::app);
  file << curve_lines(recipe_, seed_, curve, written_);
  if (file.flush()) written_ = curve.step.size();
}

namespace detail {

std::uint32_t crc32c(const std::string& bytes) {
  static const std::array<std::uint32_t, 256> table = [] {
    constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reversed
    std::array<std::uint32_t, 256> all{};
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value & 1) != 0 ? value >> 1 ^ kPolynomial : value >> 1;
      all[i] = value;
    }
    return all;
  }();
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

namespace {

template <class T> std::string little_endian(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  return bytes;
}

std::uint32_t masked(std::uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8; }

// The wire format of protocol buffers.
std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
std::string key(int field, Wire wire) {
  return varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}
std::string bytes_field(int field, const std::string& bytes) {
  return key(field, Wire::bytes) + varint(bytes.size()) + bytes;
}

// tensorflow/core/util/event.proto: wall_time 1, step 2, and what follows.
std::string event(std::int64_t step, const std::string& rest) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return key(1, Wire::fixed64) + little_endian(std::bit_cast<std::uint64_t>(seconds)) + key(2, Wire::varint) +
         varint(static_cast<std::uint64_t>(step)) + rest;
}

// summary 5, in it a value 1 of tag 1 and simple_value 2.
std::string scalar(const std::string& tag, double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return bytes_field(1, bytes_field(1, tag) + key(2, Wire::fixed32) + little_endian(bits));
}

}  // namespace

std::string tf_record(const std::string& bytes) {
  const std::string length = little_endian(static_cast<std::uint64_t>(bytes.size()));
  return length + little_endian(masked(crc32c(length))) + bytes + little_endian(masked(crc32c(bytes)));
}

}  // namespace detail

TensorBoard::TensorBoard(std::string folder)
    : folder_(std::move(folder)), runs_(std::make_shared<std::map<std::string, Events>>()) {
  std::filesystem::create_directories(folder_);
}

TensorBoard::Events& TensorBoard::events_of(const Progress& p) {
  const std::string name = run_file(p.recipe.name, p.seed);
  Events& events = (*runs_)[name];
  if (events.file) return events;
  const std::string run = folder_ + "/" + std::filesystem::path(name).stem().string();
  std::filesystem::create_directories(run);
  events.path = fmt::format("{}/events.out.tfevents.{}.gradual", run, std::time(nullptr));
  events.file = {std::fopen(events.path.c_str(), "wb"), std::fclose};
  if (!events.file) throwf("cannot write '{}': {}", events.path, std::strerror(errno));
  const std::string version = detail::tf_record(detail::event(0, detail::bytes_field(3, "brain.Event:2")));
  std::fwrite(version.data(), 1, version.size(), events.file.get());
  return events;
}

void TensorBoard::operator()(const Progress& p) {
  Events& events = events_of(p);
  const auto write = [&](std::int64_t step, const std::string& values) {
    const std::string record = detail::tf_record(detail::event(step, detail::bytes_field(5, values)));
    std::fwrite(record.data(), 1, record.size(), events.file.get());
  };
  if (p.epoch > events.epoch && std::isfinite(p.value)) {
    // An epoch is told with the first step of the next one.
    write(p.finished ? p.step : p.step - 1, detail::scalar("test/" + p.metric.name, p.value));
    events.epoch = p.epoch;
  }
  if (p.step > events.step) {
    write(p.step, detail::scalar("loss", p.loss) + detail::scalar("loss_scale", p.scale) +
                      detail::scalar("skipped_steps", static_cast<double>(p.skipped)));
    events.step = p.step;
  }
  constexpr std::chrono::seconds kEvery(1);
  const auto now = std::chrono::steady_clock::now();
  if (!p.finished && now - events.flushed < kEvery) return;
  events.flushed = now;
  if (std::fflush(events.file.get()) != 0 || std::ferror(events.file.get()) != 0)
    throwf("cannot write '{}': {}", events.path, std::strerror(errno));
  if (p.finished) events.file.reset();
}

}  // namespace gradual::lab
