#include "quantized_results.h"

#include "../core/ops/ops.h"
#include "../core/ops/parameter_inputs.h"
#include "../core/support/rounding_draws.h"

namespace gradual::amp {
namespace {

struct RoundedResults final : Interceptor {
  explicit RoundedResults(const Quantizer& q) : q_(q) {}

  Outputs call(const OpCall& call) override {
    Outputs out = next_below_results(call);
    const OpKind kind = op_info(call.op).kind;
    if (kind == OpKind::View) return out;
    const StageScope exact(chain().results, nullptr);
    if (kind == OpKind::InPlace) round_written(call);
    else
      for (Tensor& t : out.values)
        if (t.defined() && t.is_floating()) t = rounded(t);
    return out;
  }

  Tensor rounded(const Tensor& t) const { return fake_quantize(t, q_, options_for(q_)).to(t.dtype()); }

  void round_written(const OpCall& call) const {
    const ParameterInputs p = parameter_inputs(call);
    const int first = call.op == OpId::batch_norm_update_ ? 2 : 1;  // of the other ops: the inputs that are written
    for (int i = p.first; i < (p.count ? call.inputs.size() : first); ++i) {
      const bool gradient = p.count && call.op != OpId::unscale_ && (i - p.first) % p.each == 1;
      if (!gradient && call[i].defined() && call[i].is_floating()) call[i].copy_(rounded(call[i]));
    }
  }

  Quantizer q_;
};

}  // namespace

ResultScope::ResultScope(const std::optional<Quantization>& q)
    : rounding_(q && q->result ? std::make_unique<RoundedResults>(*q->result) : nullptr),
      stage_(chain().results, rounding_.get()) {}

QuantizeOptions options_for(const Quantizer& q) {
  return {.key = is_random(q) ? rounding_generator().next() : RandomKey()};
}

}  // namespace gradual::amp
