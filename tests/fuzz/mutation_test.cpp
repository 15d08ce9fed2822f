// What the fuzzers do, for everybody and always the same: thousands of damaged copies of good files. The sanitizer
// builds run it too.
#include <doctest/doctest.h>
#include <gradual/amp/recipe.h>
#include <gradual/core/files/input_file.h>
#include <gradual/core/support/philox.h>
#include <gradual/lab/result.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "fuzz/corpus.h"
#include "fuzz/targets.h"
#include "support/files.h"
#include "support/golden_values.h"

using namespace gradual;

namespace {

// The environment's number, or else this one.
int setting(const char* name, int otherwise) {
  const char* const given = std::getenv(name);
  return given ? std::stoi(given) : otherwise;
}
int mutations() { return setting("GRADUAL_MUTATIONS", 3000); }

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::size_t below(std::size_t n) { return n == 0 ? 0 : philox_word(seed_, 0, count_++) % n; }

 private:
  std::uint64_t seed_;
  std::uint64_t count_ = 0;
};

// Numbers that readers trip over.
const std::vector<std::string> kTokens = {"0",
                                          "-1",
                                          "1e400",
                                          "18446744073709551615",
                                          "9223372036854775808",
                                          "4294967296",
                                          "2147483648",
                                          "nan",
                                          "null",
                                          "{",
                                          "[",
                                          "}",
                                          "]",
                                          "\"",
                                          "'",
                                          ",",
                                          "(",
                                          ")",
                                          ":",
                                          "\n",
                                          "\r\n",
                                          std::string(4, '\xff'),
                                          std::string(4, '\0'),
                                          std::string("\x7f\xff\xff\xff", 4),
                                          "__metadata__",
                                          "[0,0]",
                                          "\"F64\"",
                                          "True",
                                          "\x1f\x8b\x08"};

std::string mutated(std::string bytes, const std::string& other, Dice& dice) {
  for (std::size_t rounds = 1 + dice.below(4); rounds > 0; --rounds) {
    const std::size_t at = dice.below(bytes.size());
    switch (dice.below(7)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << dice.below(8)));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<char>(dice.below(256));
        break;
      case 2: bytes.resize(at); break;
      case 3: bytes.insert(at, kTokens[dice.below(kTokens.size())]); break;
      case 4: bytes.erase(at, 1 + dice.below(8)); break;
      case 5: bytes.insert(at, bytes.substr(dice.below(bytes.size()), dice.below(32))); break;
      default: {
        const std::string& token = kTokens[dice.below(kTokens.size())];
        bytes.replace(at, std::min(token.size(), bytes.size() - at), token);
      }
    }
    if (dice.below(50) == 0) bytes = bytes.substr(0, bytes.size() / 2) + other.substr(other.size() / 2);
  }
  return bytes;
}

// Nothing but Error may come out; returns how many of the damaged files were read all the same.
int survive(bool (*reader)(std::string_view), const std::vector<std::string>& seeds) {
  Dice dice(static_cast<std::uint64_t>(setting("GRADUAL_MUTATION_SEED", 2024)));
  int accepted = 0;
  for (const std::string& seed : seeds) CHECK(reader(seed));
  const int count = mutations();
  for (int i = 0; i < count; ++i) {
    const std::string& seed = seeds[dice.below(seeds.size())];
    // A copy on the heap of exactly this size: one byte past it is an error that the sanitizer sees.
    const std::string input = mutated(seed, seeds[dice.below(seeds.size())], dice);
    const std::vector<char> exact(input.begin(), input.end());
    accepted += reader({exact.data(), exact.size()}) ? 1 : 0;
  }
  return accepted;
}

std::string checkpoint() {
  const test::TemporaryFolder folder;
  StateDict values;
  values.set("step", 3);
  values.set("lr", 0.1);
  save_checkpoint(folder / "a", {{"model", test::golden_values()}, {"optimizer", values}});
  return read_file(folder / "a");
}

}  // namespace

TEST_CASE("damaged safetensors files and checkpoints") {
  const int accepted = survive(fuzz::safetensors, {read_file(test::golden("all.safetensors")), checkpoint()});
  CHECK(accepted > 0);  // mutations that only touch numbers: else we would be testing nothing but the first check
  CHECK(accepted < mutations());
}

TEST_CASE("damaged npy files") {
  std::vector<std::string> seeds;
  for (const char* name : {"f32.npy", "bool.npy", "fortran.npy", "version2.npy", "empty.npy"})
    seeds.push_back(read_file(test::golden(name)));
  const int accepted = survive(fuzz::npy, seeds);
  CHECK(accepted > 0);
  CHECK(accepted < mutations());
}

TEST_CASE("damaged idx files") {
  const std::string plain = std::string("\0\0\x08\x02\0\0\0\x02\0\0\0\x03", 12) + "abcdef";
  const std::string packed(  // the same, by gzip -9n
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x62\x60\x60\x00"
      "\x61\xe6\xc4\xa4\xe4\x94\xd4\x34\x00\x83\xda\x46\x2f\x12\x00\x00\x00",
      35);
  const int accepted = survive(fuzz::idx, {plain, packed});
  CHECK(accepted > 0);
  CHECK(accepted < mutations());
}

TEST_CASE("damaged csv files") {
  const int accepted = survive(fuzz::csv, {"1,2,3\n4,5,6\n", "-1.5e3,+2\r\n\r\n", "0.1\n"});
  CHECK(accepted > 0);
  CHECK(accepted < mutations());
}

