#include "shadow.h"

#include <fmt/format.h>

#include "../autograd/node.h"
#include "../core/ops/compute_mode.h"
#include "../core/ops/parameter_inputs.h"
#include "../core/quantize/quantizer_call.h"

namespace gradual::inspect {
namespace {

// The share of elements for which f64 decides otherwise; 0 for ops that decide nothing.
double decided_otherwise(const OpCall& call, const Outputs& out, Mirror& shadow) {
  const OpId last = fusion_of(call) ? fusion_of(call)->second : call.op;
  const bool relu = last == OpId::relu || last == OpId::leaky_relu;
  int i = 0;
  while (!relu && i < kMaxOutputs && out[i].defined() && out[i].is_floating()) ++i;
  if (i == kMaxOutputs || !out[i].defined() || out[i].numel() == 0) return 0;
  double otherwise = 0;
  in_blocks(std::array{out[i], shadow.of(out[i])}, [&otherwise, relu](const auto& p, std::int64_t n) {
    const double* y = p[0];
    const double* s = p[1];
    double differ = 0;
#pragma omp simd reduction(+ : differ)
    for (std::int64_t k = 0; k < n; ++k) differ += relu ? (y[k] > 0) != (s[k] > 0) : y[k] != s[k];
    otherwise += differ;
  });
  return otherwise / static_cast<double>(out[i].numel());
}

}  // namespace

// A running custom op: its inner ops run in f64 from its actual inputs. `exact` rounds no operand, `first` only the
// first operand of its products, `both` rounds both.
struct Shadow::Frame {
  Mirror exact, first, both, before;
  // By storage: the inputs of the custom op that it depends on.
  enum : int { kFirst = 1, kOthers = 2, kInputs = 3 };
  std::map<std::uint64_t, int> storages;
  const std::uint64_t node;    // the custom op on the tape; 0: not recorded
  bool rounded = false;        // a quantiser has run
  const bool rewritten;        // a contraction, not a user's function
  const Replaced product;      // its op and operands
  bool inherits = false;       // `before` holds its inputs without the errors of ops off the tape
  std::string not_exact = {};  // why one of its ops has no f64 form

  Frame(std::uint64_t number, const CallRecord& record, FreedStorages* freed)
      : exact(freed),
        first(freed),
        both(freed),
        before(freed),
        node(number),
        rewritten(record.replaced != nullptr),
        product(rewritten ? *record.replaced : Replaced{record.op}) {}

  int of(const Tensor& t) const {
    const auto found = t.defined() ? storages.find(amp::storage_id(t)) : storages.end();
    return found == storages.end() ? 0 : found->second;
  }
  // Called after an inner op.
  void ran(const OpCall& call, const Outputs& out) {
    int inputs = 0;
    for (int i = 0; i < call.inputs.size(); ++i) inputs |= of(call[i]);
    for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i) storages[amp::storage_id(out[i])] |= inputs;
  }
  void forget(const FreedStorage& storage) {
    for (Mirror* mirror : {&exact, &first, &both, &before}) mirror->forget(storage);
    storages.erase(storage.id);
  }
  // `both` comes before `first`, and that before `exact`: run_on_mirrors() computes them in this order.
  void each(const std::function<void(Mirror&)>& f) {
    if (rounded) {
      f(both);
      f(first);
    }
    f(exact);
    if (inherits) f(before);
  }
  // What rounding the first operand, and then the other one, adds to a product of both. A product is linear in each
  // operand, so both effects are products with an operand's error, for which f32 suffices. Empty for other ops, and if
  // an effect exceeds the range of f32.
  std::vector<Tensor> effects(const OpCall& call) {
    const OpInfo& op = op_info(call.op);  // attention, which is not linear, has several outputs
    if (!rewritten || !rounded || op.kind != OpKind::Contraction || op.outputs > 1 || fusion_of(call)) return {};
    const int a = of(call[0]);
    const int b = of(call[1]);
    if (!a || !b || a + b != kInputs) return {};
    const MatmulPrecisionScope f32(MatmulPrecision::f32);
    const auto effect = [&](int error, Mirror& other) {
      std::vector<Tensor> inputs(static_cast<std::size_t>(call.inputs.size()));
      inputs[error] = cast(minus(both.of(call[error]), exact.of(call[error])), DType::f32);
      inputs[1 - error] = cast(other.of(call[1 - error]), DType::f32);
      return run_exactly(call, inputs)[0];
    };
    std::vector<Tensor> products = {effect(a == kFirst ? 0 : 1, exact), effect(a == kFirst ? 1 : 0, both)};
    if (!std::isfinite(absmax(products[0]) + absmax(products[1]))) products.clear();
    return products;
  }
  // The mirror's numbers of a product by these effects: `both` minus the effect of the other operand is `first`, and
  // that minus the effect of the first one is `exact`. Undefined if the mirror has to run the product.
  Tensor by_effects(const Mirror& mirror, const std::vector<Tensor>& effects, const Tensor& out) {
    if (effects.empty()) return {};
    if (&mirror == &first) return minus(both.of(out), effects[1]);
    if (&mirror == &exact) return minus(first.of(out), effects[0]);
    return {};
  }
};

