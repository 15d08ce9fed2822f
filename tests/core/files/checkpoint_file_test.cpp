#include <doctest/doctest.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/checkpoint_file.h>
#include <gradual/core/files/safetensors.h>
#include <gradual/core/support/philox.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/golden_values.h"

using namespace gradual;
using test::message_of;

namespace {

StateDict values() {
  StateDict s;
  s.set("step", std::numeric_limits<std::int64_t>::min());
  s.set("seed", std::numeric_limits<std::uint64_t>::max());
  s.set("lr", 0.1);
  s.set("tiny", 5e-324);
  s.set("minus zero", -0.0);
  s.set("inf", -std::numeric_limits<double>::infinity());
  s.set("nan", std::bit_cast<double>(std::uint64_t{0xfff8'0000'0000'1234}));
  s.set("moment", test::doubles({1, 2}, {2}, DType::f32));
  s.set("note", "é \"quoted\"\n0x12");
  return s;
}

bool same(const StateDict& a, const StateDict& b) {
  if (a.size() != b.size()) return false;
  auto at = b.begin();
  for (const auto& [name, value] : a) {
    if (at->name != name || at->value.index() != value.index()) return false;
    if (const auto* t = std::get_if<Tensor>(&value)) {
      if (!test::same_bits(*t, std::get<Tensor>(at->value))) return false;
    } else if (const auto* d = std::get_if<double>(&value)) {
      if (std::bit_cast<std::uint64_t>(*d) != std::bit_cast<std::uint64_t>(std::get<double>(at->value))) return false;
    } else if (describe(value) != describe(at->value)) {
      return false;
    }
    ++at;
  }
  return true;
}

bool same(const Checkpoint& a, const CheckpointParts& b) {
  if (a.parts.size() != b.size()) return false;
  for (std::size_t i = 0; i < b.size(); ++i)
    if (a.parts[i].first != b[i].first || !same(a.parts[i].second, b[i].second)) return false;
  return true;
}

}  // namespace

TEST_CASE("a checkpoint gives back every bit, kind, name and order") {
  const test::TemporaryFolder folder;
  const CheckpointParts parts = {{"model", test::golden_values()},
                                 {"optimizer", values()},
                                 {"scaler", {}},
                                 {"generator", state_dict(Generator(7))}};
  save_checkpoint(folder / "a", parts);
  const Checkpoint found = load_checkpoint(folder / "a");
  CHECK(same(found, parts));
  CHECK(found.contains("scaler"));
  CHECK_FALSE(found.contains("loader"));
  CHECK(found.part("generator").natural("seed") == 7);
  CHECK(message_of([&] { found.part("loader"); }) ==
        "checkpoint: no part \"loader\"; it has model, optimizer, scaler, generator");
  // other programs find the tensors under part.name
  CHECK(load_safetensors(folder / "a").tensors.contains("model.bf16"));
  save_checkpoint(folder / "b", found.parts);
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
}

TEST_CASE("a checkpoint keeps the bits of every double") {
  using Limits = std::numeric_limits<double>;
  std::vector<double> numbers = {Limits::max(), -Limits::max(), Limits::min(),      Limits::denorm_min(),
                                 0.0,           -0.0,           Limits::infinity(), -Limits::infinity(),
                                 0.1,           1e22,           9007199254740993.0};
  for (std::uint64_t i = 0; i < 20000; ++i)
    numbers.push_back(
        std::bit_cast<double>(std::uint64_t{philox_word(5, 0, 2 * i)} << 32 | philox_word(5, 0, 2 * i + 1)));
  StateDict state;
  for (std::size_t i = 0; i < numbers.size(); ++i) state.set(std::to_string(i), numbers[i]);
  const test::TemporaryFolder folder;
  save_checkpoint(folder / "a", {{"a", state}});
  const StateDict loaded = load_checkpoint(folder / "a").part("a");
  int changed = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double got = std::get<double>(loaded.at(std::to_string(i)));
    changed += std::bit_cast<std::uint64_t>(got) != std::bit_cast<std::uint64_t>(numbers[i]);
  }
  CHECK(changed == 0);
}

TEST_CASE("a checkpoint with any changed bit is refused or has the same contents") {
  const test::TemporaryFolder folder;
  const CheckpointParts parts = {{"model", values()}};
  save_checkpoint(folder / "a", parts);
  const std::string bytes = read_file(folder / "a");
  int harmless = 0;
  bool ok = true;
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    try {
      ok = ok && same(parse_checkpoint(changed, "x"), parts);
      ++harmless;
    } catch (const Error&) {  // which is right
    }
  }
  CHECK(ok);
  CHECK(harmless < 40);  // a blank that became another blank
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CAPTURE(length);
    CHECK_THROWS_AS(parse_checkpoint(bytes.substr(0, length), "x"), Error);
  }
  CHECK_THROWS_AS(parse_checkpoint(bytes + "x", "x"), Error);
}

TEST_CASE("what is wrong with a checkpoint is said") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a";
  save_checkpoint(path, {{"model", values()}});
  const Safetensors good = load_safetensors(path);
  const auto message_with = [&](const std::string& key, const std::string& value) {
    auto metadata = good.metadata;
    metadata[key] = value;
    save_safetensors(path, good.tensors, metadata);
    return message_of([&] { load_checkpoint(path); });
  };
  CHECK(message_with("gradual.checkpoint", "1") == "nothing was thrown");
  CHECK(message_with("gradual.checkpoint", "2") ==
        "checkpoint \"" + path +
            "\": its format version is 2, this library reads versions 1 to 1; a newer one wrote it");
  CHECK(test::contains(message_with("gradual.checkpoint", "0"), "its format version is 0"));
  CHECK(test::contains(message_with("gradual.checkpoint", "one"), "its metadata is malformed"));
  CHECK(test::contains(message_with("gradual.crc32", "0"), "damaged: its checksum is"));
  CHECK(test::contains(message_with("gradual.values", "[]"), "damaged: its checksum is"));
  save_safetensors(path, good.tensors);
  CHECK(test::contains(message_of([&] { load_checkpoint(path); }),
                       "it is a safetensors file but no training checkpoint"));
  CHECK(test::contains(message_of([&] { load_checkpoint(folder / "none"); }), "No such file"));

  write_file_atomically(path, "short");
  CHECK(message_of([&] { load_checkpoint(path); }).starts_with("safetensors \"" + path + "\": "));
  CHECK(message_of([&] { load_checkpoint(path); }).find(path) ==
        message_of([&] { load_checkpoint(path); }).rfind(path));

  write_file_atomically(path, "old");
  CHECK(test::contains(message_of([&] {
                         save_checkpoint(path, {{"a.b", {}}});
                       }),
                       "a part is called \"a.b\"; each needs a name of its own without '.'"));
  CHECK(test::contains(message_of([&] {
                         save_checkpoint(path, {{"a", {}}, {"a", {}}});
                       }),
                       "a part is called \"a\"; each needs a name of its own"));
  StateDict not_text;
  not_text.set("note", "\xff");
  CHECK(test::contains(message_of([&] { save_checkpoint(path, {{"a", not_text}}); }), "is not valid UTF-8"));
  const std::string nowhere = folder / "none/a";
  CHECK(message_of([&] {
          save_checkpoint(nowhere, {{"a", {}}});
        }).starts_with("save_safetensors: \"" + nowhere + "\": cannot write "));
  CHECK(read_file(path) == "old");
}
