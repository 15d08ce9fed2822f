#include "gradient_noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "../amp/rewrite.h"
#include "../core/ops/ops.h"
#include "../core/quantize/quantizer_call.h"
#include "error_sum.h"
#include "exact.h"
#include "numbers.h"

namespace gradual::inspect {

double GradientNoise::ratio() const {
  return noise_squares > 0 ? std::sqrt(gradient_squares / noise_squares) : std::numeric_limits<double>::infinity();
}

std::string to_string(const GradientNoise& n) {
  return fmt::format("{}: |gradient| is {:.3g} times its quantisation noise{}", n.layer, n.ratio(),
                     n.drowns() ? ", below sqrt(3)" : "");
}

void GradientNoiseMeter::before(const OpCall& call) {
  if (op_info(call.op).kind == OpKind::Custom)
    frames_.push_back(called(call).find(" rewritten by ") != std::string_view::npos);
  if (context().phase == Phase::optimizer) given_ = exact_ = {};
}

void GradientNoiseMeter::quantized(const QuantizerCall& call) {
  if (call.kind != QuantizerCall::values || frames_.empty()) return;
  const Unseen unseen;
  given_.set(call.to, call.scale.defined() ? mul(widened(call.to), widened(call.scale)) : widened(call.to));
  exact_.set(call.to, widened(call.from));
}

void GradientNoiseMeter::after(const OpCall& call, const Outputs&, const CallRecord& record) {
  if (op_info(call.op).kind == OpKind::Custom) return frames_.pop_back();
  if (frames_.empty() || !frames_.back() || op_info(call.op).kind != OpKind::Contraction) return;
  if (!given_.knows(call[0]) && !given_.knows(call[1])) return;
  const amp::Role a = amp::operand_role(0), b = amp::operand_role(1);
  using enum amp::Role;
  if (!(a == error && b == activation) && !(a == activation && b == error)) return;
  const Tensor gradient = run_exactly(call, {exact_.of(call[0]), exact_.of(call[1])})[0];
  const Tensor noise = minus(run_exactly(call, {given_.of(call[0]), given_.of(call[1])})[0], gradient);
  auto layer = std::ranges::find(layers_, record.context.module, &GradientNoise::layer);
  if (layer == layers_.end()) layer = layers_.insert(layer, {.layer = record.context.module});
  layer->elements += gradient.numel();
  layer->gradient_squares += squares(gradient), layer->noise_squares += squares(noise);
}

}  // namespace gradual::inspect