Shadow::Shadow(const ShadowOptions& options) : options_(options) {}
Shadow::Shadow(const nn::Module& model, optim::Optimizer* optimizer, const ShadowOptions& options) : Shadow(options) {
  names_ = ParameterNames(model);
  if (!optimizer) return;
  const Unseen unseen;
  for (const optim::ParamGroup& group : optimizer->param_groups())
    for (const Tensor& parameter : group.params)
      if (const Tensor master = optimizer->master(parameter); !master.is_same(parameter)) {
        mirror_.set(parameter, f64_of(master));
        parameters_differ_ = true;
      }
}
Shadow::~Shadow() = default;

// The numbers of `t` without the errors of ops off the tape; undefined if there are no such errors. Parameters may
// differ from the shadow's by rounding from their masters, or by the errors of earlier steps.
Tensor Shadow::unrounded(const Tensor& t) {
  if (!options_.attribution || !t.defined()) return {};
  if (unrounded_.knows(t)) return unrounded_.of(t);
  return parameters_differ_ && !names_.of(t).empty() && mirror_.knows(t) ? mirror_.of(t) : Tensor();
}

// Frees the numbers of storages that no longer exist, before the shadow itself takes their memory.
void Shadow::forget_freed() {
  for (const FreedStorage& storage : freed_.take()) {
    for (Mirror* mirror : {&mirror_, &unrounded_, &slope_}) mirror->forget(storage);
    for (const auto& frame : frames_) frame->forget(storage);
    const auto codes = codes_.find(storage.address);
    if (codes != codes_.end() && codes->second.storage == storage.id) codes_.erase(codes);
  }
}

void Shadow::before(const OpCall& call, const CallRecord& record) {
  why_not_exact_.clear();
  node_ = record.context.phase == Phase::forward ? record.node : 0;
  // No op within a custom op is recorded: if one is open here, an exception has left it.
  if (node_ && (root_ || !frames_.empty())) {  // a step starts
    recorded_.clear();
    slices_.clear();
    frames_.clear();
    why_not_.clear();
    slope_ = Mirror(&freed_);
    root_ = 0;
    first_row_ = rows_.size();
  }
  const OpKind kind = op_info(call.op).kind;
  forget_freed();
  if (kind == OpKind::Custom) open_frame(call, record);
  if (kind != OpKind::InPlace) return;
  // It runs in f64 before its inputs are overwritten. An op within a custom op has no row of its own.
  written_ = frames_.empty() ? inputs_of(call, f64_of) : std::vector<Tensor>();
  run_on_mirrors(call, {});
}

