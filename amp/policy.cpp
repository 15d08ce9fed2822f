#include "policy.h"

#include <array>
#include <initializer_list>

#include "../autograd/rule.h"
#include "../core/nearest.h"

namespace gradual::amp {
namespace {

using enum OpId;

// Contractions: exact products and an f32 accumulator, so that only operands and the result are rounded.
constexpr OpId kLower[] = {matmul, linear, conv2d, scaled_dot_product_attention};
// What leaves a half format's range, or adds up many small terms.
constexpr OpId kFp32[] = {exp,        log,      log1p,         rsqrt,    reciprocal, pow,
                          softplus,   sum,      logsumexp,     norm,     softmax,    log_softmax,
                          layer_norm, rms_norm, cross_entropy, mse_loss, l1_loss,    bce_with_logits_loss};
constexpr OpId kPromote[] = {add, sub, mul, div, maximum, minimum, eq, ne, lt, le, gt, ge, where, cat, scatter_add};

constexpr const char* kBceBan =
    "banned under autocast: it takes probabilities, and a half format rounds those near 0 and 1 to 0 and "
    "1, where its logarithm fails; use bce_with_logits_loss on the logits, or open Autocast({.enabled = "
    "false}) around "
    "it and cast its input to f32";

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
  const OpKind kind = info(op).kind;
  return kind == OpKind::InPlace || kind == OpKind::Custom || op == OpId::cast || op == OpId::to_device;
}

// A rewritten op's backward rebuilds what its rule saved from the inputs alone.
bool rewritable(OpId op) {
  ensure_registered();
  const Rule& rule = rules()[static_cast<int>(op)];
  return rule.backward && info(op).outputs == 1 && saves_of(rule, ~0u) < gradual::out(0) &&
         info(op).kind != OpKind::View;
}

// Why an op stands in the fp32 list.
std::string_view fp32_reason(OpId op) {
  if (op == cross_entropy || info(op).kind == OpKind::Composite)
    return "a loss is a mean of small terms, which half formats drop";
  switch (info(op).kind) {
    case OpKind::Transcendental: return "its result can leave a half format's range or lose its small differences";
    case OpKind::Reduction: return "its sum can overflow a half format and drops small terms";
    case OpKind::Normalization: return "its sums and quotients need the range and precision of f32";
    default: return "the table says so";
  }
}

std::string list(const std::vector<DType>& dtypes) {
  std::vector<std::string> names;
  for (DType d : dtypes) names.emplace_back(name(d));
  return names.empty() ? "no inputs" : join(names);
}

}  // namespace

CastPolicy CastPolicy::cast(DType dtype) {
  if (!castable(dtype))
    fail("cast policy: casts to f32, f16 or bf16, not to " + std::string(name(dtype)) +
         "; a rewrite computes in other formats");
  CastPolicy p = of(PolicyKind::cast);
  p.dtype = dtype;
  return p;
}

CastPolicy CastPolicy::banned(const std::string& message) {
  CastPolicy p = of(PolicyKind::banned);
  p.text = message;
  return p;
}

CastPolicy CastPolicy::rewrite(const std::string& name, Rewrite function) {
  if (!function) fail("cast policy: the rewrite '" + name + "' has no function");
  CastPolicy p = of(PolicyKind::rewrite);
  p.text = name;
  p.function = std::make_shared<const Rewrite>(std::move(function));
  return p;
}

CastPolicy CastPolicy::from_name(std::string_view name) {
  static const std::vector<std::string> kNames{"pass", "lower", "fp32", "promote", "banned", "f32", "f16", "bf16"};
  if (name == "pass") return pass();
  if (name == "lower") return lower();
  if (name == "fp32") return fp32();
  if (name == "promote") return promote();
  if (name == "banned")
    return banned("banned under autocast by the policy table; edit the table, or disable autocast around the call");
  if (name == "f32" || name == "f16" || name == "bf16") return cast(dtype_from_name(name));
  fail("no cast policy '" + std::string(name) + "'; allowed are " + join(kNames) + did_you_mean(name, kNames));
}

