#include "split_sum.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "../autograd/function.h"
#include "../core/ops/ops.h"
#include "../core/quantize/quantizer.h"
#include "../core/support/throwf.h"

namespace gradual::lab {
namespace {

// As a part sends it.
Tensor rounded(const Tensor& t, const amp::Exchange& exchange) {
  if (!exchange.quantizer) return t;
  const Quantizer& q = *exchange.quantizer;
  const std::optional<DType> dtype = dtype_of_format(q.format);
  const bool plain = is_any<NoScale>(q.scaling) && dtype && is_half(*dtype);
  if (plain) return cast(cast(t, *dtype), t.dtype());
  return fake_quantize(t, q);
}

Tensor gathered(const std::vector<Tensor>& parts, const amp::Exchange& exchange) {
  Tensor all = rounded(parts.front(), exchange);
  for (std::size_t i = 1; i < parts.size(); ++i) all = add(all, rounded(parts[i], exchange));
  return all;
}

Tensor around_a_ring(const std::vector<Tensor>& parts, const amp::Exchange& exchange) {
  Tensor all = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) all = add(rounded(all, exchange), parts[i]);
  return all;
}

Tensor up_a_tree(std::vector<Tensor> level, const amp::Exchange& exchange) {
  while (level.size() > 1) {
    std::vector<Tensor> next;
    for (std::size_t i = 0; i + 1 < level.size(); i += 2)
      next.push_back(add(level[i], rounded(level[i + 1], exchange)));
    if (level.size() % 2 != 0) next.push_back(level.back());
    level = std::move(next);
  }
  return level.front();
}

struct Summed final : Function {
  explicit Summed(amp::Exchange e) : exchange(std::move(e)) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
    parts = inputs.size();
    return {exchanged_sum(inputs, exchange)};
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    return std::vector<Tensor>(parts, grads.front());
  }
  std::string name() const override { return "sum over parts"; }

  amp::Exchange exchange;
  std::size_t parts = 0;
};

// The gradients of a tensor's copies, until all have come.
struct CopiesOf {
  amp::Exchange exchange;
  std::vector<Tensor> gradients;  // undefined: has not come
};

struct Copy final : Function {
  Copy(std::shared_ptr<CopiesOf> copies, std::size_t i) : all(std::move(copies)), number(i) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override { return {inputs.front()}; }
  // The last one to come brings the sum.
  std::vector<Tensor> backward(const std::vector<Tensor>& grads) override {
    all->gradients[number] = grads.front();
    if (!std::ranges::all_of(all->gradients, &Tensor::defined)) return {Tensor()};
    const auto come = std::exchange(all->gradients, std::vector<Tensor>(all->gradients.size()));
    return {exchanged_sum(come, all->exchange)};
  }
  std::string name() const override { return "copy for a part"; }

  std::shared_ptr<CopiesOf> all;
  std::size_t number;
};

Tensor summed_by_algorithm(const std::vector<Tensor>& parts, const amp::Exchange& exchange) {
  switch (exchange.algorithm) {
    case ExchangeAlgorithm::gather: return gathered(parts, exchange);
    case ExchangeAlgorithm::ring: return around_a_ring(parts, exchange);
    case ExchangeAlgorithm::tree: break;
  }
  return up_a_tree(parts, exchange);
}

}  // namespace

void check_exchange(const amp::Exchange& e) {
  amp::check_valid(e);
  if (e.sign || e.error_feedback || e.average != amp::Exchange().average)
    throw_error("the exchange of a split: signs, feedback and averages belong to gradients of ranks");
  if (!e.quantizer) return;
  if (is_random(*e.quantizer))
    throw_error("the exchange of a split: random rounding is not emulated; allowed are all other modes");
  if (per_tensor(e.quantizer->scaling) && !is_any<NoScale>(e.quantizer->scaling))
    throw_error(
        "the exchange of a split: one scale for a tensor is not emulated; allowed are f32, formats of more than 8 bits "
        "such as bf16, and those with scales of blocks such as mxfp8");
}

Tensor exchanged_sum(const std::vector<Tensor>& parts, const amp::Exchange& exchange) {
  if (parts.size() == 1) return parts.front();
  if (const DType dtype = parts.front().dtype(); is_half(dtype)) {
    std::vector<Tensor> wide;
    for (const Tensor& part : parts) wide.push_back(cast(part, DType::f32));
    return cast(exchanged_sum(wide, exchange), dtype);
  }
  const Tensor all = summed_by_algorithm(parts, exchange);
  return exchange.round_result ? rounded(all, exchange) : all;
}

Tensor summed(const std::vector<Tensor>& parts, const amp::Exchange& exchange) {
  return gradual::apply(std::make_shared<Summed>(exchange), parts).front();
}

std::vector<Tensor> copies_of(const Tensor& t, int n, const amp::Exchange& exchange) {
  const auto count = static_cast<std::size_t>(n);
  const auto all = std::make_shared<CopiesOf>(CopiesOf{exchange, std::vector<Tensor>(count)});
  std::vector<Tensor> copies;
  for (std::size_t i = 0; i < count; ++i) copies.push_back(gradual::apply(std::make_shared<Copy>(all, i), {t}).front());
  return copies;
}

}  // namespace gradual::lab