void Shadow::open_frame(const OpCall& call, const CallRecord& record) {
  Frame& frame = *frames_.emplace_back(std::make_unique<Frame>(node_, record, &freed_));
  for (int i = 0; i < call.inputs.size(); ++i) {
    if (!call[i].defined()) continue;
    frame.storages[amp::storage_id(call[i])] |= i == 0 ? Frame::kFirst : Frame::kOthers;
    const Tensor clean = node_ ? unrounded(call[i]) : Tensor();
    if (clean.defined()) {
      frame.inherits = true;
      frame.before.set(call[i], clean);
    }
  }
}

// Calls f for all mirrors that follow the running op.
void Shadow::each_mirror(const std::function<void(Mirror&)>& f) {
  f(mirror_);
  if (options_.attribution && context().phase == Phase::backward) f(slope_);
  for (const auto& frame : frames_) frame->each(f);
}

// Runs the call in f64 on each mirror's numbers. An in-place op writes them, any other op's results are stored.
void Shadow::run_on_mirrors(const OpCall& call, const Outputs& out) try {
  const bool in_place = op_info(call.op).kind == OpKind::InPlace;
  Frame* const frame = frames_.empty() ? nullptr : frames_.back().get();
  const std::vector<Tensor> effects = frame ? frame->effects(call) : std::vector<Tensor>();
  each_mirror([&](Mirror& mirror) {
    for (int i = 0; in_place && i < call.inputs.size(); ++i) mirror.own(call[i]);
    const Tensor product = frame ? frame->by_effects(mirror, effects, out[0]) : Tensor();
    const Outputs results =
        product.defined() ? Outputs{{product}}
                          : run_exactly(call, inputs_of(call, [&mirror](const Tensor& t) { return mirror.of(t); }));
    for (int i = 0; !in_place && i < kMaxOutputs; ++i) mirror.set(out[i], results[i]);
  });
  if (in_place && !written_.empty()) run_exactly(call, written_);
} catch (const Error& e) { why_not_exact_ = e.what(); }

void Shadow::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const OpKind kind = op_info(call.op).kind;
  if (kind == OpKind::Custom) return close_frame(call, out, record);
  if (kind == OpKind::View) return;
  const Unseen unseen;
  Tensor exact;
  std::vector<Part> parts;
  if (kind != OpKind::InPlace) {
    if (frames_.empty()) exact = run_alone(call, out, parts);
    if (why_not_exact_.empty()) run_on_mirrors(call, out);
  } else if (why_not_exact_.empty()) {
    each_mirror([&](Mirror& mirror) {
      for (int i = 0; i < call.inputs.size(); ++i) mirror.written(call[i]);
    });
    if (!written_.empty()) exact = written_[0];
  }
  const std::string why = std::exchange(why_not_exact_, {});
  for (const auto& frame : frames_) frame->ran(call, out);
  if (!frames_.empty()) {  // it is part of the custom op's row
    frames_.back()->not_exact += why;
    return;
  }
  if (parameter_inputs(call).count && why.empty()) return add_parameters(call, record);
  ShadowRow row = row_of(call, out, record);
  row.not_exact = why;
  if (why.empty()) row.decided_otherwise = decided_otherwise(call, out, mirror_);
  if (!out[0].is_floating()) return rows_.push_back(std::move(row));
  if (!exact.defined()) exact = out[0];
  if (kind == OpKind::Contraction && why.empty()) {
    const Tensor stored = cast(exact, out[0].dtype());
    parts.insert(parts.end(), {{ErrorSource::accumulation, out[0], stored}, {ErrorSource::result, stored, exact}});
  }
  add_row(std::move(row), out[0], out[0], exact, parts, node_);
  written_.clear();
}

