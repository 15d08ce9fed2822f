// Sums what ops cost, by op and by module.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "../ops/cost.h"
#include "observer.h"

namespace gradual {

class Profile : public Observer {
 public:
  struct Entry {
    std::string name;   // the op's or the user function's name, or the module's path
    std::string phase;  // of ops: "forward", "backward" or "optimizer"
    std::int64_t calls = 0;
    double seconds = 0;  // for a user's function: without the ops inside it
    double flops = 0;    // estimates, see cost.h
    double bytes = 0;
    std::int64_t launches = 0;              // on a GPU, as recorded by device::Watch
    std::string tensor_cores = {};          // for contractions, of the first call: "yes", or the reason why not
    std::vector<std::string> kernels = {};  // their names, each once
  };

  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;

  std::vector<Entry> by_op() const;      // one entry per op (or user's function) and phase; the slowest first
  std::vector<Entry> by_module() const;  // all phases together; the slowest first; "" is outside of modules
  Entry total() const;
  // Both as text, with each entry's share of the time, GFLOP/s and GB/s; the contractions and whether they use tensor
  // cores; and, if a GPU ran, its kernels by op.
  std::string table() const;

 private:
  std::map<std::tuple<OpId, std::string_view, Phase>, Entry> ops_;  // by the name too, that of a user's function
  std::map<std::string, Entry> modules_;
};

}  // namespace gradual
