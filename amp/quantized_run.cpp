#include "quantized_run.h"

#include <algorithm>
#include <cmath>

#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "../nn/embedding.h"
#include "cast_stats.h"
#include "quantized_results.h"

namespace gradual::amp {
namespace {

// Rounds a gradient in place, unless an element is not finite. On a GPU the check runs on the device, and the host
// reads one of its own only to count. Random numbers are drawn in any case.
void store_finite(const Tensor& gradient, const Quantizer& q, CastTally* tally) {
  QuantizeOptions o = options_for(q);
  const bool here = gradient.device().is_cpu();
  const bool finite = (here || tally) && std::isfinite(absmax(gradient));
  if (here && !finite) return;
  if (finite && tally) {
    o.stats = {&tally->counts, &tally->exponents};
    o.scaled_exponents = true;
  }
  const Tensor rounded = fake_quantize(gradient, q, o);
  gradient.copy_(here ? rounded : where(lt(absmax_tensor(gradient), HUGE_VAL), rounded, gradient));
}

// Calls f(the module's quantisation, its path, parameter) for parameters of at least two dims; for all, if results are
// rounded.
template <class F> void for_quantised(const QuantizationState& state, const nn::Module& model, const F& f) {
  const NoGrad off;
  for (const auto& [name, param] : model.named_parameters()) {
    const auto dot = name.rfind('.');
    const std::string module = dot == std::string::npos ? "" : name.substr(0, dot);
    if (const Quantization* q = state.of_module(module); q && (param.dim() >= 2 || q->result)) f(*q, module, param);
  }
}

// A layer names its weight as PyTorch does. Parameters of other names, as the positions of a transformer, are added.
bool multiplies_by_weight(const nn::Module& module) {
  if (dynamic_cast<const nn::LookupTable*>(&module)) return false;
  return std::ranges::any_of(module.named_parameters(false), [](const auto& named) {
    const auto& [name, parameter] = named;
    return name == "weight" && parameter.dim() >= 2;
  });
}

}  // namespace

void name_layers(Quantization& q, nn::Module& model) {
  std::vector<std::string> paths, layers;
  for (const auto& [path, module] : model.named_modules()) {
    paths.push_back(path);
    if (multiplies_by_weight(*module)) layers.push_back(path);
  }
  for (auto& [module, other] : q.modules) {
    if ((module == "first" || module == "last") && !layers.empty())
      module = module == "first" ? layers.front() : layers.back();
    if (std::find(paths.begin(), paths.end(), module) == paths.end())
      throwf("quantization: the model has no module '{}'; allowed are first, last, '' (the whole model){}{}", module,
             paths.size() > 1 ? ", " + join({paths.begin() + 1, paths.end()}) : "", did_you_mean(module, paths));
  }
}

void quantize_gradients(const QuantizationState& state, const nn::Module& model) {
  for_quantised(state, model, [](const Quantization& q, const std::string& module, const Tensor& param) {
    const Tensor gradient = param.grad();
    if (q.weight_gradient && gradient.defined())
      store_finite(gradient, *q.weight_gradient, cast_tally(Role::weight_gradient, module));
  });
}

void quantize_parameters(const QuantizationState& state, const nn::Module& model, optim::Optimizer& optimizer) {
  for_quantised(state, model, [&](const Quantization& q, const std::string&, const Tensor& param) {
    const Tensor wide = optimizer.master(param);
    if (q.master && !wide.is_same(param)) {
      wide.copy_(fake_quantize(wide, *q.master, options_for(*q.master)));
      param.copy_(wide);
    }
    const bool feeds = q.weight && optimizer.update_options().update == optim::LowPrecisionUpdate::eco;
    const Tensor before = feeds ? param.clone() : Tensor();
    if (const auto& w = q.weight ? q.weight : q.result) param.copy_(fake_quantize(wide, *w, options_for(*w)));
    if (feeds) optimizer.feed_back(param, before.to(DType::f32) - param.to(DType::f32));
    optimizer.keep_master(param);
  });
}

}  // namespace gradual::amp