// The op in f64 on the inputs that it had; undefined for one that only moves them or gives no floats. It runs before
// the shadow's op, and its inputs in f64 are gone afterwards: both at once would be the peak of memory.
Tensor Shadow::run_alone(const OpCall& call, const Outputs& out, std::vector<Part>& parts) try {
  const bool moves = op_info(call.op).kind == OpKind::Movement && call.op != OpId::cast &&
                     call.op != OpId::scatter_add && call.op != OpId::index_add;
  const bool shares = options_.attribution && context().phase == Phase::forward;
  if (!out[0].is_floating() || (moves && !shares)) return {};
  const std::vector<Tensor> inputs = inputs_of(call, f64_of);
  Tensor exact = moves ? f64_of(out[0]) : run_exactly(call, inputs)[0];
  if (shares) add_parts_of_inputs(call, out, inputs, exact, parts);
  return exact;
} catch (const Error& e) {
  why_not_exact_ = e.what();
  return {};
}

// Ops off the tape, such as casts of data and of weights, have no gradient of their own. Their errors are propagated to
// the first op on the tape and become parts of its row: the effects on its result of the errors in its first input, and
// in its other inputs.
void Shadow::add_parts_of_inputs(const OpCall& call, const Outputs& out, const std::vector<Tensor>& inputs,
                                 const Tensor& exact, std::vector<Part>& parts) {
  std::vector<Tensor> clean = inputs;
  bool first = false;
  bool others = false;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (const Tensor before = unrounded(call[static_cast<int>(i)]); before.defined()) {
      clean[i] = before;
      first = first || i == 0;
      others = others || i > 0;
    }
  // The results without the errors in any input, and with those in the first one.
  const Tensor none = first || others ? run_exactly(call, clean)[0] : exact;
  if (!node_) return unrounded_.set(out[0], none);
  Tensor with_first = first ? exact : none;
  if (first && others) {
    clean[0] = inputs[0];
    with_first = run_exactly(call, clean)[0];
  }
  if (first) parts.push_back({ErrorSource::x_before, with_first, none});
  if (others) parts.push_back({ErrorSource::w_before, exact, with_first});
}

void Shadow::quantized(const QuantizerCall& call) {
  const Unseen unseen;
  const auto unscaled = [&](const Tensor& numbers) {
    return call.scale.defined() ? div(numbers, f64_of(call.scale)) : numbers;
  };
  if (call.kind == QuantizerCall::encode) {
    freed_.watch(call.to);
    codes_[call.to.raw()] = {.storage = amp::storage_id(call.to),
                             .numbers = mirror_.of(call.from),
                             .slope = options_.attribution ? slope_.of(call.from) : Tensor(),
                             .scaled = !is_any<NoScale>(call.quantizer->scaling)};
    return;
  }
  if (call.kind == QuantizerCall::decode) {
    const Codes& codes = codes_[call.from.raw()];
    // Codes that were scaled when they were made represent their unscaled values.
    if (codes.storage != amp::storage_id(call.from) || (codes.scaled && call.scale.defined())) return;
    mirror_.set(call.to, codes.numbers);
    if (options_.attribution) slope_.set(call.to, codes.slope);
    return;
  }
  mirror_.set(call.to, unscaled(mirror_.of(call.from)));
  if (options_.attribution) slope_.set(call.to, unscaled(slope_.of(call.from)));
  const Tensor given = f64_of(call.to);
  const Tensor exact = unscaled(f64_of(call.from));
  for (const auto& frame : frames_) {
    if (!std::exchange(frame->rounded, true)) {
      frame->first = frame->exact;
      frame->both = frame->exact;
    }
    const int inputs = frame->of(call.from);
    frame->storages[amp::storage_id(call.to)] |= inputs;
    frame->each([&](Mirror& m) {
      const bool rounds = &m == &frame->both || (&m == &frame->first && inputs == Frame::kFirst);
      if (rounds) m.set(call.to, given);
      else m.set(call.to, m.knows(call.from) ? unscaled(m.of(call.from)) : exact);
    });
  }
  if (!frames_.empty()) return;
  ShadowRow row{OpRow::of_quantizer(rows_.size()), {}};
  row.parameter = names_.of(call.from);
  row.results = describe(call.to);
  row.to = call.to.dtype();
  row.quantised = true;
  const Output before = std::exchange(output_, {});
  add_row(std::move(row), call.to, call.to, exact, {}, before.storage == amp::storage_id(call.from) ? before.node : 0);
}

