#include "policy.h"

#include <algorithm>
#include <map>

#include "../autograd/rule.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"

namespace gradual::amp {
namespace {

using enum OpId;

// Contractions: exact products and an f32 accumulator, so that only operands and the result are rounded.
// conv2d_backward_input is here as conv_transpose2d: backward rules run below amp.
constexpr OpId kLower[] = {matmul, linear, conv2d, conv2d_backward_input, scaled_dot_product_attention};
// Ops that exceed a half format's range, or sum many small terms.
constexpr OpId kFp32[] = {exp,        exp2,     expm1,         log2,     log,        log1p,
                          log10,      rsqrt,    acos,          asin,     reciprocal, pow,
                          softplus,   sum,      logsumexp,     norm,     softmax,    log_softmax,
                          layer_norm, rms_norm, cross_entropy, mse_loss, l1_loss,    bce_with_logits_loss};
constexpr OpId kPromote[] = {add,     sub, mul, div, atan2, floor_divide, trunc_divide, remainder, fmod, maximum,
                             minimum, eq,  ne,  lt,  le,    gt,           ge,           where,     cat,  scatter_add};

constexpr const char* kBceBan =
    "banned under autocast: it takes probabilities, and a half format rounds those near 0 and 1 to 0 and 1, where its "
    "logarithm fails; use bce_with_logits_loss on the logits, or open Autocast({.enabled = false}) around it and cast "
    "its input to f32";

std::shared_ptr<std::vector<CastPolicy>> default_entries() {
  static const auto entries = [] {
    auto all = std::make_shared<std::vector<CastPolicy>>(kOpCount);
    const auto set = [&](auto& ops, const CastPolicy& policy) {
      for (OpId op : ops) (*all)[static_cast<std::size_t>(op)] = policy;
    };
    set(kLower, CastPolicy::lower());
    set(kFp32, CastPolicy::fp32());
    set(kPromote, CastPolicy::promote());
    (*all)[static_cast<std::size_t>(bce_loss)] = CastPolicy::banned(kBceBan);
    return all;
  }();
  return entries;
}

bool fixed(OpId op) {
  const OpKind kind = op_info(op).kind;
  return kind == OpKind::InPlace || kind == OpKind::Custom || op == OpId::cast || op == OpId::to_device;
}

// The backward of a rewritten op reconstructs the rule's saved tensors from the inputs alone.
bool rewritable(OpId op) {
  ensure_registered();
  if (op_info(op).kind == OpKind::Composite) return true;
  const BackwardRule& rule = backward_rules()[static_cast<int>(op)];
  return rule.backward && op_info(op).outputs == 1 && saves_of(rule, ~0u) < gradual::out(0) &&
         op_info(op).kind != OpKind::View;
}

// The dtype that an op with this policy returns for these inputs; none without inputs.
std::optional<DType> result_dtype(const CastPolicy& policy, const std::vector<DType>& inputs, DType lower) {
  std::optional<DType> widest;
  for (DType d : inputs) widest = widest ? gradual::promote(*widest, d) : d;
  if (!widest || !castable(*widest)) return widest;
  switch (policy.kind) {
    case PolicyKind::lower: return lower;
    case PolicyKind::fp32: return DType::f32;
    case PolicyKind::cast: return policy.dtype;
    default: return widest;
  }
}

// The reason why an op is in the fp32 list.
std::string_view fp32_reason(OpId op) {
  if (op == cross_entropy || op_info(op).kind == OpKind::Composite)
    return "a loss is a mean of small terms, which half formats drop";
  switch (op_info(op).kind) {
    case OpKind::Transcendental: return "its result can leave a half format's range or lose its small differences";
    case OpKind::Reduction: return "its sum can overflow a half format and drops small terms";
    case OpKind::Normalization: return "its sums and quotients need the range and precision of f32";
    default: return "the table says so";
  }
}

}  // namespace

void OperandDTypes::add(DType d) {
  f64 = f64 || d == DType::f64;
  if (!castable(d)) return;
  widest = any ? gradual::promote(widest, d) : d;
  any = true;
}

CastPolicy CastPolicy::cast(DType dtype) {
  if (!castable(dtype))
    throwf("cast policy: casts to f32, f16 or bf16, not to {}; a rewrite computes in other formats", to_string(dtype));
  return {.kind = PolicyKind::cast, .dtype = dtype};
}

CastPolicy CastPolicy::rewrite(const std::string& name, Rewrite function, RewriteParameters parameters) {
  if (!function) throw_error("cast policy: the rewrite '" + name + "' has no function");
  CastPolicy policy{
      .kind = PolicyKind::rewrite, .text = name, .function = std::make_shared<const Rewrite>(std::move(function))};
  if (parameters) policy.parameters = std::make_shared<const RewriteParameters>(std::move(parameters));
  return policy;
}

CastPolicy CastPolicy::from_name(std::string_view name) {
  static const std::vector<std::string> kNames{"pass", "lower", "fp32", "promote", "banned", "f32", "f16", "bf16"};
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end())
    throwf("no cast policy '{}'; allowed are {}{}", name, join(kNames), did_you_mean(name, kNames));
  if (found - kNames.begin() >= 5) return cast(dtype_from_name(name));
  for (const CastPolicy& p : {pass(), lower(), fp32(), promote()})
    if (to_string(p) == name) return p;
  return banned("banned under autocast by the policy table; edit the table, or disable autocast around the call");
}

