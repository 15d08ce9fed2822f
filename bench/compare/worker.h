// One framework's worker: a program that builds models or ops on request and times their steps. Requests are JSON
// objects, one per line on the standard input; each has one reply line. The driver is compare.py.
//
//   {"do": "hello"}                          {"framework": .., "version": .., "variants": [..], ..}
//   {"do": "threads", "count": 2}            {}
//   {"do": "device", "name": "cuda"}         {}   where models and ops run from now on
//   {"do": "model", "kind": "mlp", ..}       {"parameters": .., "data": ..}    models.py has the fields
//   {"do": "op", "op": "matmul", ..}         {} or {"work": .., "how": ..}
//   {"do": "run", "steps": 10}               {"seconds": .., "cpu": .., "loss": ..}   of the last step; ops have none
//   {"do": "memory"}                         {"resident": .., "allocator": ..} peaks since the request for the model
//
// The reply to a request that fails is {"error": ".."}, and the worker continues.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

namespace compare {

using Json = nlohmann::json;

// A model or op whose steps are timed.
struct Job {
  virtual ~Job() = default;
  virtual void step() = 0;
  virtual std::optional<double> loss() const { return {}; }  // of the last step
  virtual Json facts() const { return Json::object(); }      // the reply to the request that made the job
};

struct Framework {
  virtual ~Framework() = default;
  virtual Json hello() = 0;
  virtual void set_threads(int count) = 0;
  // "cpu" or "cuda".
  virtual void set_device(const std::string& name) {
    if (name != "cpu") throw std::invalid_argument("no device '" + name + "' here; there is cpu");
  }
  virtual void finish() {}  // waits until all steps are done
  // Both throw if they cannot serve the request.
  virtual std::unique_ptr<Job> model(const Json& spec) = 0;
  virtual std::unique_ptr<Job> op(const Json& spec) = 0;
  virtual void reset_peak() {}                               // of the framework's own allocator
  virtual std::optional<std::int64_t> peak() { return {}; }  // bytes, as its allocator counts them
};

// Answers requests until the input ends. Returns the exit status of the program.
int serve(Framework& framework);

}  // namespace compare
