#include "profile.h"

#include <algorithm>
#include <cstdio>

namespace gradual {
namespace {

void add(Profile::Entry& to, std::int64_t calls, double seconds, const Cost& c) {
  to.calls += calls;
  to.seconds += seconds;
  to.flops += c.flops;
  to.bytes += c.bytes;
}

template <class Map> std::vector<Profile::Entry> sorted(const Map& map) {
  std::vector<Profile::Entry> entries;
  for (const auto& [key, entry] : map) entries.push_back(entry);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return entries;
}

std::string row(const Profile::Entry& e, double total) {
  char text[256];
  const double rate = e.seconds > 0 ? 1e-9 / e.seconds : 0;
  std::snprintf(text, sizeof text, "%-28s %-9s %9lld %11.3f %6.1f %10.4g %9.2f %9.2f\n",
                e.name.empty() ? "(no module)" : e.name.c_str(), e.phase.c_str(), static_cast<long long>(e.calls),
                e.seconds * 1e3, total > 0 ? 100 * e.seconds / total : 0, e.flops * 1e-9, e.flops * rate,
                e.bytes * rate);
  return text;
}

std::string header(const char* what) {
  char text[256];
  std::snprintf(text, sizeof text, "%-28s %-9s %9s %11s %6s %10s %9s %9s\n", what, "phase", "calls", "ms", "%", "GFLOP",
                "GFLOP/s", "GB/s");
  return text;
}

}  // namespace

void Profile::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const Cost c = cost(call, out);
  Entry& op = ops_[{call.op, record.context.phase}];
  if (op.calls == 0) {
    op.name = name(call.op);
    op.phase = name(record.context.phase);
  }
  Entry& module = modules_[record.context.module];
  if (module.calls == 0) module.name = record.context.module;
  add(op, 1, record.seconds, c);
  add(module, 1, record.seconds, c);
}

std::vector<Profile::Entry> Profile::by_op() const { return sorted(ops_); }
std::vector<Profile::Entry> Profile::by_module() const { return sorted(modules_); }

Profile::Entry Profile::total() const {
  Entry all;
  all.name = "total";
  for (const auto& [key, e] : ops_) add(all, e.calls, e.seconds, {e.flops, e.bytes});
  return all;
}

void Profile::clear() {
  ops_.clear();
  modules_.clear();
}

std::string Profile::table() const {
  const Entry all = total();
  std::string text = header("op");
  for (const Entry& e : by_op()) text += row(e, all.seconds);
  text += '\n';
  text += header("module");
  for (const Entry& e : by_module()) text += row(e, all.seconds);
  text += '\n';
  return text + row(all, all.seconds);
}

}  // namespace gradual
