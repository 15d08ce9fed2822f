#include "rule.h"

#include <algorithm>
#include <numbers>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "function.h"

namespace gradual {

// The graph of gelu's slope at x. exact: Phi(x) + x phi(x). tanh form (Hendrycks and Gimpel 2016): the derivative of
// x sigmoid(v). Both are computed at -|x|; at |x| the slope is 1 less that. Beyond kFar it is 0 or 1; there the operand
// is replaced, so that no derivative is Inf times 0. Phi from erf cancels in the left tail, its derivatives do not.
static Tensor gelu_slope_graph(const Tensor& x, bool tanh_form) {
  constexpr double kFar = 40;
  constexpr double kTwiceRoot = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // 2 sqrt(2/pi)
  constexpr double kCube = 0.044715;
  const Tensor right = x > 0;
  const Tensor left = where(right, -x, x);
  const Tensor t = where(left < -kFar, -kFar, left);  // not a clamp, whose derivative hides NaN
  Tensor tail;
  if (tanh_form) {
    const Tensor v = (t + t * square(t) * kCube) * kTwiceRoot;
    const Tensor dv = (square(t) * (3 * kCube) + 1) * kTwiceRoot;
    tail = sigmoid(v) * (t * dv * sigmoid(-v) + 1);
  } else {
    const Tensor cdf = erf(t * (1 / std::numbers::sqrt2)) * 0.5 + 0.5;
    tail = cdf + t * (exp(square(t) * -0.5) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2));
  }
  return where(right, 1 - tail, tail);
}

static void check(const Node& node, const Tensor& t, std::uint32_t version) {
  if (!t.defined())
    throwf("backward of {}: {}", describe(node),
           node.released ? "its saved tensors are freed; pass retain_graph to the first backward"
                         : "internal: the rule asks for a tensor it did not save");
  if (t.version() != version) fail_changed("backward of " + describe(node), t, version);
}

Tensor RuleContext::input(int i) const {
  const Node::Input& slot = node_.input(i);
  check(node_, slot.saved, slot.version);
  return slot.saved;
}

Tensor RuleContext::output(int i) const {
  check(node_, node_.saved_outputs[i], node_.output_versions[i]);
  if (!create_graph_ || !node_.saved_outputs[i].is_floating()) return node_.saved_outputs[i];
  Tensor t = detached(node_.saved_outputs[i]);
  set_history(t, Ref<Node>::share(&node_), static_cast<std::uint32_t>(i));
  return t;
}

Tensor times_slope(const RuleContext& c, OpId op, const Attrs& attrs, const Tensor& saved) {
  Tensor dy = c.take_grad();  // not const: dispatch may reuse it
  const Tensor* const inputs[] = {&dy, &saved};
  return dispatch1(op, TensorRefs(inputs, 2, 1), attrs, SourceLocation::current());
}

Tensor gelu_gradient(const RuleContext& c, const Tensor& x) {
  const Gelu form = c.get<Gelu>();
  if (!c.create_graph()) return times_slope(c, OpId::gelu_backward, form, x);
  const Tensor slope = call_row(OpId::gelu_backward, form, ones_like(detached(x)), x)[0];  // accurate in both tails
  return with_history(call_row(OpId::gelu_backward, form, c.grad(), x)[0],
                      c.grad() * with_history(slope, gelu_slope_graph(x, form == Gelu::tanh)));
}

int saves_of(const BackwardRule& rule, std::uint32_t needs) {
  int saves = 0;
  for (int i = 0; i < 5 && needs >> i != 0; ++i)
    if (needs & input_bit(i)) saves |= rule.saves[i];
  return saves;
}

BackwardRule& set_rule(OpId op, std::initializer_list<int> saves, RuleFn backward) {
  BackwardRule& r = backward_rule_table[static_cast<int>(op)];
  r.backward = backward;
  std::ranges::copy(saves, r.saves);
  return r;
}
void set_no_rule(std::initializer_list<OpId> ops, const char* reason) {
  for (OpId op : ops) backward_rule_table[static_cast<int>(op)].reason = reason;
}

void register_rules() {
  register_elementwise_rules();
  register_shape_rules();
  register_contraction_rules();
  register_normalization_rules();
  register_custom();
  set_no_rule({OpId::leaf}, "the engine gathers a leaf's gradient");
  set_no_rule(
      {OpId::gelu_backward, OpId::flash_attention_backward, OpId::batch_norm_backward, OpId::layer_norm_backward,
       OpId::rms_norm_backward, OpId::softmax_backward, OpId::log_softmax_backward, OpId::cross_entropy_backward},
      "fused backward: under create_graph the composed form gives the graph");
  for (int i = 0; i < kOpCount; ++i) {
    if (kOpInfos[i].kind == OpKind::Composite) backward_rule_table[i].reason = "composite: its parts have rules";
    if (kOpInfos[i].kind == OpKind::Comparison) backward_rule_table[i].reason = "a bool result";
  }
}

}  // namespace gradual
