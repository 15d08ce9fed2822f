#include "precision_observer.h"

#include <set>

#include "../autograd/autograd.h"
#include "../autograd/grad_mode.h"
#include "../autograd/node.h"
#include "../core/observe/observer.h"
#include "../core/ops/parameter_inputs.h"
#include "quantized_recipes.h"

namespace gradual::amp {
namespace {

// Adds the exponents and, with as_if, the counts of a cast.
void add_values(const Tensor& t, std::optional<DType> as_if, CastTally& tally) {
  const NoGrad off;
  const StageScope quiet(chain().observe, nullptr), exact(chain().results, nullptr);  // not a part of the run
  const std::vector<float> values = t.detach().to_vector<float>();
  const auto n = static_cast<std::int64_t>(values.size());
  tally.exponents.add(values.data(), n);
  if (!as_if) return;
  std::vector<std::uint16_t> narrow(values.size());
  cast_and_store(*as_if, values.data(), narrow.data(), 1, n, &tally.counts);
}

struct Watch final : Observer, autograd::GradientObserver {
  Watch(CastStatsTable& table, std::optional<DType> as_if) : table_(table), as_if_(as_if), scope_(*this) {}

  bool wants_counts() const override { return !as_if_; }

  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override {
    if (record.context.phase == gradual::Phase::forward) forward(call, out, record);
    else if (record.context.phase == gradual::Phase::backward) backward(call, out, record);
    else optimizer(call, record);
  }

  void gradient(const autograd::GradientEvent& event) override {
    const Tensor& grad = event.grad;
    if (!grad.defined() || !grad.is_floating()) return;
    const Node* leaf = leaf_of(event);
    std::string layer = event.node.module;
    if (leaf && event.input >= 0) layers_of_leaves_[leaf] = layer;
    else if (leaf) layer = layers_of_leaves_[leaf];
    const std::uint64_t id = storage_id(grad);
    CastCounts counts;
    if (as_if_) {
      if (!seen_.emplace(id, grad.version()).second) return;
    } else {
      if (!is_half(grad.dtype())) return;
      const auto store = stores_.find(id);
      if (store == stores_.end() || !store->second->elements) return;
      counts = std::exchange(*store->second, CastCounts{});  // counted once, although others share it
      stores_.erase(store);
    }
    add(leaf ? Role::weight_gradient : Role::error, layer, counts, grad);
  }

  void forward(const OpCall& call, const Outputs& out, const CallRecord& record) {
    const std::string layer = record.context.module;
    for (int i = 0; i < call.inputs.size(); ++i) {
      const Tensor& t = call[i];
      if (!t.defined() || !t.is_floating()) continue;
      if (is_parameter(t)) layers_.try_emplace(storage_id(t), layer);
      if (as_if_ && op_info(call.op).kind == OpKind::Contraction)
        add(is_parameter(t) ? Role::weight : Role::activation, layer, {}, t);
    }
    if (!record.counts.elements || !out[0].defined()) return;
    const bool cast = call.op == OpId::cast;
    add(cast && is_parameter(call[0]) ? Role::weight : Role::activation, layer, record.counts, cast ? call[0] : out[0]);
  }

  void backward(const OpCall& call, const Outputs& out, const CallRecord& record) {
    if (as_if_ || op_info(call.op).kind == OpKind::View) return;
    std::shared_ptr<CastCounts> store;
    if (record.counts.elements) {
      store = std::make_shared<CastCounts>(record.counts);
    } else if (call.inputs.size() > 0 && call[0].defined()) {  // copied numbers: their earlier rounding still counts
      const auto moved = stores_.find(storage_id(call[0]));
      if (moved != stores_.end()) store = moved->second;
    }
    if (!store) return;
    for (const Tensor& t : out.values)
      if (t.defined() && is_half(t.dtype())) stores_[storage_id(t)] = store;
  }

  // A step writes many parameters with one call.
  void optimizer(const OpCall& call, const CallRecord& record) {
    const ParameterInputs parameters = parameter_inputs(call);
    for (std::size_t k = 0; k < record.counts_by_parameter.size(); ++k) {
      const OpCall one = call_of_parameter(call, parameters, static_cast<int>(k));
      const CastCounts& counts = record.counts_by_parameter[k];
      if (counts.elements && is_parameter(one[0])) add(Role::weight, layers_[storage_id(one[0])], counts, one[0]);
    }
    // An optimizer that is written with ops copies the new weight into the parameter.
    if (call.op == OpId::copy_ && record.counts.elements && is_parameter(call[0]))
      add(Role::weight, layers_[storage_id(call[0])], record.counts, call[0]);
  }
  void add(Role role, const std::string& layer, const CastCounts& counts, const Tensor& values) {
    CastTally& tally = table_[{role, layer}];
    tally.counts += counts;
    add_values(values, as_if_, tally);
  }

  CastStatsTable& table_;
  std::optional<DType> as_if_;
  // Stores of backward whose result was not passed on yet, by storage; outputs of one kernel share an entry.
  std::unordered_map<std::uint64_t, std::shared_ptr<CastCounts>> stores_;
  std::set<std::pair<std::uint64_t, std::uint32_t>> seen_;         // as if: storages and versions counted already
  std::unordered_map<std::uint64_t, std::string> layers_;          // of parameters, by storage
  std::unordered_map<const Node*, std::string> layers_of_leaves_;  // where their last gradient came from
  ObserverScope scope_;
};

}  // namespace

bool counted_as_if(const Recipe& recipe) { return recipe.mode == Mode::full && !recipe.quantization; }

std::optional<Format> counted_format(const Recipe& recipe, Role role) {
  if (recipe.quantization) return format_met(*recipe.quantization, role);
  return format_of(counted_as_if(recipe) ? DType::f16 : recipe.dtype);
}

PrecisionObserver::PrecisionObserver(CastStatsTable& table, const Recipe& recipe) {
  if (recipe.quantization) counting_ = std::make_shared<CastStatsScope>(table);
  else counting_ = std::make_shared<Watch>(table, counted_as_if(recipe) ? std::optional(DType::f16) : std::nullopt);
}

}  // namespace gradual::amp
