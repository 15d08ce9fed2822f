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
    std::string name;   // the op's (of a user's function its own) or the module's path
    std::string phase;  // of ops: "forward", "backward" or "optimizer"
    std::int64_t calls = 0;
    double seconds = 0;  // a user's function without the ops it ran
    double flops = 0;    // estimates, see cost.h
    double bytes = 0;
    std::int64_t launches = 0;              // on a GPU: what device::Watch takes down
    std::string tensor_cores = {};          // of contractions, the first call's: "yes", or what stands against it
    std::vector<std::string> kernels = {};  // their names, each once
  };

  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;

  std::vector<Entry> by_op() const;      // an entry an op (or user's function) and phase; the slowest first
  std::vector<Entry> by_module() const;  // all phases together; the slowest first; "" is outside of any
  Entry total() const;
  // Both, with each entry's share of the time, GFLOP/s and GB/s, for people; the contractions and whether tensor cores take
  // them; and, where a GPU ran, its kernels by op.
  std::string table() const;

 private:
  std::map<std::tuple<OpId, std::string_view, Phase>, Entry> ops_;  // by the name too, that of a user's function
  std::map<std::string, Entry> modules_;
};

}  // namespace gradual
