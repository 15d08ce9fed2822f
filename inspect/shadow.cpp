#include "shadow.h"

#include <algorithm>
#include <utility>

#include "../autograd/node.h"
#include "../core/ops/ops.h"
#include "../core/ops/parameter_inputs.h"
#include "../core/quantize/quantizer_call.h"
#include "../core/support/throwf.h"
#include "exact.h"
#include "ledger.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

bool is_relu(const OpCall& call) {
  const OpId last = fusion_of(call) ? fusion_of(call)->second : call.op;
  return last == OpId::relu || last == OpId::leaky_relu;
}

// The share of elements for which f64 decides otherwise; 0 for ops that decide nothing.
double decided_otherwise(const OpCall& call, const Outputs& out, const Tensor& given, Mirror& shadow) {
  const Unseen unseen;
  const auto share = [](const Tensor& differ) { return differ.numel() ? mean(cast(differ, DType::f64)).item() : 0.0; };
  if (is_relu(call)) return share(ne(gt(given, 0), gt(shadow.of(out[0]), 0)));
  for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i)
    if (!out[i].is_floating() && op_info(call.op).kind != OpKind::View)
      return share(ne(widened(out[i]), shadow.of(out[i])));
  return 0;
}

// Ops that move numbers without changing them.
bool only_moves(const OpCall& call) {
  return op_info(call.op).kind == OpKind::Movement && call.op != OpId::cast && call.op != OpId::scatter_add &&
         call.op != OpId::index_add;
}

// "linear" for "linear rewritten by quantization" (amp/rewrite.h).
std::string without_rewrite(const std::string& op) { return op.substr(0, op.find(" rewritten by ")); }

}  // namespace

std::string ShadowRow::site() const { return site_text(op, parameter, backward_of, module); }

// A running custom op: its inner ops run in f64 from its actual inputs. `exact` rounds no operand, `first` only the
// first operand of its products, `both` rounds both.
struct Shadow::Frame {
  Mirror exact, first, both, before;
  std::map<std::uint64_t, int> operands;  // by storage: the inputs of the custom op (bits) that it depends on
  std::uint64_t node = 0;                 // the custom op on the tape; 0: not recorded
  bool rounded = false;                   // a quantiser has run
  bool rewritten = false;                 // a contraction, not a user's function
  std::string names[2] = {"forward_x", "forward_w"};  // the names of its operands in recipes
  bool inherits = false;     // `before` holds its inputs without the errors of ops off the tape
  std::string why_not = {};  // why one of its ops has no f64 form

  int operands_of(const Tensor& t) const {
    const auto found = t.defined() ? operands.find(amp::storage_id(t)) : operands.end();
    return found == operands.end() ? 0 : found->second;
  }
  void each(const std::function<void(Mirror&)>& f) {
    f(exact);
    if (inherits) f(before);
    if (rounded) f(first), f(both);
  }
};

class Shadow::Gradients final : public autograd::GradientObserver {
 public:
  explicit Gradients(Shadow& shadow) : shadow_(shadow) {}
  void gradient(const autograd::GradientEvent& event) override { shadow_.gradient(event); }

 private:
  Shadow& shadow_;
};

Shadow::Shadow(const ShadowOptions& options) : options_(options) {
  keep_recorded_sequence = true, recorded_sequence = 0;  // 0: not what another observer saw last
  if (options_.attribution) gradients_ = std::make_unique<Gradients>(*this);
}
Shadow::Shadow(const nn::Module& model, optim::Optimizer* optimizer, const ShadowOptions& options) : Shadow(options) {
  names_ = ParameterNames(model);
  if (!optimizer) return;
  const Unseen unseen;
  for (const optim::ParamGroup& group : optimizer->param_groups())
    for (const Tensor& parameter : group.params) {
      const Tensor master = optimizer->master(parameter);
      if (master.is_same(parameter)) continue;
      mirror_.set(parameter, widened(master));
      parameters_differ_ = true;
    }
}
Shadow::~Shadow() = default;

void Shadow::start_step() {
  recorded_.clear(), slices_.clear(), frames_.clear();
  slope_ = {};
  why_not_.clear();
  root_ = 0;
  first_row_ = rows_.size();
}

