#include "op.h"

#include <map>
#include <mutex>
#include <string>
#include <unordered_set>

#include "../support/message_text.h"
#include "../support/throwf.h"

namespace gradual {

OpId op_from_name(std::string_view text) {
  for (int i = 0; i < kOpCount; ++i)
    if (kOpInfos[i].name == text) return static_cast<OpId>(i);
  std::vector<std::string> names;
  for (const OpInfo& row : kOpInfos) names.emplace_back(row.name);
  throwf("no op '{}'; did you mean '{}'?", text, nearest(text, names));
}

std::string_view to_string(OperandRole role) {
  return enum_name(role, {"activation", "weight", "error", "weight gradient"});
}

std::string_view to_string(Phase phase) { return enum_name(phase, {"forward", "backward", "optimizer"}); }

Context& context() {
  [[gnu::tls_model("initial-exec")]] constinit thread_local Context current;
  return current;
}

const char* intern(std::string_view text) {
  static std::mutex mutex;
  static auto* const texts = new std::unordered_set<std::string>;
  const std::lock_guard lock(mutex);
  return texts->emplace(text).first->c_str();
}

const CallCause& intern_cause(CauseKind kind, std::string_view text) {
  static std::mutex mutex;
  static auto* const all = new std::map<std::pair<CauseKind, std::string>, CallCause>;
  const std::lock_guard lock(mutex);
  const auto [place, added] = all->try_emplace({kind, std::string(text)}, CallCause{kind, ""});
  if (added) place->second.text = place->first.second.c_str();
  return place->second;
}

std::string file_line(const SourceLocation& where) {
  const std::string_view path = where.file_name();
  return where.line() ? fmt::format("{}:{}", path.substr(path.rfind('/') + 1), where.line()) : "";
}

std::string describe(const Tensor& t) {
  return t.defined() ? fmt::format("{} {}", to_string(t.sizes()), to_string(t.dtype())) : "none";
}

std::string describe_inputs(const OpCall& call) {
  std::string text;
  for (int i = 0; i < call.inputs.size(); ++i) {
    const bool number = !call[i].defined() && call.attrs->is<ScalarAttrs>();
    text += (i ? " x " : "") + (number ? fmt::format("{:g}", call.get<ScalarAttrs>().value) : describe(call[i]));
  }
  return text;
}

std::string describe(const OpCall& call) { return fmt::format("{}: {}", to_string(call.op), describe_inputs(call)); }

void throw_error(const OpCall& call, std::string_view why) { throwf("{}: {}", describe(call), why); }

}  // namespace gradual