TEST_CASE("damaged recipe files") {
  std::vector<std::string> seeds;
  for (const char* name : {"fp16-master", "amp-fp16", "fp8-delayed", "nvfp4"})
    seeds.push_back(amp::to_json(amp::recipe(name)));
  const int accepted = survive(fuzz::recipes, seeds);
  CHECK(accepted > 0);
  CHECK(accepted < mutations());
}

TEST_CASE("damaged results of the lab") {
  lab::Result ran;
  ran.recipe = "fp32";
  ran.status = lab::Status::ok;
  ran.curve = {{1, 2}, {0.5, 0.25}, {1, 1}, {false, true}, {0, 1.5}};
  ran.casts.push_back({.role = amp::Role::error, .layer = "0", .kind = "Linear", .elements = 3});
  ran.histograms.push_back(
      {.role = amp::Role::error, .first_exponent = -3, .counts = {1, 0, 2}, .formats = {{.name = "fp16"}}});
  ran.errors = lab::StepErrors{.rows = {{.phase = Phase::forward, .op = "linear"}}};
  ran.blocks.push_back({.layer = "0",
                        .operand = "forward_x",
                        .block = 32,
                        .columns = 1,
                        .clipped_percent = {3},
                        .regret_percent = {100}});
  ran.updates.push_back({.parameter = "0.weight", .step = {0}, .vanished_percent = {0}, .ratio = {1}, .arriving = {1}});
  const int accepted = survive(fuzz::results, {lab::results_json({ran, ran}, true)});
  CHECK(accepted > 0);
  CHECK(accepted < mutations());
}

TEST_CASE("the fuzzers' corpora: every input is read or refused, and some of each reader's is read") {
  std::set<std::string> archives;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/fuzz/corpus"))
    archives.insert(entry.path().filename());
  std::size_t inputs = 0;
  for (const fuzz::Reader& reader : fuzz::kReaders) {
    const std::string archive = std::string(reader.name) + ".tar";
    CAPTURE(archive);
    REQUIRE(archives.erase(archive) == 1);
    int accepted = 0;
    int all = 0;
    for (const fuzz::Input& input : fuzz::inputs_of_tar(read_file(source_dir() + "/tests/fuzz/corpus/" + archive))) {
      CAPTURE(input.name);
      const std::vector<char> exact(input.bytes.begin(), input.bytes.end());
      accepted += reader.read({exact.data(), exact.size()}) ? 1 : 0;
      ++all;
    }
    CHECK(accepted > 0);
    CHECK(accepted < all);
    inputs += static_cast<std::size_t>(all);
  }
  CHECK(archives.empty());
  CHECK(inputs >= 1161);
}

TEST_CASE("bits of a finite double in a checkpoint, which the library itself writes as a number, are read") {
  CHECK(fuzz::checkpoint(R"([["model", [["w", {"f64 bits": 9218868437227405311}]]], ["o", []]])"));
}

TEST_CASE("a number that is not whole, or too large, is refused where a whole one is expected") {
  CHECK_FALSE(fuzz::checkpoint(R"([["a", [["x", {"f64 bits": 92238581120237041090561}]]]])"));
  CHECK_FALSE(fuzz::checkpoint(R"([["a", [["x", {"f64 bits": 0.5}]]]])"));
  lab::Result ran;
  ran.recipe = "fp32";
  std::string text = lab::results_json({ran}, true);
  CHECK(fuzz::results(text));
  const std::string seed = R"("seed":0)";
  for (const char* other : {R"("seed":1e300)", R"("seed":0.5)", R"("seed":92238581120237041090561)"}) {
    std::string changed = text;
    changed.replace(changed.find(seed), seed.size(), other);
    CHECK_FALSE(fuzz::results(changed));
  }
}

TEST_CASE("files that nest too deep are refused by every reader of JSON") {
  const std::string deep(200'000, '[');
  const std::string closed = deep + std::string(200'000, ']');
  for (const std::string& text : {deep, closed, "{\"name\": " + closed + "}"}) {
    CHECK_THROWS_WITH_AS(amp::recipes_from_json(text), doctest::Contains("nests deeper than 64 levels"), Error);
    CHECK_THROWS_AS(lab::results_from_json(text, "results.json"), Error);
  }
  const std::string quoted = "{\"name\": \"[[[[\\\"" + deep + "\"}";
  CHECK(amp::recipes_from_json(quoted).size() == 1);  // brackets in a string do not nest
}

TEST_CASE("damaged graphs of exported models") {
  std::vector<std::string> seeds;
  for (const fuzz::Input& input : fuzz::inputs_of_tar(read_file(source_dir() + "/tests/fuzz/corpus/pt2_graph.tar")))
    if (fuzz::pt2_graph(input.bytes)) seeds.push_back(input.bytes);
  const int accepted = survive(fuzz::pt2_graph, seeds);
  CHECK(accepted > 0);
  CHECK(accepted < mutations());
}

TEST_CASE("damaged archives of exported models") {
  std::vector<std::string> seeds;
  for (const char* name : {"mlp.pt2", "tied.pt2", "cnn.pt2"})
    seeds.push_back(read_file(source_dir() + "/tests/golden/pt2/" + name));
  const int accepted = survive(fuzz::pt2, seeds);
  CHECK(accepted > 0);  // damage between the entries, which nobody reads
  CHECK(accepted < mutations());
}