// The numbers of `t` without the errors of ops off the tape; undefined if there are no such errors. Parameters may
// differ from the shadow's by rounding from their masters, or by the errors of earlier steps.
Tensor Shadow::unrounded(const Tensor& t) {
  if (!options_.attribution || !t.defined()) return {};
  if (unrounded_.knows(t)) return unrounded_.of(t);
  return parameters_differ_ && !names_.of(t).empty() && mirror_.knows(t) ? mirror_.of(t) : Tensor();
}

void Shadow::before(const OpCall& call) {
  const std::uint64_t recorded = std::exchange(recorded_sequence, 0);
  node_ = context().phase == Phase::forward ? recorded : 0;
  // No op within a custom op is recorded: if one is open here, an exception has left it.
  if (node_ && (root_ || !frames_.empty())) start_step();
  if (op_info(call.op).kind == OpKind::Custom) {
    frames_.push_back(std::make_unique<Frame>());
    frames_.back()->node = node_;
    frames_.back()->rewritten = is_rewritten(call);
    for (int i = 0; i < call.inputs.size(); ++i) {
      if (!call[i].defined()) continue;
      frames_.back()->operands[amp::storage_id(call[i])] |= i == 0 ? 1 : 2;
      const Tensor clean = node_ ? unrounded(call[i]) : Tensor();
      if (!clean.defined()) continue;
      frames_.back()->inherits = true;
      frames_.back()->before.set(call[i], clean.clone());
    }
  }
  if (op_info(call.op).kind != OpKind::InPlace) return;
  // Copies the inputs before the op overwrites them.
  const auto all = [&](const auto& of) {
    std::vector<Tensor> now(static_cast<std::size_t>(call.inputs.size()));
    for (int i = 0; i < call.inputs.size(); ++i)
      if (call[i].defined()) now[static_cast<std::size_t>(i)] = of(call[i]);
    return now;
  };
  kept_.clear();
  kept_.push_back(all(widened));
  kept_.push_back(all([&](const Tensor& t) { return mirror_.of(t); }));
  if (follows_slope()) kept_.push_back(all([&](const Tensor& t) { return slope_.of(t); }));
  for (const auto& frame : frames_)
    frame->each([&](Mirror& m) { kept_.push_back(all([&](const Tensor& t) { return m.of(t); })); });
}

// Runs the call in f64 on a mirror's numbers and stores the results in the mirror.
void Shadow::run_on(Mirror& mirror, const OpCall& call, const Outputs& out, std::size_t kept) {
  std::vector<Tensor> inputs;
  const bool in_place = op_info(call.op).kind == OpKind::InPlace;
  if (in_place) inputs = kept_[kept];
  else
    for (int i = 0; i < call.inputs.size(); ++i) inputs.push_back(mirror.of(call[i]));
  const Outputs results = run_exactly(call, inputs);
  for (int i = 0; in_place && i < call.inputs.size(); ++i) mirror.written(call[i]);
  for (int i = 0; !in_place && i < kMaxOutputs; ++i) mirror.set(out[i], results[i]);
}

void Shadow::run_on_all(const OpCall& call, const Outputs& out) {
  std::size_t k = 1;
  run_on(mirror_, call, out, k++);
  if (follows_slope()) run_on(slope_, call, out, k++);
  for (const auto& frame : frames_) {
    int operands = 0;
    for (int i = 0; i < call.inputs.size(); ++i) operands |= frame->operands_of(call[i]);
    for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i) frame->operands[amp::storage_id(out[i])] |= operands;
    frame->each([&](Mirror& m) { run_on(m, call, out, k++); });
  }
}

void Shadow::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const OpKind kind = op_info(call.op).kind;
  if (kind == OpKind::Custom) return close_frame(call, out, record);
  if (kind == OpKind::View) return;
  const bool parameters = parameter_inputs(call).count > 0;
  std::string why;
  Tensor exact;
  std::vector<Part> parts;
  try {
    if (frames_.empty() && !parameters) exact = run_alone(call, out, parts);
    run_on_all(call, out);
  } catch (const Error& e) { why = e.what(); }
  if (!frames_.empty()) return void(frames_.back()->why_not += why);  // it is part of the custom op's row
  if (parameters && why.empty()) return add_parameters(call, record);
  kept_.clear();
  ShadowRow row = row_of(call, out, record);
  row.not_exact = why;
  const Tensor given = widened(out[0]);
  if (why.empty()) row.decided_otherwise = decided_otherwise(call, out, given, mirror_);
  if (!out[0].is_floating()) return rows_.push_back(std::move(row));
  if (!exact.defined()) exact = given;
  if (kind == OpKind::Contraction && why.empty()) {
    const Tensor stored = rounded_to(exact, out[0].dtype());
    parts.push_back(part("accumulation", given, stored, node_));
    parts.push_back(part("result", stored, exact, node_));
  }
  add_row(std::move(row), out[0], given, exact, std::move(parts), node_);
}