ShadowRow Shadow::row_of(const OpCall& call, const Outputs& out, const CallRecord& record) const {
  ShadowRow row{{rows_.size(), call, record}, {}};
  row.op = row.name();
  row.results = describe(out[0]);
  row.to = out[0].dtype();
  if (call.inputs.size() > 0) row.parameter = names_.of(call[0]);
  return row;
}

// y is the output, whose shadow is known; `given` holds its numbers; `exact` is the op in f64 on its actual inputs.
void Shadow::add_row(ShadowRow row, const Tensor& y, const Tensor& given, const Tensor& exact,
                     const std::vector<Part>& parts, std::uint64_t node) {
  const Tensor shadow = mirror_.of(y);
  static_cast<Comparison&>(row) = compare(given, exact, shadow, row.to);
  if (tensors) tensors(row, minus(given, exact), minus(exact, shadow), minus(given, shadow));
  Recorded recorded{.row = rows_.size()};
  const bool shares = node && options_.attribution;
  if (shares) recorded.errors.push_back(minus(given, exact));
  for (const Part& part : parts) {
    row.parts.push_back({part.source, error_of(part.a, part.b).squares, 0});
    if (shares) recorded.errors.push_back(minus(part.a, part.b));
  }
  if (given.numel() == 1) {
    recorded.loss = given.item();
    recorded.exact_loss = shadow.item();
  }
  if (shares) {
    std::vector<Recorded>& of_node = recorded_[node];
    if (row.source != Source::quantizer) of_node.clear();
    of_node.push_back(std::move(recorded));
    output_ = {amp::storage_id(y), node};
  }
  rows_.push_back(std::move(row));
}

void Shadow::add_parameters(const OpCall& call, const CallRecord& record) {
  parameters_differ_ = true;
  const ParameterInputs parameters = parameter_inputs(call);
  for (int k = 0; k < parameters.count; ++k) {
    const OpCall one = call_of_parameter(call, parameters, k);
    const int at = parameters.first + k * parameters.each + parameters.written;
    const int written = one[parameters.written].defined() ? at : at - parameters.written;
    const Outputs out{{call[written]}};
    const Tensor given =
        parameters.written == kWeight ? value_of(one[kWeight], one[kMaster], one[kCompensation]) : call[written];
    add_row(row_of(one, out, record), call[written], given, written_[static_cast<std::size_t>(written)], {}, 0);
  }
  written_.clear();
}

void Shadow::close_frame(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const std::unique_ptr<Frame> frame = std::move(frames_.back());
  frames_.pop_back();
  if (!out[0].defined() || !frames_.empty()) return;
  const Unseen unseen;
  ShadowRow row = row_of(call, out, record);
  row.quantised = frame->rounded;
  row.not_exact = frame->not_exact;
  const Tensor exact = frame->exact.of(out[0]);
  std::vector<Part> parts;
  if (frame->inherits) parts.push_back({ErrorSource::before, exact, frame->before.of(out[0])});
  if (frame->rounded) {
    const Tensor first = frame->first.of(out[0]);
    const Tensor both = frame->both.of(out[0]);
    frame->each([](Mirror& m) { m = Mirror(); });  // the operands
    const Tensor stored = cast(both, out[0].dtype());
    parts.push_back({rounding_of(frame->product.operands[0]), first, exact});
    parts.push_back({rounding_of(frame->product.operands[1]), both, first});
    parts.push_back({ErrorSource::accumulation, out[0], stored});
    parts.push_back({ErrorSource::result, stored, both});
    row.product = product_of(frame->product);
  }
  add_row(std::move(row), out[0], out[0], exact, parts, frame->node);
}

