#include "quantized_moments.h"

#include <string>

#include "../core/formats/format.h"
#include "../core/support/throwf.h"

namespace gradual::optim {
namespace {

// A quantizer's description in a checkpoint, in today's words. Earlier checkpoints say "one scale a tensor".
std::string in_todays_words(std::string kept) {
  for (const char* of : {"tensor", "row"}) {
    const std::string former = fmt::format(" a {}", of);
    const std::size_t at = kept.find(former);
    if (at != std::string::npos) kept.replace(at, former.size(), fmt::format(" per {}", of));
  }
  return kept;
}

}  // namespace

void check_moments(const UpdateOptions& options) {
  for (const auto& q : options.moments) {
    if (!q) continue;
    in_context("optimizer, moments", [&] { check_valid(*q); });
    if (has_kept_scale(q->scaling) || has_zero_points(q->scaling) || q->hadamard || options.pure_arithmetic)
      throwf(
          "optimizer: moments are kept as codes without delayed or learned scaling, zero points, Hadamard transform "
          "and "
          "pure_arithmetic");
    if (q->center) throw_error("optimizer, moments: center belongs to a product");
    if (q->gradient != QuantizerGradient::straight)
      throw_error("optimizer, moments: the gradient of a quantizer belongs to a product");
  }
}

const Quantizer* moment_quantizer(const UpdateOptions& options, const Tensor& param, std::size_t k) {
  const bool none = k >= std::size(options.moments) || param.dim() < 2 || param.dtype() == DType::f64;
  return !none && options.moments[k] ? &*options.moments[k] : nullptr;
}

void save_moment(StateDict& to, const std::string& key, const QuantizedTensor& codes, const Quantizer& q) {
  to.set(key + ".quantizer", describe(q));
  to.set(key + ".codes", codes.codes);
  if (codes.scales.defined()) to.set(key + ".scales", codes.scales);
  to.set(key + ".global_scale", codes.global_scale.defined() ? codes.global_scale.item() : 1.0);
}

// The description of an unsigned format in checkpoints from before it had a name.
std::string with_former_name(std::string description, const Format& f) {
  const std::string name = to_string(f);
  if (!name.starts_with("ue")) return description;
  const std::string former = fmt::format("unsigned e{}m{} (bias {}, {})", f.exponent_bits, f.mantissa_bits, f.bias,
                                         f.mantissa_bits ? "IEEE NaN, Inf" : "NaN all ones");
  for (std::size_t at = description.find(name); at != std::string::npos;
       at = description.find(name, at + former.size()))
    description.replace(at, name.size(), former);
  return description;
}

// Whether a checkpoint's description is that of q.
bool describes(const std::string& kept, const Quantizer& q) {
  const std::string now = describe(q);
  const std::string former = with_former_name(now, q.format);
  const std::string with_scales = of_kind(
      q.scaling, former, [&](const auto& kind) requires requires { kind.scale_format; } {
        return with_former_name(former, kind.scale_format);
      });
  return kept == now || kept == with_scales;
}

// Quantises zeros to find the expected layout of the codes.
std::optional<QuantizedTensor> load_moment(const StateDict& from, const std::string& key, const std::string& name,
                                           const Tensor& param, const Quantizer* q) {
  if (!from.contains(key + ".codes")) return {};
  const std::string who = fmt::format("load_state_dict: {} of {}", key, name);
  if (const std::string kept = in_todays_words(from.text(key + ".quantizer")); !q || !describes(kept, *q))
    throwf("{} is kept as '{}', the optimizer's as '{}'", who, kept, q ? describe(*q) : "numbers");
  QuantizedTensor codes = quantize(zeros(param.sizes(), {.device = param.device()}), *q);
  const CategoryScope category(Category::optimizer);
  const auto take = [&](const char* part, Tensor& to) {
    if (!to.defined()) return;
    const Tensor value = from.tensor(key + part);
    if (value.sizes() != to.sizes() || value.dtype() != to.dtype())
      throwf("{}: {} is {} {}, it should be {} {}", who, part, to_string(value.dtype()), to_string(value.sizes()),
             to_string(to.dtype()), to_string(to.sizes()));
    to = value.device() == to.device() ? value.clone() : value.to(to.device());
  };
  take(".codes", codes.codes);
  take(".scales", codes.scales);
  const double global = from.real(key + ".global_scale");
  if (global != 1 || codes.global_scale.defined()) codes.global_scale = scalar(global, {.device = param.device()});
  return codes;
}

}  // namespace gradual::optim
