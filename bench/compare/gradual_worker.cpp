// gradual-compare: the worker of this library, and the meter of the machine's peaks.
#include "gradual_worker.h"

#include <gradual/core/memory.h>
#include <gradual/core/threads.h>
#include <gradual/version.h>

#include "peaks.h"

namespace {

using namespace compare;

struct Gradual : Framework {
  Json hello() override {
    return {{"framework", "Gradual"},
            {"version", GRADUAL_VERSION},
            {"variants", Json::array()},
            {"compiler", __VERSION__},
            {"backend", "eigen"}};
  }
  void set_threads(int count) override { gradual::set_num_threads(count); }
  std::unique_ptr<Job> model(const Json& spec) override { return gradual_model(spec); }
  std::unique_ptr<Job> op(const Json& spec) override {
    const std::string name = spec.at("op");
    return name == "peak" ? machine_peak(spec.at("of"), gradual::num_threads()) : gradual_op(spec);
  }
  void reset_peak() override { gradual::reset_peak_memory(); }
  std::optional<std::int64_t> peak() override { return gradual::memory_stats().total.peak; }
};

}  // namespace

int main() {
  Gradual framework;
  return serve(framework);
}
