#include "routes.h"

#include <algorithm>

#include "../core/formats/accumulator.h"
#include "../core/support/throwf.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

Tensor exactly_chosen(const Tensor& x, const Tensor& weight, std::int64_t k) {
  const Unseen unseen;
  const AccumulatorScope exact(std::nullopt);
  const Tensor logits = linear(cast(x.detach(), DType::f64), cast(weight.detach(), DType::f64));
  return nn::chosen_experts(logits, k);
}

}  // namespace

RouteChange& RouteChange::operator+=(const RouteChange& other) {
  tokens += other.tokens;
  changed += other.changed;
  choices += other.choices;
  moved += other.moved;
  return *this;
}

RouteChange compare_routes(const Tensor& first, const Tensor& second) {
  if (first.sizes() != second.sizes() || first.dim() < 1 || first.size(-1) < 1)
    throwf("routes: experts {} and {}; both must be [.., k] with k of at least 1", to_string(first.sizes()),
           to_string(second.sizes()));
  const std::int64_t k = first.size(-1);
  const std::vector<std::int64_t> a = first.to(Device::cpu()).to_vector<std::int64_t>();
  const std::vector<std::int64_t> b = second.to(Device::cpu()).to_vector<std::int64_t>();
  RouteChange change{.tokens = first.numel() / k, .choices = first.numel()};
  for (auto x = a.begin(), y = b.begin(); x != a.end(); x += k, y += k) {
    const auto is_new = [&](std::int64_t expert) { return std::find(y, y + k, expert) == y + k; };
    const std::int64_t moved = std::count_if(x, x + k, is_new);
    change.moved += moved;
    change.changed += moved > 0;
  }
  return change;
}

RouteObserver::RouteObserver(nn::Module& model, Exact exact) {
  for (const auto& [path, module] : model.named_modules())
    if (auto* const mixture = dynamic_cast<nn::MixtureOfExperts*>(module))
      layers_.push_back({path, mixture, 0, {}, {}});
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    nn::MixtureOfExperts& mixture = *layers_[i].mixture;
    layers_[i].hook =
        mixture.router.register_forward_hook([this, i, exact](nn::Module&, const Tensor& x, const Tensor& logits) {
          if (context().cause->kind == CauseKind::recomputation) return;  // its choices were seen
          const Unseen unseen;
          Layer& layer = layers_[i];
          const std::int64_t k = layer.mixture->options().chosen;
          layer.chosen.push_back(nn::chosen_experts(logits.detach(), k));
          if (exact == Exact::yes) layer.exact.push_back(exactly_chosen(x, layer.mixture->router.weight, k));
        });
  }
}

RouteObserver::~RouteObserver() {
  for (const Layer& layer : layers_) layer.mixture->router.remove_forward_hook(layer.hook);
}

std::vector<RouteRow> RouteObserver::rows() const {
  std::vector<RouteRow> rows;
  for (const Layer& layer : layers_)
    if (!layer.chosen.empty()) rows.push_back({layer.path, layer.changed_by_rounding()});
  return rows;
}

void RouteObserver::clear() {
  for (Layer& layer : layers_) {
    layer.chosen.clear();
    layer.exact.clear();
  }
}

RouteChange RouteObserver::Layer::changed_by_rounding() const {
  RouteChange change;
  for (std::size_t i = 0; i < exact.size(); ++i) change += compare_routes(chosen[i], exact[i]);
  return change;
}

double RouteObserver::Layer::busiest_share() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(mixture->options().experts));
  std::int64_t all = 0;
  for (const Tensor& t : chosen)
    for (const std::int64_t e : t.to(Device::cpu()).to_vector<std::int64_t>()) {
      ++counts[static_cast<std::size_t>(e)];
      ++all;
    }
  return static_cast<double>(*std::ranges::max_element(counts)) / static_cast<double>(all);
}

}  // namespace gradual::inspect