// The op in f64 on the inputs that it had; undefined for one that only moves them or gives no floats. It runs before
// the shadow's op, and its inputs in f64 are gone afterwards: both at once would be the peak of memory.
Tensor Shadow::run_alone(const OpCall& call, const Outputs& out, std::vector<Part>& parts) {
  if (op_info(call.op).kind == OpKind::InPlace) return run_exactly(call, kept_[0]), kept_[0][0];
  const bool moves = only_moves(call), shares = options_.attribution && context().phase == Phase::forward;
  if (!out[0].is_floating() || (moves && !shares)) return {};
  std::vector<Tensor> inputs;
  for (int i = 0; i < call.inputs.size(); ++i) inputs.push_back(call[i].defined() ? widened(call[i]) : Tensor());
  Tensor exact = moves ? widened(out[0]) : run_exactly(call, inputs)[0];
  if (shares) parts = parts_of_inputs(call, out, inputs, exact);
  return exact;
}

// The error a - b. It gets a share if `node` made the output.
Shadow::Part Shadow::part(std::string name, const Tensor& a, const Tensor& b, std::uint64_t node) const {
  const Tensor error = minus(a, b);
  return {std::move(name), squares(error), options_.attribution && node ? error : Tensor()};
}

// Ops off the tape, such as casts of data and of weights, have no gradient of their own. Their errors are propagated to
// the first op on the tape and become parts of its row: the effects on its result of the errors in its first input, and
// in its other inputs.
std::vector<Shadow::Part> Shadow::parts_of_inputs(const OpCall& call, const Outputs& out,
                                                  const std::vector<Tensor>& inputs, const Tensor& exact) {
  const int n = call.inputs.size();
  std::vector<Tensor> clean = inputs;
  bool first = false, others = false;
  for (int i = 0; i < n; ++i)
    if (const Tensor before = unrounded(call[i]); before.defined()) {
      clean[static_cast<std::size_t>(i)] = before;
      (i == 0 ? first : others) = true;
    }
  if (!node_) {
    const Outputs results = first || others ? run_exactly(call, clean) : Outputs{};
    unrounded_.set(out[0], first || others ? results[0] : exact.clone());
    return {};
  }
  std::vector<Part> parts;
  if (!first && !others) return parts;
  const Tensor none = run_exactly(call, clean)[0];
  clean[0] = inputs[0];
  const Tensor with_first = first && others ? run_exactly(call, clean)[0] : first ? exact : none;
  if (first) parts.push_back(part("x before", with_first, none, node_));
  if (others) parts.push_back(part("w before", exact, with_first, node_));
  return parts;
}

void Shadow::quantized(const QuantizerCall& call) {
  const Unseen unseen;
  const auto unscaled = [&](const Tensor& numbers) {
    return call.scale.defined() ? div(numbers, widened(call.scale)) : numbers.clone();
  };
  switch (call.kind) {
    case QuantizerCall::encode:
      codes_[call.to.raw()] = {.storage = amp::storage_id(call.to),
                               .numbers = mirror_.of(call.from).clone(),
                               .slope = options_.attribution ? slope_.of(call.from).clone() : Tensor(),
                               .scaled = call.quantizer->scaling.kind != ScalingKind::none};
      return;
    case QuantizerCall::decode: {
      const Codes& codes = codes_[call.from.raw()];
      // Codes that were scaled when they were made represent their unscaled values.
      if (codes.storage != amp::storage_id(call.from) || (codes.scaled && call.scale.defined())) return;
      mirror_.set(call.to, codes.numbers.clone());
      if (options_.attribution) slope_.set(call.to, codes.slope.clone());
      return;
    }
    case QuantizerCall::values: break;
  }
  const Tensor exact = mirror_.of(call.from);
  mirror_.set(call.to, unscaled(exact));
  if (options_.attribution) slope_.set(call.to, unscaled(slope_.of(call.from)));
  const Tensor given = widened(call.to);
  for (const auto& frame : frames_) {
    if (!std::exchange(frame->rounded, true)) {
      frame->first = frame->exact.clone(), frame->both = frame->exact.clone();
      for (int i = 0; i < 2 && frame->rewritten && frame == frames_.back(); ++i) frame->names[i] = operand_name(i);
    }
    const int operand = frame->operands_of(call.from);
    frame->operands[amp::storage_id(call.to)] |= operand;
    frame->exact.set(call.to, unscaled(frame->exact.of(call.from)));
    if (frame->inherits) frame->before.set(call.to, unscaled(frame->before.of(call.from)));
    frame->first.set(call.to, operand == 1 ? given.clone() : unscaled(frame->first.of(call.from)));
    frame->both.set(call.to, given.clone());
  }
  if (!frames_.empty()) return;
  ShadowRow row{.number = static_cast<std::int64_t>(rows_.size()),
                .phase = context().phase,
                .op = "quantize",
                .parameter = names_.of(call.from),
                .module = context().module,
                .cause = context().cause,
                .results = describe(call.to),
                .to = call.to.dtype(),
                .quantised = true};
  add_row(std::move(row), call.to, given, unscaled(widened(call.from)), {}, 0);
}

