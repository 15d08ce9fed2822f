// The cast policy: what autocast does with each op. One table for CPU and CUDA; users print, edit and query it:
//
//   amp::PolicyTable table;                                  // the default
//   table.set("softmax", amp::CastPolicy::lower());          // copies share what neither changed
//   std::cout << to_string(table) << table.why("matmul", {DType::f32, DType::f32}, DType::bf16);
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../core/ops/dispatch.h"
#include "../core/ops/fusions.h"

namespace gradual::amp {

enum class PolicyKind : std::uint8_t {
  lower,    // floating inputs are cast to the region's dtype
  fp32,     // half inputs are cast to f32
  promote,  // floating inputs are cast to the widest among them
  banned,   // an Error that names the remedy
  cast,     // floating inputs are cast to the entry's own dtype
  rewrite,  // another function replaces the op
  pass      // runs in its inputs' dtypes
};

// Replaces an op. Called below amp with recording off, for the op itself and, in backward, for each contraction of its
// gradient (amp/rewrite.h). Returns the op's output, in any floating dtype. The function of a composite op runs with
// recording as it is, once, and records its gradient itself.
using Rewrite = std::function<Outputs(const OpCall& call)>;
// The parameters that a rewritten op reads besides the call's inputs, such as learned scales. They become inputs of the
// recorded op. Undefined ones have no gradient.
using RewriteParameters = std::function<std::vector<Tensor>(const OpCall& call)>;

struct CastPolicy {
  PolicyKind kind = PolicyKind::pass;
  DType dtype = DType::f32;                                  // cast: to what
  std::string text = {};                                     // banned: the reason and the remedy; rewrite: its name
  std::shared_ptr<const Rewrite> function = {};              // rewrite
  std::shared_ptr<const RewriteParameters> parameters = {};  // rewrite: may be null

  static CastPolicy pass() { return {}; }
  static CastPolicy lower() { return {.kind = PolicyKind::lower}; }
  static CastPolicy fp32() { return {.kind = PolicyKind::fp32}; }
  static CastPolicy promote() { return {.kind = PolicyKind::promote}; }
  static CastPolicy cast(DType dtype);  // f32, f16 or bf16
  static CastPolicy banned(const std::string& message) { return {.kind = PolicyKind::banned, .text = message}; }
  static CastPolicy rewrite(const std::string& name, Rewrite function, RewriteParameters parameters = {});
  // From a name in a file: "pass", "lower", "fp32", "promote", "banned", or the dtype of a cast ("f16").
  static CastPolicy from_name(std::string_view name);
};
// The inverse of from_name; "rewrite NAME" for a rewrite.
std::string to_string(const CastPolicy& policy);

// An entry for every op. Copies share their entries until one is edited, so copying a table is cheap.
class PolicyTable {
 public:
  PolicyTable();  // the default table

  // A fusion (core/ops/fusions.h) has the policy of its first part.
  const CastPolicy& operator[](OpId op) const {
    const Fusion* f = fusion_of(op);
    return (*entries_)[static_cast<std::size_t>(f ? f->first : op)];
  }
  // True if autocast runs the fusion as one op: the policies of its parts give the dtypes of its kernel. Otherwise
  // autocast runs the parts, each by its own policy.
  bool runs_whole(const Fusion& fusion) const;
  // In-place ops, casts, copies between devices and user functions accept only `pass`: an explicit dtype takes
  // precedence, and a tensor written in place keeps its dtype. Fusions accept only `pass` too, because their parts have
  // policies. A rewrite needs a composite op, or one of one output with a gradient made of its inputs alone. Else, and
  // for an unknown name: Error.
  PolicyTable& set(OpId op, CastPolicy policy);
  PolicyTable& set(std::string_view op, CastPolicy policy) { return set(op_from_name(op), std::move(policy)); }

  // One sentence that explains what autocast to `lower` does with the op on inputs of these dtypes, and why.
  std::string why(OpId op, const std::vector<DType>& inputs, DType lower = DType::f16) const;
  std::string why(std::string_view op, const std::vector<DType>& inputs, DType lower = DType::f16) const {
    return why(op_from_name(op), inputs, lower);
  }

 private:
  std::shared_ptr<std::vector<CastPolicy>> entries_;  // written only if no other table shares it
};

// A line for each policy, with the ops that have it.
std::string to_string(const PolicyTable& table);

// True if autocast casts tensors of this dtype. It does not cast f64, f8 and integers.
constexpr bool castable(DType d) { return d == DType::f32 || is_half(d); }

// The properties of a call's dtypes that autocast uses.
struct OperandDTypes {
  bool any = false;           // one is castable
  bool f64 = false;           // one is f64
  DType widest = DType::f32;  // of the castable ones
  void add(DType d);
};

}  // namespace gradual::amp
