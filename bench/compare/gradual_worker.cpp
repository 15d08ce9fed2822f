// gradual-compare [--backend eigen|fast|onednn|ours]: the worker of this library, and the meter of the machine's peaks.
#include "gradual_worker.h"

#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/threads.h>
#include <gradual/core/tensor/memory.h>
#include <gradual/cuda/cuda.h>
#include <gradual/version.h>

#include <cstdio>
#include <span>
#include <string_view>

#include "peaks.h"

namespace {

using namespace compare;

struct Gradual : Framework {
  Json hello() override {
    return {{"framework", "Gradual"},
            {"version", GRADUAL_VERSION},
            {"variants", {"channels_last"}},
            {"compiler", __VERSION__},
            {"backend", gradual::to_string(gradual::cpu_backend())},
            {"onednn", gradual::onednn_description()},
            {"gpu", gradual::cuda::available() ? gradual::cuda::device_info().name : gradual::cuda::why_not()}};
  }
  void set_device(const std::string& name) override { device() = gradual::device_from_name(name); }
  void finish() override {
    if (device().is_cuda()) gradual::cuda::synchronize(device());
  }
  void set_threads(int count) override { gradual::set_num_threads(count); }
  std::unique_ptr<Job> model(const Json& spec) override { return gradual_model(spec); }
  std::unique_ptr<Job> op(const Json& spec) override {
    const std::string name = spec.at("op");
    return name == "peak" ? machine_peak(spec.at("of"), gradual::num_threads()) : gradual_op(spec);
  }
  void reset_peak() override { gradual::reset_peak_memory(device()); }
  std::optional<std::int64_t> peak() override { return gradual::memory_stats(device()).total.peak; }
};

}  // namespace

int main(int argc, char** argv) {
  const std::span<char*> arguments(argv, static_cast<std::size_t>(argc));
  if (argc != 1 && !(argc == 3 && std::string_view(arguments[1]) == "--backend")) {
    std::fputs("usage: gradual-compare [--backend eigen|fast|onednn|ours]\n", stderr);
    return 2;
  }
  try {
    if (argc == 3 && arguments[2] == std::string_view("ours")) gradual::cuda::set_library_kernels(false);
    else if (argc == 3)
      for (const auto backend : {gradual::CpuBackend::eigen, gradual::CpuBackend::fast, gradual::CpuBackend::onednn})
        if (arguments[2] == gradual::to_string(backend)) gradual::set_cpu_backend(backend);
  } catch (const gradual::Error& e) {
    std::fprintf(stderr, "gradual-compare: %s\n", e.what());
    return 2;
  }
  Gradual framework;
  return serve(framework);
}
