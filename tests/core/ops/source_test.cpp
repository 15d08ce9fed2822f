// What asks for a kind of device: above the backends, code that places memory, and nothing that chooses an arithmetic.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "../../support/source_dir.h"

namespace fs = std::filesystem;

namespace {

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("above the backends only code that places memory asks whether a device is a GPU") {
  const std::map<std::string, int> allowed = {
      {"amp/autocast.cpp", 1},                    // the default dtype of a region: f16 on a GPU, bf16 on the CPU
      {"amp/quantized_run.cpp", 1},               // where a check for Inf and NaN runs
      {"core/observe/observer.cpp", 2},           // which clock times a call
      {"core/ops/dispatch.cpp", 4},               // selects the device and its backend's column
      {"core/quantize/quantized_tensor.cpp", 4},  // where codes are packed and read; the same bits
      {"core/quantize/quantizer.cpp", 5},         // where amaxes and scales are computed; the same bits
      {"core/tensor/device.h", 1},                // defines it
      {"core/tensor/memory.cpp", 2},
      {"core/tensor/storage.cpp", 1},
      {"core/tensor/tensor.cpp", 2},
      {"optim/clip.cpp", 1},              // where norms are added up
      {"optim/optimizer.cpp", 1},         // where codes of moments stay
      {"optim/optimizer_device.cpp", 1},  // where steps are counted
  };
  for (const char* folder : {"core", "autograd", "nn", "optim", "amp", "data"})
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() + "/" + folder)) {
      const std::string file = fs::relative(entry.path(), source_dir()).generic_string();
      if (!entry.is_regular_file() || file.starts_with("core/cpu/") || file.starts_with("core/onednn/")) continue;
      std::ifstream in(entry.path());
      const std::string text(std::istreambuf_iterator<char>(in), {});
      const auto found = allowed.find(file);
      CAPTURE(file);
      CHECK(count(text, "is_cuda()") == (found == allowed.end() ? 0 : found->second));
    }
}
