// What is written while runs go on: curves.csv, and TensorBoard's event files, read back by a reader of their own.
#include <doctest/doctest.h>
#include <gradual/lab/live.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

namespace {

template <class T> T at(const std::string& bytes, std::size_t offset) {
  T value;
  REQUIRE(offset + sizeof(T) <= bytes.size());
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

// The bytes of each record, with its checksums checked as the format says.
std::vector<std::string> records(const std::string& file) {
  const auto unmasked = [](std::uint32_t masked) { return std::rotl(masked - 0xA282EAD8U, 15); };
  std::vector<std::string> all;
  for (std::size_t offset = 0; offset < file.size();) {
    const auto length = at<std::uint64_t>(file, offset);
    CHECK(unmasked(at<std::uint32_t>(file, offset + 8)) == lab::detail::crc32c(file.substr(offset, 8)));
    all.push_back(file.substr(offset + 12, length));
    CHECK(unmasked(at<std::uint32_t>(file, offset + 12 + length)) == lab::detail::crc32c(all.back()));
    offset += 16 + length;
  }
  return all;
}

// A message of protocol buffers: its fields by number, numbers as their bits.
struct Message {
  std::map<int, std::vector<std::uint64_t>> numbers = {};
  std::map<int, std::vector<std::string>> texts = {};
};
std::uint64_t varint(const std::string& bytes, std::size_t& offset) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    REQUIRE(offset < bytes.size());
    const auto byte = static_cast<unsigned char>(bytes[offset]);
    ++offset;
    value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
}
Message parsed(const std::string& bytes) {
  Message m;
  for (std::size_t offset = 0; offset < bytes.size();) {
    const std::uint64_t key = varint(bytes, offset);
    const int field = static_cast<int>(key >> 3);
    const int wire = static_cast<int>(key & 7);
    REQUIRE((wire == 0 || wire == 1 || wire == 2 || wire == 5));
    if (wire == 0) m.numbers[field].push_back(varint(bytes, offset));
    if (wire == 1) m.numbers[field].push_back(at<std::uint64_t>(bytes, offset));
    if (wire == 5) m.numbers[field].push_back(at<std::uint32_t>(bytes, offset));
    if (wire == 1) offset += 8;
    if (wire == 5) offset += 4;
    if (wire != 2) continue;
    const std::uint64_t length = varint(bytes, offset);
    m.texts[field].push_back(bytes.substr(offset, length));
    offset += length;
  }
  return m;
}

}  // namespace

TEST_CASE("live: the checksum is that of RFC 3720, and a record is that of TFRecord files") {
  CHECK(lab::detail::crc32c("123456789") == 0xE3069283);
  CHECK(lab::detail::crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(lab::detail::crc32c(std::string(32, '\xFF')) == 0x62A8AB43);
  CHECK(records(lab::detail::tf_record("abc")) == std::vector<std::string>{"abc"});
}

TEST_CASE("live: event files hold each step's loss and each epoch's metric") {
  const Folder folder("tensorboard");
  lab::Options options{.epochs = 2};
  options.progress = lab::TensorBoard(folder.path.string());
  const auto results = lab::compare([] { return mlp(); }, small_digits(), recipes({"fp32", "amp-fp16"}), "", options);
  for (const lab::Result& r : results) {
    std::string file;
    for (const auto& entry : fs::directory_iterator(folder.path / (r.recipe + "-seed0")))
      file = r.recipe + "-seed0/" + entry.path().filename().string();
    REQUIRE(file.find("events.out.tfevents.") != std::string::npos);
    const std::vector<std::string> all = records(folder.read(file));
    REQUIRE(!all.empty());
    CHECK(parsed(all[0]).texts.at(3).at(0) == "brain.Event:2");
    std::map<std::string, std::map<std::uint64_t, float>> scalars;  // by tag and step
    for (std::size_t i = 1; i < all.size(); ++i) {
      const Message event = parsed(all[i]);
      CHECK(std::bit_cast<double>(event.numbers.at(1).at(0)) > 1.7e9);
      const Message summary = parsed(event.texts.at(5).at(0));
      for (const std::string& bytes : summary.texts.at(1)) {
        const Message value = parsed(bytes);
        scalars[value.texts.at(1).at(0)][event.numbers.at(2).at(0)] =
            std::bit_cast<float>(static_cast<std::uint32_t>(value.numbers.at(2).at(0)));
      }
    }
    CHECK(scalars.at("loss").size() == r.curve.loss.size());
    CHECK(scalars.at("loss").at(1) == static_cast<float>(r.curve.loss[0]));
    CHECK(scalars.at("loss_scale").at(1) == static_cast<float>(r.curve.scale[0]));
    REQUIRE(scalars.at("test/accuracy").size() == 2);
    CHECK(scalars.at("test/accuracy").contains(r.curve.loss.size() / 2));  // the last step of the first epoch
    CHECK(scalars.at("test/accuracy").at(r.curve.loss.size()) == static_cast<float>(r.test_accuracy));
  }
}

TEST_CASE("live: curves.csv has the steps of a run before it ends, and at the end what it always has") {
  const Folder folder("live-curves");
  lab::Options options{.epochs = 3};
  std::size_t lines_before = 0;
  bool other_is_there = false;
  options.progress = [&](const lab::Progress& p) {
    if (p.recipe.name != "e4m3" || p.step != 2 || p.finished) return;
    const std::string text = folder.read("curves.csv");
    other_is_there = text.find("\nfp32,0,0,") != std::string::npos;
    lines_before = text.find("\ne4m3,0,0,") == std::string::npos ? 0 : 1;
  };
  const auto results =
      lab::compare([] { return mlp(); }, small_digits(), recipes({"fp32", "e4m3"}), folder.path.string(), options);
  CHECK(lines_before == 1);
  CHECK(other_is_there);
  CHECK(folder.read("curves.csv") == lab::curves_csv(results));
}
