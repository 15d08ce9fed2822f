// compare-libtorch: the worker of the system's libtorch.
#include "libtorch_worker.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include <fstream>

namespace {

using namespace compare;

// The file of the library's BLAS: a reference BLAS would make the comparison unfair.
std::string blas() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto path = line.find('/');
    if (path == std::string::npos) continue;
    const auto name = line.find("blas", path);
    if (name != std::string::npos || line.find("libmkl", path) != std::string::npos) return line.substr(path);
  }
  return "none found";
}

struct LibTorch : Framework {
  Json hello() override {
    return {{"framework", "libtorch"},
            {"version", TORCH_VERSION},
            {"variants", {"channels_last"}},
            {"blas", blas()},
            {"config", at::show_config()}};
  }
  void set_threads(int count) override { at::set_num_threads(count); }
  std::unique_ptr<Job> model(const Json& spec) override { return libtorch_model(spec); }
  std::unique_ptr<Job> op(const Json& spec) override { return libtorch_op(spec); }
};

}  // namespace

int main() {
  LibTorch framework;
  return serve(framework);
}
