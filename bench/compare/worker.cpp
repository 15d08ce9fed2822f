#include "worker.h"

#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>

namespace compare {
namespace {

// A line of /proc/self/status in bytes; none if it does not exist.
std::optional<std::int64_t> process_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    std::int64_t kilobytes = 0;
    if (name == field + ":" && status >> kilobytes) return kilobytes * 1024;
    std::getline(status, name);
  }
  return {};
}

// The increase of the process's resident bytes since the construction of this object.
class ResidentPeak {
 public:
  ResidentPeak() {
    std::ofstream reset("/proc/self/clear_refs");
    reset << 5 << std::flush;  // resets the high-water mark
    if (reset) start_ = process_bytes("VmRSS");
  }
  std::optional<std::int64_t> growth() const {
    const auto high = process_bytes("VmHWM");
    return start_ && high ? std::optional(*high - *start_) : std::nullopt;
  }

 private:
  std::optional<std::int64_t> start_;
};

template <class T> Json or_null(const std::optional<T>& value) { return value ? Json(*value) : Json(); }

class Session {
 public:
  explicit Session(Framework& framework) : framework_(framework) {}

  Json answer(const Json& request) {
    const std::string what = request.at("do");
    if (what == "hello") return framework_.hello();
    if (what == "threads") {
      framework_.set_threads(request.at("count"));
      return Json::object();
    }
    if (what == "device") {
      framework_.set_device(request.at("name"));
      return Json::object();
    }
    if (what == "model" || what == "op") return make(what == "model", request);
    if (what == "run") return run(request.at("steps"));
    if (what == "memory") return {{"resident", or_null(resident_.growth())}, {"allocator", or_null(framework_.peak())}};
    throw std::invalid_argument("no request '" + what +
                                "'; there are hello, threads, device, model, op, run and memory");
  }

 private:
  Json make(bool model, const Json& spec) {
    job_.reset();
    resident_ = {};
    framework_.reset_peak();
    job_ = model ? framework_.model(spec) : framework_.op(spec);
    return job_->facts();
  }
  Json run(std::int64_t steps) {
    if (!job_) throw std::logic_error("run: ask for a model or an op first");
    framework_.finish();
    const std::clock_t cpu_start = std::clock();
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < steps; ++i) job_->step();
    framework_.finish();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    const double cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
    return {{"seconds", time.count()}, {"cpu", cpu}, {"loss", or_null(job_->loss())}};
  }

  Framework& framework_;
  ResidentPeak resident_;
  std::unique_ptr<Job> job_;
};

}  // namespace

int serve(Framework& framework) {
  Session session(framework);
  for (std::string line; std::getline(std::cin, line);) {
    Json reply;
    try {
      reply = session.answer(Json::parse(line));
    } catch (const std::exception& e) { reply = {{"error", e.what()}}; }
    std::cout << reply.dump(-1, ' ', true, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace compare
