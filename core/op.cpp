#include "op.h"

#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "nearest.h"

namespace gradual {
namespace {

constexpr OpInfo kInfos[kOpCount] = {
#define GRADUAL_OP(name, inputs, outputs, kind, rule) {#name, inputs, outputs, OpKind::kind, DTypeRule::rule},
#include "ops.def"
#undef GRADUAL_OP
};

}  // namespace

const OpInfo& info(OpId op) { return kInfos[static_cast<int>(op)]; }

std::string_view name(OpKind kind) {
  static constexpr std::string_view kNames[] = {
      "elementwise", "transcendental", "comparison", "reduction", "contraction", "pooling",   "normalization",
      "loss",        "view",           "movement",   "random",    "in-place",    "composite", "custom"};
  return kNames[static_cast<int>(kind)];
}

OpId op_from_name(std::string_view text) {
  for (int i = 0; i < kOpCount; ++i)
    if (kInfos[i].name == text) return static_cast<OpId>(i);
  std::vector<std::string> names;
  for (const OpInfo& row : kInfos) names.emplace_back(row.name);
  fail("no op '" + std::string(text) + "'; did you mean '" + nearest(text, names) + "'?");
}

std::string_view name(Phase phase) {
  static constexpr std::string_view kNames[] = {"forward", "backward", "optimizer"};
  return kNames[static_cast<int>(phase)];
}

Context& context() {
  thread_local Context current;
  return current;
}

const char* intern(std::string_view text) {
  static std::mutex mutex;
  static auto* const texts = new std::unordered_set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->emplace(text).first->c_str();
}

std::string place(const SourceLocation& where) {
  const std::string path = where.file_name();
  return where.line() ? path.substr(path.rfind('/') + 1) + ":" + std::to_string(where.line()) : std::string();
}

std::string describe(const OpCall& call) {
  std::string text(name(call.op));
  text += ":";
  for (int i = 0; i < call.inputs.size(); ++i) {
    text += i ? " x " : " ";
    const Tensor& t = call[i];
    text += t.defined() ? to_string(t.sizes()) + " " + std::string(name(t.dtype())) : "none";
  }
  return text;
}

}  // namespace gradual