ShadowRow Shadow::row_of(const OpCall& call, const Outputs& out, const CallRecord& record) const {
  const Context& c = record.context;
  ShadowRow row{.number = static_cast<std::int64_t>(rows_.size()),
                .phase = c.phase,
                .op = std::string(called(call)),
                .backward_of = without_rewrite(c.backward_of),
                .module = c.module,
                .line = file_line(call.where),
                .cause = c.cause,
                .results = describe(out[0]),
                .to = out[0].dtype()};
  if (call.inputs.size() > 0) row.parameter = names_.of(call[0]);
  return row;
}

// y is the output, whose shadow is known; `given` are its numbers; `exact` is the op in f64 on its actual inputs.
void Shadow::add_row(ShadowRow row, const Tensor& y, const Tensor& given, const Tensor& exact, std::vector<Part> parts,
                     std::uint64_t node) {
  const Tensor shadow = mirror_.of(y);
  const Comparison c = compare(given, exact, shadow, row.to);
  row.local = c.local, row.inherited = c.inherited, row.total = c.total, row.cosine = c.cosine;
  for (const Part& part : parts) row.parts.push_back({part.name, part.squares, 0});
  if (tensors) tensors(row, minus(given, exact), minus(exact, shadow), minus(given, shadow));
  if (node && options_.attribution) {
    Recorded& recorded = recorded_[node];
    recorded = {.row = rows_.size(), .error = minus(given, exact), .parts = std::move(parts)};
    if (given.numel() == 1) recorded.loss = given.item(), recorded.exact_loss = shadow.item();
  }
  rows_.push_back(std::move(row));
}

void Shadow::add_parameters(const OpCall& call, const CallRecord& record) {
  parameters_differ_ = true;
  run_exactly(call, kept_[0]);
  const ParameterInputs parameters = parameter_inputs(call);
  for (int k = 0; k < parameters.count; ++k) {
    const OpCall one = call_of_parameter(call, parameters, k);
    const int at = parameters.first + k * parameters.each + parameters.written;
    const int written = one[parameters.written].defined() ? at : at - parameters.written;
    Outputs out;
    out[0] = call[written];
    ShadowRow row = row_of(one, out, record);
    // A master or a compensation has what the parameter lacks.
    Tensor given = widened(call[written]);
    if (parameters.written == 0 && one[2].defined()) given = widened(one[2]);
    else if (parameters.written == 0 && one[3].defined()) given = add(given, widened(one[3]));
    add_row(std::move(row), call[written], given, kept_[0][static_cast<std::size_t>(written)], {}, 0);
  }
}

