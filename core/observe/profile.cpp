#include "profile.h"

#include <fmt/format.h>

#include <algorithm>

#include "../ops/tensor_cores.h"

namespace gradual {
namespace {

void add(Profile::Entry& to, const Profile::Entry& e) {
  if (to.calls == 0) {
    to.name = e.name;
    to.phase = e.phase;
  }
  to.calls += e.calls;
  to.seconds += e.seconds;
  to.launches += e.launches;
  to.flops += e.flops;
  to.bytes += e.bytes;
  if (to.tensor_cores.empty()) to.tensor_cores = e.tensor_cores;
  for (const std::string& kernel : e.kernels)
    if (std::ranges::find(to.kernels, kernel) == to.kernels.end()) to.kernels.push_back(kernel);
}

template <class Map> std::vector<Profile::Entry> sorted(const Map& map) {
  std::vector<Profile::Entry> entries;
  for (const auto& [key, entry] : map) entries.push_back(entry);
  std::ranges::stable_sort(entries, std::greater(), &Profile::Entry::seconds);
  return entries;
}

std::string rows(const char* what, const std::vector<Profile::Entry>& entries, double total) {
  std::size_t width = 28;
  for (const Profile::Entry& e : entries) width = std::max(width, e.name.size());
  std::string text = fmt::format("{:<{}} {:<9} {:>9} {:>9} {:>11} {:>6} {:>10} {:>9} {:>9}\n", what, width, "phase",
                                 "calls", "launches", "ms", "%", "GFLOP", "GFLOP/s", "GB/s");
  for (const Profile::Entry& e : entries) {
    const double rate = e.seconds > 0 ? 1e-9 / e.seconds : 0;
    text += fmt::format("{:<{}} {:<9} {:>9} {:>9} {:>11.3f} {:>6.1f} {:>10.4g} {:>9.2f} {:>9.2f}\n",
                        e.name.empty() ? "(no module)" : e.name, width, e.phase, e.calls, e.launches, e.seconds * 1e3,
                        total > 0 ? 100 * e.seconds / total : 0, e.flops * 1e-9, e.flops * rate, e.bytes * rate);
  }
  return text;
}

std::string verdict(const OpCall& call) {
  if (op_info(call.op).kind != OpKind::Contraction) return "";
  const TensorCores t = tensor_cores(call);
  if (t.use == TensorCores::Use::full) return "yes";
  return fmt::format("{}: {}", t.use == TensorCores::Use::partly ? "slower" : "no", t.why);
}

// "matmul (backward)    yes", or each kernel's name on a line of its own.
std::string notes(const std::vector<Profile::Entry>& ops) {
  std::string products, kernels;
  for (const Profile::Entry& e : ops) {
    const std::string op = fmt::format("{} ({})", e.name, e.phase);
    if (!e.tensor_cores.empty()) products += fmt::format("{:<38} {}\n", op, e.tensor_cores);
    for (const std::string& kernel : e.kernels) kernels += fmt::format("{:<38} {}\n", op, kernel);
  }
  if (!products.empty())
    products = "\nwhether a GPU's tensor cores would take it, by the first call of each\n" + products;
  return kernels.empty() ? products : products + "\nkernels\n" + kernels;
}

}  // namespace

void Profile::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const auto [flops, bytes] = cost(call, out);
  const char* const module = record.context.module;
  const Phase phase = record.context.phase;
  const auto launches = static_cast<std::int64_t>(record.kernels.size());
  const std::string_view op_name = called(call);
  Entry& op = ops_[{call.op, op_name, phase}];
  add(op, {std::string(op_name), std::string(to_string(phase)), 1, record.seconds, flops, bytes, launches,
           op.calls == 0 ? verdict(call) : "", record.kernels});
  add(modules_[module], {module, "", 1, record.seconds, flops, bytes, launches});
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
         rows("all", {all}, all.seconds) + notes(by_op());
}

}  // namespace gradual
