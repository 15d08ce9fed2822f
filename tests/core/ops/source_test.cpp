// What the sources above the backends name: where a kind of device is asked for (to place memory, never to choose an
// arithmetic), and who knows fused ops.
#include <doctest/doctest.h>
#include <gradual/core/ops/fusions.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "../../support/source_dir.h"

namespace fs = std::filesystem;

namespace {

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// f(its path, its text without comments) for each source file outside of cuda.
void for_all_sources(const std::function<void(const std::string&, const std::string&)>& f) {
  for (const char* folder : {"core", "autograd", "nn", "optim", "amp", "data", "inspect", "dist", "pt2", "lab"})
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() + "/" + folder)) {
      const std::string file = fs::relative(entry.path(), source_dir()).generic_string();
      if (!file.ends_with(".h") && !file.ends_with(".cpp")) continue;
      std::ifstream in(entry.path());
      std::string text;
      for (std::string line; std::getline(in, line);) text += line.substr(0, line.find("//")) + '\n';
      f(file, text);
    }
}

// The same for those outside of the backends.
void for_sources(const std::function<void(const std::string&, const std::string&)>& f) {
  for_all_sources([&](const std::string& file, const std::string& text) {
    if (!file.starts_with("core/cpu/") && !file.starts_with("core/onednn/")) f(file, text);
  });
}

}  // namespace

TEST_CASE("above the backends only code that places memory asks for a kind of device") {
  const std::map<std::string, int> allowed = {
      {"amp/attention_steps.cpp", 2},             // where the scales of a forward are kept; the same bits
      {"amp/quantization.cpp", 1},                // how many windows are unfolded at once; the same bits
      {"amp/quantized_run.cpp", 1},               // where a check for Inf and NaN runs
      {"core/observe/observer.cpp", 2},           // which clock times a call
      {"core/ops/composites.cpp", 1},             // whether the host can read what it checks; the same bits
      {"core/ops/conv_by_gemm.cpp", 1},           // how many windows are unfolded at once; the same bits
      {"core/ops/derived_ops.cpp", 1},            // whether the host can read what it checks; the same bits
      {"core/ops/dispatch.cpp", 4},               // selects the device and its backend's column
      {"core/quantize/quantized_tensor.cpp", 5},  // where codes are packed and read; the same bits
      {"core/quantize/quantizer.cpp", 10},        // where scales are computed, how rows are walked; the same bits
      {"core/tensor/device.cpp", 1},              // its name
      {"core/tensor/device.h", 2},                // defines them
      {"core/tensor/memory.cpp", 2},
      {"core/tensor/print.cpp", 1},   // the device is printed
      {"core/tensor/random.cpp", 1},  // where numbers are drawn
      {"core/tensor/storage.cpp", 4},
      {"core/tensor/tensor.cpp", 3},
      {"core/tensor/tensor.h", 1},        // data<T>() is on the CPU alone
      {"data/cifar10.cpp", 1},            // batches are augmented on the CPU
      {"data/dataset.cpp", 2},            // datasets stay on the CPU
      {"inspect/mirror.cpp", 1},          // where it reads a scale
      {"lab/lab.cpp", 1},                 // selects the device
      {"lab/launch.cpp", 1},              // the device is printed
      {"lab/run.cpp", 2},                 // its name in the results
      {"optim/clip.cpp", 1},              // whether the host reads the norm; the same bits
      {"optim/grad_scaler.cpp", 1},       // where the loss scale is kept; the same bits
      {"optim/optimizer.cpp", 1},         // where codes of moments stay
      {"optim/optimizer_device.cpp", 1},  // where steps are counted
      {"pt2/ops_index.cpp", 1},           // whether the host can read what it checks
  };
  int files = 0;
  for_sources([&](const std::string& file, const std::string& text) {
    const auto found = allowed.find(file);
    CAPTURE(file);
    CHECK(count(text, "is_cuda()") + count(text, "is_cpu()") == (found == allowed.end() ? 0 : found->second));
    ++files;
  });
  CHECK(files > 200);
}

TEST_CASE("what a thread has of its own is listed in docs/architecture.md") {
  const std::regex own(R"((^|[^"\w])(thread_local|per_thread)\b)");  // without the word in C++ that pt2 writes
  std::set<std::string> found;
  for_all_sources([&](const std::string& file, const std::string& text) {
    if (std::regex_search(text, own)) found.insert(file);
  });
  std::ifstream page(source_dir() + "/docs/architecture.md");
  std::set<std::string> listed;
  bool in_table = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("What else a thread has")) in_table = true;
    if (line.starts_with("Each call knows its source line")) in_table = false;
    if (in_table && line.starts_with("| `")) listed.insert(line.substr(3, line.find('`', 3) - 3));
  }
  CHECK(found.size() > 10);
  CHECK(found == listed);
}

TEST_CASE("lines have at most 120 columns") {
  const char* const folders[] = {"core",    "autograd", "nn",  "optim",    "amp",   "data", "cuda",
                                 "inspect", "dist",     "pt2", "examples", "tests", "lab",  "bench"};
  const std::set<std::string> kinds = {".h", ".cpp", ".cu", ".cuh", ".def", ".js", ".css", ".in"};
  std::string long_lines;
  int files = 0;
  for (const char* folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() + "/" + folder)) {
      if (!kinds.contains(entry.path().extension().string())) continue;
      ++files;
      std::ifstream in(entry.path());
      int number = 0;
      for (std::string line; std::getline(in, line);) {
        ++number;
        const auto columns = std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; });  // of UTF-8
        if (columns <= 120) continue;
        long_lines += fs::relative(entry.path(), source_dir()).generic_string() + ":" + std::to_string(number) + " ";
      }
    }
  CHECK(files > 800);
  CHECK(long_lines == "");
}

TEST_CASE("only kernels, backward rules, the functions of ops and the table name a fused op") {
  int named = 0;
  for_sources([&](const std::string& file, const std::string& text) {
    const bool may = file == "core/ops/fusions.cpp" || file == "core/ops/ops.h" || file == "core/ops/ops.cpp" ||
                     file.starts_with("autograd/rules_");
    CAPTURE(file);
    for (const gradual::Fusion& f : gradual::fusions()) {
      if (!f.is_row()) continue;
      const int n = count(text, std::string(to_string(f.whole)));
      CHECK((may || n == 0));
      named += n;
    }
  });
  CHECK(named > 10);
}
