#include "precision_observer.h"

#include <bit>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../autograd/autograd.h"
#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../core/failf.h"
#include "../core/observer.h"
#include "../core/ops.h"

namespace gradual::amp {
namespace {

std::uint64_t storage_id(const Tensor& t) { return t.unsafe_impl()->storage->id; }

// A gradient for a leaf, or for what was made of a leaf by casts and views alone.
GradientRole role_of(const autograd::GradientEvent& event) {
  const Node* node = event.input < 0 ? &event.node : event.node.input(event.input).edge.node.get();
  while (node && !node->is_leaf && (node->op == OpId::cast || info(node->op).kind == OpKind::View))
    node = node->input(0).edge.node.get();
  return node && node->is_leaf ? GradientRole::weight : GradientRole::error;
}

// Adds the exponents, and with as_if the counts of a cast.
void add_values(const Tensor& grad, const GradientStatsOptions& options, GradientTally& tally) {
  if (!options.histogram && !options.as_if) return;
  const NoGrad off;
  const StageScope quiet(chain().observe, nullptr);  // what counting runs is no part of the program
  const std::vector<float> values = grad.to_vector<float>();
  for (std::size_t i = 0; i < values.size() && options.histogram; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu;
    (magnitude ? tally.exponents[magnitude >> 23] : tally.zeros) += 1;
  }
  if (!options.as_if) return;
  std::vector<std::uint16_t> narrow(values.size());
  store_from_float(*options.as_if, values.data(), narrow.data(), 1, grad.numel(), &tally.counts);
}

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

class GradientStats::Watch final : public GradientWatch, public Observer, public autograd::GradientObserver {
 public:
  explicit Watch(GradientStats& stats) : stats_(stats) {
    if (!stats.options_.as_if) scope_.emplace(*this);
  }
  ~Watch() override {
    stats_.last_ = step_;
    ++stats_.watched_;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool wants_counts() const override { return true; }
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void gradient(const autograd::GradientEvent& event) override;

 private:
  GradientStats& stats_;
  GradientTally step_;
  // The stores whose result was not handed on yet, by storage; outputs of one kernel share an entry.
  std::unordered_map<std::uint64_t, std::shared_ptr<CastCounts>> stores_;
  std::unordered_map<std::uint64_t, std::uint32_t> seen_;  // as_if: storages and versions counted already
  std::optional<ObserverScope> scope_;                     // goes first
};

void GradientStats::Watch::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  if (record.context.phase != Phase::backward || info(call.op).kind == OpKind::View) return;
  std::shared_ptr<CastCounts> store;
  if (record.counts.elements) {
    store = std::make_shared<CastCounts>(record.counts);
  } else if (call.inputs.size() > 0 && call[0].defined()) {  // numbers that moved: the rounding before them stands
    const auto moved = stores_.find(storage_id(call[0]));
    if (moved != stores_.end()) store = moved->second;
  }
  if (!store) return;
  for (const Tensor& t : out.values)
    if (t.defined() && is_half(t.dtype())) stores_[storage_id(t)] = store;
}

void GradientStats::Watch::gradient(const autograd::GradientEvent& event) {
  const Tensor& grad = event.grad;
  if (!grad.defined() || !grad.is_floating()) return;
  const std::uint64_t id = storage_id(grad);
  GradientTally tally;
  if (stats_.options_.as_if) {
    const auto [seen, fresh] = seen_.try_emplace(id, grad.version());
    if (!fresh && seen->second == grad.version()) return;
    seen->second = grad.version();
  } else {
    if (!is_half(grad.dtype())) return;
    const auto store = stores_.find(id);
    if (store == stores_.end() || !store->second->elements) return;
    tally.counts = std::exchange(*store->second, CastCounts{});  // once, whoever else shares it
    stores_.erase(store);
  }
  add_values(grad, stats_.options_, tally);
  stats_.tallies_[static_cast<std::size_t>(role_of(event))] += tally;
  step_ += tally;
}

double GradientTally::underflow_percent() const { return percent(counts.underflow, counts.elements); }
double GradientTally::overflow_percent() const { return percent(counts.overflow, counts.elements); }

GradientTally& GradientTally::operator+=(const GradientTally& other) {
  counts += other.counts;
  for (std::size_t i = 0; i < exponents.size(); ++i) exponents[i] += other.exponents[i];
  zeros += other.zeros;
  return *this;
}

GradientStatsOptions gradient_stats_options(const Recipe& recipe, std::int64_t every) {
  return {.every = every, .as_if = recipe.mode == Mode::full ? std::optional(DType::f16) : std::nullopt};
}

GradientStats::GradientStats(const GradientStatsOptions& options) : options_(options) {
  if (options.every < 1) failf("GradientStats: every is at least 1, not {}", options.every);
  if (options.as_if && !is_half(*options.as_if))
    failf("GradientStats: as_if is f16 or bf16, not {}", name(*options.as_if));
}

std::unique_ptr<GradientWatch> GradientStats::watch(std::int64_t step) {
  return step % options_.every == 0 ? std::make_unique<Watch>(*this) : nullptr;
}

GradientTally GradientStats::total() const {
  GradientTally sum = tallies_[0];
  return sum += tallies_[1];
}

}  // namespace gradual::amp
