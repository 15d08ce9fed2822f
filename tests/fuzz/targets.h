// One function for each reader: whatever the bytes, it returns a value or throws Error, and nothing else. The libFuzzer
// programs and the mutation test share them.
#pragma once

#include <gradual/amp/recipe.h>
#include <gradual/core/files/checkpoint_file.h>
#include <gradual/core/files/npy.h>
#include <gradual/core/files/safetensors.h>
#include <gradual/data/csv.h>
#include <gradual/data/gzip.h>
#include <gradual/data/idx.h>
#include <gradual/data/text.h>
#include <gradual/lab/result.h>
#include <gradual/pt2/module.h>
#include <gradual/pt2/plan.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "support/files.h"

namespace fuzz {

// Reads every byte, so that a sanitizer sees one that is not the tensor's.
inline void touch(const gradual::Tensor& t) {
  const gradual::Tensor dense = t.contiguous();
  const auto* p = static_cast<const volatile unsigned char*>(dense.raw());
  for (std::size_t i = 0; i < dense.nbytes(); ++i) static_cast<void>(p[i]);
}

inline void touch(const gradual::StateDict& state) {
  for (const auto& entry : state)
    if (const auto* t = std::get_if<gradual::Tensor>(&entry.value)) touch(*t);
}

// What must hold of a value that was read; a false one ends the program, as a sanitizer's report does.
inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// True if f() accepted the bytes, false if it refused them by an Error.
template <class F> bool reads(F f) {
  try {
    f();
    return true;
  } catch (const gradual::Error&) { return false; }
}

inline bool safetensors(std::string_view bytes) {
  return reads([&] {
    const gradual::Safetensors read = gradual::parse_safetensors(bytes, "input");
    touch(read.tensors);
    if (read.metadata.contains("gradual.checkpoint"))
      for (const auto& part : gradual::parse_checkpoint(bytes, "input").parts) touch(part.second);
  });
}

inline bool npy(std::string_view bytes) {
  return reads([&] { touch(gradual::parse_npy(bytes, "input")); });
}

inline bool idx(std::string_view bytes) {
  return reads([&] { touch(gradual::data::parse_idx(bytes, "input")); });
}

// At most 1 MiB: a bomb of a few kilobytes must be refused, not unpacked.
inline bool gzip(std::string_view bytes) {
  constexpr std::uint64_t kMost = 1 << 20;
  return reads([&] { must(gradual::data::gunzip_if_packed(bytes, "input", kMost).size() <= kMost, "gzip's limit"); });
}

inline bool csv(std::string_view bytes) {
  return reads([&] { touch(gradual::data::parse_csv(bytes, "input")); });
}

// The first two bytes choose the options, the rest is the text.
inline bool text(std::string_view bytes) {
  if (bytes.size() < 2) return false;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const gradual::data::TextOptions options{
      .context = byte(0) % 32, .stride = byte(1) % 16 - 1, .test_fraction = byte(1) / 200.0};
  return reads([&] {
    const std::string_view corpus = bytes.substr(2);
    const gradual::data::TextDataset set = gradual::data::make_text_dataset(corpus, options);
    must(set.vocabulary.decode(set.vocabulary.encode(corpus)) == corpus, "decode(encode(text)) is the text");
    for (const gradual::data::Dataset* part : {&set.train, &set.test}) {
      touch(part->inputs);
      touch(part->targets);
    }
  });
}

inline bool recipes(std::string_view bytes) {
  return reads([&] {
    for (const gradual::amp::Recipe& read : gradual::amp::recipes_from_json(std::string(bytes))) {
      const std::string written = gradual::amp::to_json(read);
      must(gradual::amp::to_json(gradual::amp::recipe_from_json(written)) == written, "a recipe, written and read");
    }
  });
}

// Equal names and values; of doubles and tensors every bit.
inline bool same(const gradual::StateDict& a, const gradual::StateDict& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    const auto* p = std::get_if<double>(&x.value);
    const auto* q = std::get_if<double>(&y.value);
    if (p && q) return x.name == y.name && std::bit_cast<std::uint64_t>(*p) == std::bit_cast<std::uint64_t>(*q);
    return x.name == y.name && x.value.index() == y.value.index() && describe(x.value) == describe(y.value);
  });
}