void Shadow::share(const Recorded& recorded, const Gradient& gradient) {
  ShadowRow& row = rows_[recorded.row];
  for (std::size_t i = 0; i < recorded.errors.size(); ++i) {
    const double first = inner(recorded.errors[i], gradient.exact) / loss_scale_;
    const double mean = (first + inner(recorded.errors[i], gradient.slope) / loss_scale_) / 2;
    ErrorPart* const part = i ? &row.parts[i - 1] : nullptr;
    if (part) part->share += mean;
    // Errors from before the op are not in its local error.
    if (part && !is_before(part->source)) continue;
    row.first_order += first;
    row.share += mean;
  }
}

// Called when backward begins: from the loss, from views of it, or from its product with the loss scale.
void Shadow::begin_backward(const Node& root) {
  root_ = root.sequence;
  unrounded_ = Mirror(&freed_);
  const Node* node = &root;
  double scaled = 0;  // the loss times its scale, in the shadow
  for (; node->input_count > 0 && node->input(0).edge.node; node = node->input(0).edge.node.get()) {
    const bool scales = node->cause->kind == CauseKind::loss_scaling;
    if (!scales && op_info(node->op).kind != OpKind::View) break;
    const auto made = recorded_.find(node->sequence);
    if (scales && scaled == 0 && made != recorded_.end()) scaled = made->second.back().exact_loss;
  }
  const auto loss = recorded_.find(node->sequence);
  if (root.of_backward) why_not_ = "it starts from a gradient (create_graph)";
  else if (loss == recorded_.end() || loss->second.back().errors[0].numel() != 1)
    why_not_ = "it does not start from a loss of one element";
  if (!why_not_.empty()) return;
  const Recorded& last = loss->second.back();
  loss_ = last.loss;
  exact_loss_ = last.exact_loss;
  loss_scale_ = scaled != 0 && exact_loss_ != 0 ? scaled / exact_loss_ : 1;
  const Tensor one = ones({}, {.dtype = DType::f64}).expand(last.errors[0].sizes());
  if (node != &root && loss_scale_ != 1) return;  // a later event brings the gradient of the loss
  for (const Recorded& recorded : loss->second) share(recorded, {one, one});
  if (node != &root) recorded_.erase(loss);
}

void Shadow::gradient(const autograd::GradientEvent& event) {
  if (recorded_.empty()) return;  // no attribution, or nothing left to attribute
  if (!root_) begin_backward(event.node);
  if (!why_not_.empty()) return;
  recorded_.erase(event.node.sequence);  // its own gradient is complete
  if (event.input < 0) return;
  const Unseen unseen;
  Gradient g{mirror_.of(event.grad), slope_.of(event.grad)};
  // The engine writes gradients of slices into one buffer, which observers receive without the slices' ops.
  if (const auto sliced = slices_.extract(event.node.sequence)) {
    for (Tensor Gradient::*which : {&Gradient::exact, &Gradient::slope})
      g.*which = call_row(OpId::slice_backward, event.node.attrs, sliced.mapped().*which)[0];
  }
  const Edge& edge = event.node.input(event.input).edge;
  if (!edge.node || edge.output != 0) return;
  if (edge.node->op == OpId::slice) {
    Gradient& sum = slices_[edge.node->sequence];
    sum = sum.exact.defined() ? Gradient{add(sum.exact, g.exact), add(sum.slope, g.slope)} : g;
  }
  const auto made = recorded_.find(edge.node->sequence);
  if (made == recorded_.end()) return;
  for (const Recorded& recorded : made->second)
    if (recorded.errors[0].sizes() == event.grad.sizes()) share(recorded, g);
}

}  // namespace gradual::inspect
