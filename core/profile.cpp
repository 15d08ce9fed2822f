#include "profile.h"

#include <fmt/format.h>

#include <algorithm>

namespace gradual {
namespace {

void add(Profile::Entry& to, const Profile::Entry& e) {
  if (to.calls == 0) to.name = e.name, to.phase = e.phase;
  to.calls += e.calls;
  to.seconds += e.seconds;
  to.flops += e.flops;
  to.bytes += e.bytes;
}

template <class Map> std::vector<Profile::Entry> sorted(const Map& map) {
  std::vector<Profile::Entry> entries;
  for (const auto& [key, entry] : map) entries.push_back(entry);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return entries;
}

std::string rows(const char* what, const std::vector<Profile::Entry>& entries, double total) {
  std::string text = fmt::format("{:<28} {:<9} {:>9} {:>11} {:>6} {:>10} {:>9} {:>9}\n", what, "phase", "calls", "ms",
                                 "%", "GFLOP", "GFLOP/s", "GB/s");
  for (const Profile::Entry& e : entries) {
    const double rate = e.seconds > 0 ? 1e-9 / e.seconds : 0;
    text += fmt::format("{:<28} {:<9} {:>9} {:>11.3f} {:>6.1f} {:>10.4g} {:>9.2f} {:>9.2f}\n",
                        e.name.empty() ? "(no module)" : e.name, e.phase, e.calls, e.seconds * 1e3,
                        total > 0 ? 100 * e.seconds / total : 0, e.flops * 1e-9, e.flops * rate, e.bytes * rate);
  }
  return text;
}

}  // namespace

void Profile::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const auto [flops, bytes] = cost(call, out);
  const auto& [module, cause, phase, line, backward_of] = record.context;
  add(ops_[{call.op, phase}], {std::string(name(call.op)), std::string(name(phase)), 1, record.seconds, flops, bytes});
  add(modules_[module], {module, "", 1, record.seconds, flops, bytes});
}

std::vector<Profile::Entry> Profile::by_op() const { return sorted(ops_); }
std::vector<Profile::Entry> Profile::by_module() const { return sorted(modules_); }

Profile::Entry Profile::total() const {
  Entry all;
  for (const auto& [key, e] : ops_) add(all, e);
  all.name = "total";
  all.phase = "";
  return all;
}

std::string Profile::table() const {
  const Entry all = total();
  return rows("op", by_op(), all.seconds) + '\n' + rows("module", by_module(), all.seconds) + '\n' +
         rows("all", {all}, all.seconds);
}

}  // namespace gradual
