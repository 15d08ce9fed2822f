#include "key_value_cache.h"

#include <utility>

#include "../core/ops/ops.h"
#include "../core/support/rounding_draws.h"
#include "../core/support/throwf.h"

namespace gradual::nn {
namespace {

constexpr int kTokens = -2;  // the dim of tokens

Shape without_tokens(const Tensor& t) {
  Shape sizes = t.sizes();
  sizes[t.dim() + kTokens] = 0;
  return sizes;
}

QuantizedTensor encoded(const Tensor& t, const Quantizer& quantizer) {
  return quantize(t, quantizer, {.axis = -1, .key = is_random(quantizer) ? rounding_generator().next() : RandomKey{}});
}

// In memory of its own: what is added may be a view of more.
Tensor joined(const Tensor& before, const Tensor& added) {
  return before.defined() ? cat({before, added}, kTokens) : added.contiguous().clone();
}

}  // namespace

KeyValueCache::KeyValueCache(std::optional<Quantizer> quantizer) : quantizer_(std::move(quantizer)) {
  if (!quantizer_) return;
  check_valid(*quantizer_);
  const bool bends = quantizer_->gradient != QuantizerGradient::straight;
  if (has_kept_scale(quantizer_->scaling) || quantizer_->hadamard || quantizer_->center || bends)
    throwf(
        "KeyValueCache: {}; a cache takes no delayed or learned scaling, Hadamard transform, subtracted mean or "
        "gradient that is not straight",
        describe(*quantizer_));
}

void KeyValueCache::check(const KeyValues& added) const {
  const Tensor& k = added.keys;
  const Tensor& v = added.values;
  if (k.dim() < 2 || k.sizes() != v.sizes() || k.dtype() != v.dtype())
    throwf("KeyValueCache: keys {} {} and values {} {}; both must be [.., length, size] of one dtype",
           to_string(k.dtype()), to_string(k.sizes()), to_string(v.dtype()), to_string(v.sizes()));
  if (k.requires_grad() || v.requires_grad())
    throw_error("KeyValueCache: a cache keeps no gradients; generate under NoGrad or RecipeRun::evaluate");
  if (length_ == 0) return;
  if (without_tokens(k) != without_tokens_ || k.dtype() != dtype_)
    throwf("KeyValueCache: keys {} {}, those before are {} {} without the number of tokens; nothing else may differ",
           to_string(k.dtype()), to_string(k.sizes()), to_string(dtype_), to_string(without_tokens_));
}

KeyValues KeyValueCache::append(const KeyValues& added) {
  check(added);
  KeyValues all = {joined(kept_.keys, added.keys), joined(kept_.values, added.values)};
  if (quantizer_) {
    std::vector<Codes> codes = codes_;
    codes.push_back({encoded(added.keys, *quantizer_), encoded(added.values, *quantizer_)});
    std::vector<Tensor> keys, values;
    for (const Codes& one : codes) {
      keys.push_back(one.keys.dequantize());
      values.push_back(one.values.dequantize());
    }
    all = {cat(keys, kTokens).to(added.keys.dtype()), cat(values, kTokens).to(added.values.dtype())};
    codes_ = std::move(codes);
  } else {
    kept_ = all;
  }
  length_ += added.keys.size(kTokens);
  without_tokens_ = without_tokens(added.keys);
  dtype_ = added.keys.dtype();
  return all;
}

std::size_t KeyValueCache::nbytes() const {
  if (!quantizer_) return length_ == 0 ? 0 : kept_.keys.nbytes() + kept_.values.nbytes();
  std::size_t bytes = 0;
  for (const Codes& one : codes_) bytes += one.keys.nbytes() + one.values.nbytes();
  return bytes;
}

Quantizer cache_quantizer(std::string_view format_name) {
  constexpr int kScaledBits = 8;
  const Format kept = format(format_name);
  if (kept.bits() > kScaledBits) return {.format = kept};
  return {.format = kept, .scaling = RowScale{}};
}

}  // namespace gradual::nn
