#include "intervention.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "../amp/attention_steps.h"
#include "../amp/site_name.h"
#include "../core/formats/accumulator.h"
#include "../core/ops/accumulator_of.h"
#include "../core/quantize/quantizer_call.h"
#include "../core/support/throwf.h"
#include "block_xray.h"
#include "f32_ops.h"
#include "mirror.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(ExactPart::count_)> kParts = {
    "operand", "zeroed", "clipped", "sum", "result", "ops"};

// The stage outside of Amp in which ops compute in f32; null: none shall.
std::shared_ptr<Interceptor> stage_for(Intervention& intervention) {
  if (!intervention.has(ExactPart::ops)) return {};
  Interceptor* const below = chain().amp;
  if (dynamic_cast<const amp::OutsideAmp*>(below))
    throw_error("intervention: ops cannot be made exact within another stage outside of amp, as a split is");
  return std::make_shared<F32Ops>(below ? below->share() : nullptr,
                                  [&intervention](const OpCall& call) { return intervention.wants_in_f32(call); });
}

// Whether a module is that of the site or within it. The products of all of a layer's weights are at one site here.
bool is_within(const std::string& module, const std::string& site) {
  const std::string layer = amp::site_name(site).layer;
  return site.empty() || module == layer || module.starts_with(layer + ".");
}

}  // namespace

Intervention::Intervention(std::vector<Exact> exact) : exact_(std::move(exact)) {}

std::string_view to_string(ExactPart part) { return kParts[static_cast<std::size_t>(part)]; }

ExactPart exact_part(std::string_view name) {
  const auto found = std::ranges::find(kParts, name);
  if (found == kParts.end()) throwf("no part '{}' can be made exact; allowed are {}", name, fmt::join(kParts, ", "));
  return static_cast<ExactPart>(found - kParts.begin());
}

std::string to_string(const Exact& e) {
  std::string text(to_string(e.part));
  if (!e.operand.empty()) text += " " + e.operand;
  text += e.site.empty() ? " everywhere" : " of " + e.site;
  const bool all = e.last == std::numeric_limits<std::int64_t>::max();
  if (e.first > 0 || !all) text += fmt::format(", steps {} to {}", e.first, all ? "the last" : std::to_string(e.last));
  return text;
}

bool Intervention::applies(const Exact& e, ExactPart part, const std::string& site, const std::string& line,
                           const std::string& operand) const {
  if (e.part != part || step_ < e.first || step_ > e.last) return false;
  if (!e.operand.empty() && e.operand != operand) return false;
  return is_within(site, e.site) || (site.empty() && line == e.site);
}

bool Intervention::has(ExactPart part) const { return std::ranges::find(exact_, part, &Exact::part) != exact_.end(); }

bool Intervention::wants_in_f32(const OpCall& call) {
  const std::string line = line_of(call.where);
  const std::string op(gradual::to_string(call.op));
  const bool wanted = std::ranges::any_of(
      exact_, [&](const Exact& e) { return applies(e, ExactPart::ops, context().module, line, op); });
  touched_ += wanted ? 1 : 0;
  return wanted;
}

InterventionScope::InterventionScope(Intervention& intervention)
    : stage_(stage_for(intervention)),
      observing_(intervention),
      amp_(chain().amp, stage_ ? stage_.get() : chain().amp) {}

std::string Intervention::line_of(const SourceLocation& where) const {
  return frames_.empty() || frames_.back().line.empty() ? file_line(where) : frames_.back().line;
}

void Intervention::before(const OpCall& call, const CallRecord& record) {
  if (op_info(call.op).kind != OpKind::Custom) return;
  Frame& frame = frames_.emplace_back();
  if (record.replaced) frame.line = file_line(call.where);
  for (int i = 0; i < call.inputs.size(); ++i)
    if (call[i].defined()) frame.inputs[amp::storage_id(call[i])] |= i == 0 ? Frame::kFirst : Frame::kOthers;
}

void Intervention::after(const OpCall& call, const Outputs& out, const CallRecord&) {
  const OpKind kind = op_info(call.op).kind;
  if (kind == OpKind::Custom) {
    if (!frames_.empty()) frames_.pop_back();
    return;
  }
  if (!frames_.empty()) {
    Frame& frame = frames_.back();
    int from = 0;
    for (int i = 0; i < call.inputs.size(); ++i)
      if (call[i].defined())
        if (const auto found = frame.inputs.find(amp::storage_id(call[i])); found != frame.inputs.end())
          from |= found->second;
    for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i) frame.inputs[amp::storage_id(out[i])] |= from;
  }
  const std::optional<Accumulator> accumulator = accumulator_of(call.op);
  if (!accumulator || *accumulator == Accumulator() || !out[0].defined()) return;
  const std::string line = line_of(call.where);
  const bool wanted = std::ranges::any_of(
      exact_, [&](const Exact& e) { return applies(e, ExactPart::sum, context().module, line, ""); });
  if (!wanted) return;
  const Unseen unseen;
  const AccumulatorScope exact(std::nullopt);
  const Outputs again = dispatch(call.op, call.inputs, *call.attrs, call.where);
  for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i)
    if (out[i].is_floating()) Tensor(out[i]).copy_(again[i]);
  ++touched_;
}

std::string Intervention::operand_of(const QuantizerCall& call, const Replaced& product) const {
  const Frame& frame = frames_.back();
  const auto found = frame.inputs.find(amp::storage_id(call.from));
  if (found == frame.inputs.end()) return "";
  return operand_name(product, found->second == Frame::kFirst ? 0 : 1);
}

void Intervention::quantized(const QuantizerCall& call) {
  if (!frames_.empty() && call.from.defined() && call.to.defined())
    if (const auto found = frames_.back().inputs.find(amp::storage_id(call.from)); found != frames_.back().inputs.end())
      frames_.back().inputs[amp::storage_id(call.to)] |= found->second;
  if (call.kind != QuantizerCall::values || !call.quantizer) return;
  const bool framed = !frames_.empty() && call.within;
  const Replaced* const product = framed ? call.within->replaces : amp::attention_in_backward();
  const std::string name = framed && product ? operand_of(call, *product) : "";
  const std::string line = line_of(context().line);
  for (const ExactPart part : {ExactPart::operand, ExactPart::zeroed, ExactPart::clipped, ExactPart::result}) {
    const bool of_result = part == ExactPart::result;
    if (of_result == (product != nullptr)) continue;  // operands are rounded within a product, results outside
    const bool wanted =
        std::ranges::any_of(exact_, [&](const Exact& e) { return applies(e, part, context().module, line, name); });
    if (wanted) make_exact(call, part);
  }
}

void Intervention::make_exact(const QuantizerCall& call, ExactPart part) {
  const Unseen unseen;
  const Tensor from = cast(call.from.detach(), DType::f32);
  const Tensor exact = call.scale.defined() ? div(from, call.scale) : from;
  Tensor to = call.to.detach();
  const Tensor given = cast(to, DType::f32);
  Tensor numbers = exact;
  if (part == ExactPart::zeroed) numbers = where(eq(given, 0.0), exact, given);
  if (part == ExactPart::clipped)
    numbers = where(beyond_range(call.from, *call.quantizer, call.axis, exact), exact, given);
  to.copy_(numbers.to(to.dtype()));
  ++touched_;
}

}  // namespace gradual::inspect
