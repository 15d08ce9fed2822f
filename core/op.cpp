#include "op.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace gradual {
namespace {

constexpr OpInfo kInfos[kOpCount] = {
#define GRADUAL_OP(name, inputs, outputs, kind, rule) {#name, inputs, outputs, OpKind::kind, DTypeRule::rule},
#include "ops.def"
#undef GRADUAL_OP
};

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t up = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = up;
    }
  }
  return row[b.size()];
}

}  // namespace

const OpInfo& info(OpId op) { return kInfos[static_cast<int>(op)]; }

std::string_view name(OpKind kind) {
  static constexpr std::string_view kNames[] = {"elementwise", "transcendental", "comparison", "reduction",
                                                "contraction", "pooling",        "normalization", "loss",
                                                "view",        "movement",       "random",     "in-place",
                                                "composite",   "custom"};
  return kNames[static_cast<int>(kind)];
}

OpId op_from_name(std::string_view text) {
  int nearest = 0;
  std::size_t best = ~std::size_t{0};
  for (int i = 0; i < kOpCount; ++i) {
    if (kInfos[i].name == text) return static_cast<OpId>(i);
    const std::size_t d = edit_distance(kInfos[i].name, text);
    if (d < best) best = d, nearest = i;
  }
  fail("no op '" + std::string(text) + "'; did you mean '" + std::string(kInfos[nearest].name) + "'?");
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