std::string to_string(const CastPolicy& policy) {
  if (policy.kind == PolicyKind::cast) return std::string(to_string(policy.dtype));
  if (policy.kind == PolicyKind::rewrite) return "rewrite " + policy.text;
  return std::string(enum_name(policy.kind, {"lower", "fp32", "promote", "banned", "cast", "rewrite", "pass"}));
}

PolicyTable::PolicyTable() : entries_(default_entries()) {}

// Why an op of this kind takes no policy.
static std::string_view why_fixed(OpKind kind) {
  switch (kind) {
    case OpKind::InPlace: return "what is written in place keeps its dtype; use the functional form";
    case OpKind::Custom: return "a user function declares its amp_dtype()";
    default: return "explicit casts are never changed";
  }
}

PolicyTable& PolicyTable::set(OpId op, CastPolicy policy) {
  if (op >= OpId::count_) throwf("policy table: no op has the number {}", static_cast<int>(op));
  const Fusion* fusion = fusion_of(op);
  if (fusion && policy.kind != PolicyKind::pass)
    throwf("policy table: {} takes no policy but pass: it is {} and {}, which have theirs", to_string(op),
           to_string(fusion->first), to_string(fusion->second));
  if (fusion) return *this;
  if (fixed(op) && policy.kind != PolicyKind::pass)
    throwf("policy table: {} takes no policy but pass: {}", to_string(op), why_fixed(op_info(op).kind));
  if (policy.kind == PolicyKind::rewrite && !rewritable(op))
    throwf("policy table: {} cannot be rewritten; its gradient must be made of its inputs alone, as that of matmul is",
           to_string(op));
  if (entries_.use_count() > 1) entries_ = std::make_shared<std::vector<CastPolicy>>(*entries_);
  (*entries_)[static_cast<std::size_t>(op)] = std::move(policy);
  return *this;
}

bool PolicyTable::runs_whole(const Fusion& f) const {
  const PolicyKind first = (*this)[f.first].kind;
  const PolicyKind second = (*this)[f.second].kind;
  // The kernel reads the other operands of `second` in their own dtypes and promotes.
  if (f.others() > 0) return first == PolicyKind::pass && (second == PolicyKind::pass || second == PolicyKind::promote);
  return first != PolicyKind::rewrite && second == PolicyKind::pass;
}

std::string PolicyTable::why(OpId op, const std::vector<DType>& inputs, DType lower) const {
  if (const Fusion* f = fusion_of(op)) {
    const auto n = std::min(inputs.size(), static_cast<std::size_t>(op_info(f->first).inputs));
    const std::vector<DType> of_first(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(n));
    std::vector<DType> of_second(inputs.begin() + static_cast<std::ptrdiff_t>(n), inputs.end());
    if (const auto middle = result_dtype((*this)[f->first], of_first, lower)) of_second.push_back(*middle);
    return fmt::format("{} is {} and {}{}. {}; {}", to_string(op), to_string(f->first), to_string(f->second),
                       runs_whole(*f) ? "" : ", which run apart", why(f->first, of_first, lower),
                       why(f->second, of_second, lower));
  }
  const CastPolicy& policy = (*this)[op];
  const std::string title(to_string(op));
  std::vector<std::string> names;
  OperandDTypes seen;
  for (DType d : inputs) {
    names.emplace_back(to_string(d));
    seen.add(d);
  }
  const std::string given = names.empty() ? "no inputs" : join(names);
  const std::string listed = title + " is in the " + to_string(policy) + " list: ";
  if (fixed(op))
    return title + " is never autocast: an explicit dtype wins, and a tensor written in place keeps its own";
  if (policy.kind == PolicyKind::rewrite) return title + " is rewritten: " + policy.text + " runs in its place";
  if (!seen.any)
    return fmt::format("{} runs as it is on {}: autocast casts only f32, f16 and bf16{}", title, given,
                       seen.f64 || std::ranges::any_of(inputs, is_f8) ? "; f64 and f8 tensors keep their dtype" : "");
  switch (policy.kind) {
    case PolicyKind::lower:
      if (seen.f64)
        return fmt::format("{}f64 is not autocast and cannot meet {}, so this call is an Error", listed,
                           to_string(lower));
      return fmt::format("{}runs in {}, exact products with f32 accumulation{}", listed, to_string(lower),
                         op == scaled_dot_product_attention ? ", its scores and probabilities in f32" : "");
    case PolicyKind::fp32: return fmt::format("{}runs in f32, since {}", listed, fp32_reason(op));
    case PolicyKind::promote:
      return fmt::format("{}runs in {}, the widest of its inputs {}", listed, to_string(seen.widest), given);
    case PolicyKind::cast: return title + " is cast by its own entry: runs in " + to_string(policy);
    case PolicyKind::banned: return title + " is " + policy.text;
    default: return title + " is in no list: runs in its inputs' dtypes, " + given;
  }
}

std::string to_string(const PolicyTable& table) {
  std::map<std::pair<PolicyKind, std::string>, std::string> lines;
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    lines[{table[op].kind, to_string(table[op])}] += fmt::format(" {}", to_string(op));
  }
  std::string text;
  for (const auto& [policy, ops] : lines) text += policy.second + ":" + ops + "\n";
  return text;
}

}  // namespace gradual::amp