// A checkpoint without tensors, with these values as its JSON and the right checksum. Empty for invalid UTF-8.
inline std::string checkpoint_file(std::string_view values) {
  const auto* p = reinterpret_cast<const unsigned char*>(values.data());
  const nlohmann::json header = {{"__metadata__",
                                  {{"gradual.checkpoint", "1"},
                                   {"gradual.values", std::string(values)},
                                   {"gradual.crc32", std::to_string(crc32_z(0, p, values.size()))}}}};
  try {
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
  } catch (const nlohmann::json::exception&) { return {}; }
}

// The bytes are the JSON of a checkpoint's values. What is read, written and read again keeps every bit.
inline bool checkpoint(std::string_view bytes) {
  return reads([&] {
    const gradual::Checkpoint read = gradual::parse_checkpoint(checkpoint_file(bytes), "input");
    static const test::TemporaryFolder folder;
    gradual::save_checkpoint(folder / "again", read.parts);
    const gradual::Checkpoint again = gradual::load_checkpoint(folder / "again");
    must(read.parts.size() == again.parts.size(), "the parts of a checkpoint");
    for (std::size_t i = 0; i < read.parts.size(); ++i) {
      must(read.parts[i].first == again.parts[i].first, "the name of a part");
      must(same(read.parts[i].second, again.parts[i].second), "the values of a part");
    }
  });
}

inline bool results(std::string_view bytes) {
  return reads([&] { gradual::lab::results_from_json(std::string(bytes), "input"); });
}

// The data that a report embeds: what is read, put into a page and taken out again, is the same and ends no script.
inline bool report(std::string_view bytes) {
  return reads([&] {
    const std::vector<gradual::lab::Result> read = gradual::lab::results_from_json(std::string(bytes), "input");
    const std::string page = gradual::lab::report_html(read);
    const std::string begin = R"(<script type="application/json" id="data">)";
    const std::size_t from = page.find(begin) + begin.size();
    const std::string data = page.substr(from, page.find("</script>", from) - from);
    must(data.find('<') == std::string::npos, "no < in the data of a report");
    const std::vector<gradual::lab::Result> again = gradual::lab::results_from_json(data, "report");
    must(gradual::lab::results_json(read, true) == gradual::lab::results_json(again, true), "the data of a report");
  });
}

// A file of torch.export.save, whole.
inline bool pt2(std::string_view bytes) {
  return reads([&] { touch(gradual::pt2::load_bytes(bytes, "input")->state_dict()); });
}

// The graph of such a file: the archive's checksums would hide it from damage.
inline bool pt2_graph(std::string_view bytes) {
  return reads([&] {
    const gradual::pt2::Graph graph = gradual::pt2::parse_graph(std::string(bytes));
    const gradual::pt2::Plan plan = gradual::pt2::make_plan(graph);
    must(plan.steps.size() <= graph.nodes.size(), "a step for each node at most");
  });
}

// Each has an archive of its name in tests/fuzz/corpus.
struct Reader {
  const char* name;
  bool (*read)(std::string_view bytes);
};
inline constexpr Reader kReaders[] = {{"safetensors", safetensors},
                                      {"npy", npy},
                                      {"idx", idx},
                                      {"gzip", gzip},
                                      {"csv", csv},
                                      {"text", text},
                                      {"recipes", recipes},
                                      {"checkpoint", checkpoint},
                                      {"results", results},
                                      {"report", report},
                                      {"pt2", pt2},
                                      {"pt2_graph", pt2_graph}};

}  // namespace fuzz