std::string to_string(const CastPolicy& policy) {
  static constexpr std::string_view kNames[] = {"pass", "lower", "fp32", "promote", "cast", "banned", "rewrite"};
  if (policy.kind == PolicyKind::cast) return std::string(gradual::name(policy.dtype));
  const std::string kind(kNames[static_cast<int>(policy.kind)]);
  return policy.kind == PolicyKind::rewrite ? kind + " " + policy.text : kind;
}

PolicyTable::PolicyTable() : entries_(default_entries()) {}

PolicyTable& PolicyTable::set(OpId op, CastPolicy policy) {
  if (op >= OpId::count_) fail("policy table: there is no op number " + std::to_string(static_cast<int>(op)));
  const std::string title(gradual::name(op));
  if (fixed(op) && policy.kind != PolicyKind::pass)
    fail("policy table: " + title + " takes no policy but pass: " +
         (info(op).kind == OpKind::InPlace  ? "what is written in place keeps its dtype; use the functional form"
          : info(op).kind == OpKind::Custom ? "a user function declares its amp_dtype()"
                                            : "what the program asks for is not changed"));
  if (policy.kind == PolicyKind::rewrite && !rewritable(op))
    fail("policy table: " + title +
         " cannot be rewritten; a rewrite needs an op of one output with a gradient that "
         "is made of its inputs alone, such as matmul, linear or conv2d");
  if (entries_.use_count() > 1) entries_ = std::make_shared<std::vector<CastPolicy>>(*entries_);
  (*entries_)[static_cast<std::size_t>(op)] = std::move(policy);
  return *this;
}

std::string PolicyTable::why(OpId op, const std::vector<DType>& inputs, DType lower) const {
  const CastPolicy& policy = (*this)[op];
  const std::string title(gradual::name(op));
  const std::string low(gradual::name(lower));
  bool any = false, f64 = false, narrow = false;
  DType widest = DType::bool_;
  for (DType d : inputs) {
    f64 = f64 || d == DType::f64;
    narrow = narrow || is_f8(d);
    if (!castable(d)) continue;
    widest = any ? gradual::promote(widest, d) : d;
    any = true;
  }
  const std::string listed = title + " is in the " + to_string(policy) + " list: ";
  if (fixed(op))
    return title + " is never autocast: an explicit dtype wins, and a tensor written in place keeps its own";
  if (policy.kind == PolicyKind::rewrite) return title + " is rewritten: " + policy.text + " runs in its place";
  if (!any)
    return title + " runs as it is on " + list(inputs) + ": autocast casts only f32, f16 and bf16" +
           (f64 || narrow ? "; f64 and f8 tensors keep their dtype" : "");
  switch (policy.kind) {
    case PolicyKind::lower:
      if (f64) return listed + "f64 is not autocast and cannot meet " + low + ", so this call is an Error";
      return listed + "runs in " + low +
             (info(op).kind == OpKind::Contraction ? ", exact products with f32 accumulation" : "") +
             (op == scaled_dot_product_attention ? ", exact products with f32 accumulation, its softmax in f32" : "");
    case PolicyKind::fp32: return listed + "runs in f32, since " + std::string(fp32_reason(op));
    case PolicyKind::promote:
      return listed + "runs in " + std::string(gradual::name(widest)) + ", the widest of its inputs " + list(inputs);
    case PolicyKind::cast: return title + " is cast by its own entry: runs in " + to_string(policy);
    case PolicyKind::banned: return title + " is " + policy.text;
    default: break;
  }
  return title + " is in no list: runs in its inputs' dtypes, " + list(inputs);
}

std::string to_string(const PolicyTable& table) {
  std::vector<std::string> policies{"lower", "fp32", "promote", "banned"};
  std::vector<std::string> lines(policies.size());
  std::string rest;
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    const std::string policy = to_string(table[op]);
    std::string* line = policy == "pass" ? &rest : nullptr;
    for (std::size_t k = 0; k < policies.size() && !line; ++k)
      if (policies[k] == policy) line = &lines[k];
    if (!line) {
      policies.push_back(policy);
      line = &lines.emplace_back();
    }
    *line += ' ';
    *line += name(op);
  }
  std::string text;
  for (std::size_t k = 0; k < policies.size(); ++k)
    if (!lines[k].empty()) text += policies[k] + ":" + lines[k] + "\n";
  return text + "pass:" + rest + "\n";
}

}  // namespace gradual::amp