void Shadow::close_frame(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const std::unique_ptr<Frame> frame = std::move(frames_.back());
  frames_.pop_back();
  if (!out[0].defined() || !frames_.empty()) return;
  ShadowRow row = row_of(call, out, record);
  row.quantised = frame->rounded;
  row.not_exact = frame->why_not;
  row.op = without_rewrite(row.op);
  const Tensor given = widened(out[0]), exact = frame->exact.of(out[0]);
  std::vector<Part> parts;
  if (frame->inherits) parts.push_back(part("before", exact, frame->before.of(out[0]), frame->node));
  if (frame->rounded) {
    const Tensor first = frame->first.of(out[0]), both = frame->both.of(out[0]);
    frame->each([](Mirror& m) { m = {}; });  // the operands
    const Tensor stored = rounded_to(both, out[0].dtype());
    const auto after = [](const std::string& name) { return name.substr(name.find('_') + 1); };
    parts.push_back(part(after(frame->names[0]), first, exact, frame->node));
    parts.push_back(part(after(frame->names[1]), both, first, frame->node));
    parts.push_back(part("accumulation", given, stored, frame->node));
    parts.push_back(part("result", stored, both, frame->node));
    row.product = frame->names[0].substr(0, frame->names[0].find('_'));
  }
  add_row(std::move(row), out[0], given, exact, std::move(parts), frame->node);
}

void Shadow::share(Recorded& recorded, const Gradient& gradient) {
  ShadowRow& row = rows_[recorded.row];
  const auto add = [&](const Tensor& error, ErrorPart* part) {
    const double first = inner(error, gradient.exact) / loss_scale_,
                 mean = (first + inner(error, gradient.slope) / loss_scale_) / 2;
    if (part) part->share += mean;
    // Errors from before the op are not in its local error.
    if (!part || part->name.ends_with("before")) row.first_order += first, row.share += mean;
  };
  add(recorded.error, nullptr);
  for (std::size_t i = 0; i < recorded.parts.size(); ++i) add(recorded.parts[i].error, &row.parts[i]);
}

// Called when backward begins: from the loss, from views of it, or from its product with the loss scale.
void Shadow::begin_backward(const Node& root) {
  root_ = root.sequence;
  unrounded_ = {};
  const Node* node = &root;
  double scaled = 0;  // the loss times its scale, in the shadow
  for (; node->input_count > 0 && node->input(0).edge.node; node = node->input(0).edge.node.get()) {
    const bool scales = std::string_view(node->cause) == "loss scaling";
    if (!scales && op_info(node->op).kind != OpKind::View) break;
    const auto made = recorded_.find(node->sequence);
    if (scales && scaled == 0 && made != recorded_.end()) scaled = made->second.exact_loss;
  }
  const auto loss = recorded_.find(node->sequence);
  if (root.of_backward) why_not_ = "it starts from a gradient (create_graph)";
  else if (loss == recorded_.end() || loss->second.error.numel() != 1)
    why_not_ = "it does not start from a loss of one element";
  if (!why_not_.empty()) return;
  loss_ = loss->second.loss, exact_loss_ = loss->second.exact_loss;
  loss_scale_ = scaled != 0 && exact_loss_ != 0 ? scaled / exact_loss_ : 1;
  const Tensor one = ones({}, {.dtype = DType::f64}).expand(loss->second.error.sizes());
  if (node != &root && loss_scale_ != 1) return;  // a later event brings the gradient of the loss
  share(loss->second, {one, one});
  if (node != &root) recorded_.erase(loss);
}

void Shadow::gradient(const autograd::GradientEvent& event) {
  if (recorded_.empty()) return;
  if (!root_) begin_backward(event.node);
  if (!why_not_.empty()) return;
  recorded_.erase(event.node.sequence);  // its own gradient is complete
  if (event.input < 0) return;
  Gradient g{mirror_.of(event.grad), slope_.of(event.grad)};
  // The engine writes gradients of slices into one buffer, which observers receive without the slices' ops.
  if (const auto sliced = slices_.extract(event.node.sequence)) {
    const Unseen unseen;
    for (Tensor Gradient::*which : {&Gradient::exact, &Gradient::slope})
      g.*which = call_row(OpId::slice_backward, event.node.attrs, sliced.mapped().*which)[0];
  }
  const Edge& edge = event.node.input(event.input).edge;
  if (!edge.node || edge.output != 0) return;
  if (edge.node->op == OpId::slice) {
    const Unseen unseen;
    Gradient& sum = slices_[edge.node->sequence];
    sum = sum.exact.defined() ? Gradient{add(sum.exact, g.exact), add(sum.slope, g.slope)} : g;
  }
  const auto made = recorded_.find(edge.node->sequence);
  if (made != recorded_.end() && made->second.error.sizes() == event.grad.sizes()) share(made->second, g);
}

}  // namespace gradual::inspect
