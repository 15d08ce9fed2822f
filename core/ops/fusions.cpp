#include "fusions.h"

namespace gradual {
namespace {

Attrs none(const Attrs&) { return {}; }
Attrs same(const Attrs& whole) { return whole; }
Attrs of_first(const Attrs& first, const Attrs&) { return first; }
Attrs of_second(const Attrs&, const Attrs& second) { return second; }

Attrs with_relu(const Attrs& norm, bool relu) {
  NormAttrs a = norm.get<NormAttrs>();
  a.relu = relu;
  return a;
}
Attrs without_relu(const Attrs& whole) { return with_relu(whole, false); }
Attrs with_relu_too(const Attrs& first, const Attrs&) { return with_relu(first, true); }

using enum OpId;
constexpr Fusion kFusions[] = {
    // whole, first, second, slot, middle, attributes of first, of second, of whole
    {linear_relu, linear, relu, 0, -1, none, none, of_first},
    {linear_gelu, linear, gelu, 0, 1, none, same, of_second},
    {batch_norm, batch_norm, relu, 0, -1, without_relu, none, with_relu_too},
    {dropout_add, dropout, add, 1, -1, same, none, of_first},
};

}  // namespace

std::span<const Fusion> fusions() { return kFusions; }

const Fusion* fusion_of(OpId whole) {
  for (const Fusion& f : kFusions)
    if (f.is_row() && f.whole == whole) return &f;
  return nullptr;
}

const Fusion* fusion_of(const OpCall& call) {
  if (call.op != OpId::batch_norm) return fusion_of(call.op);
  return call.get<NormAttrs>().relu ? find_fusion(OpId::batch_norm, OpId::relu) : nullptr;
}

const Fusion* find_fusion(OpId first, OpId second) {
  for (const Fusion& f : kFusions)
    if (f.first == first && f.second == second) return &f;
  return nullptr;
}

}  // namespace gradual
