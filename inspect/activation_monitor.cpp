#include "activation_monitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "../amp/attention_call.h"
#include "../amp/rewrite.h"
#include "../core/formats/accumulator.h"
#include "../core/ops/fusions.h"
#include "../core/ops/ops.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

// Logits of at most this belong to keys that a query may not see: a bool mask puts the lowest number of f32 there.
constexpr double kHidden = -std::numeric_limits<float>::max();

double kurtosis_of(double count, double squares, double fourths) { return count * fourths / (squares * squares); }

Tensor wide(const Tensor& x) { return cast(x.detach(), DType::f64); }

template <class Row> Row& row_of(std::vector<Row>& rows, const auto& is, Row fresh) {
  const auto found = std::ranges::find_if(rows, is);
  return found != rows.end() ? *found : rows.emplace_back(std::move(fresh));
}

void add_to(std::vector<double>& sums, const Tensor& values) {
  const std::vector<double> added = values.to_vector<double>();
  sums.resize(std::max(sums.size(), added.size()));
  for (std::size_t i = 0; i < added.size(); ++i) sums[i] += added[i];
}

// All dims but `kept`.
Shape others(const Tensor& x, int kept) {
  Shape dims;
  for (int d = 0; d < x.dim(); ++d)
    if (d != kept) dims.push_back(d);
  return dims;
}
Tensor sum_of_each(const Tensor& x, int dim) {
  const Shape dims = others(x, dim);
  return dims.empty() ? x : sum(x, dims);
}

// bool: the queries that see a key. One with a NaN does.
Tensor sees_a_key(const Tensor& logits, bool keep_dim) { return logical_not(le(max(logits, {-1}, keep_dim), kHidden)); }

// The logits of an attention [.., L, S] in f64, -Inf where a query sees no key.
Tensor logits_of(const OpCall& call, const AttentionAttrs& attrs) {
  const Tensor q = wide(call[0]);
  Tensor s = mul(matmul(q, transpose(wide(call[1]), -2, -1)), attention_scale(attrs, q.size(-1)));
  if (call.inputs.size() > 3 && call[3].defined())
    s = call[3].dtype() == DType::bool_ ? where(call[3], s, -INFINITY) : add(s, wide(call[3]));
  if (!attrs.causal) return s;
  const auto numbers = [&](std::int64_t count) {
    return arange(0, static_cast<double>(count), 1, {.dtype = DType::i64, .device = s.device()});
  };
  return where(ge(reshape(numbers(s.size(-2)), {-1, 1}), numbers(s.size(-1))), s, -INFINITY);
}

std::string operand_name(char name, const Tensor& t) {
  if (t.dim() < 2) return fmt::format("{} {}", name, t.numel());
  return fmt::format("{} {}x{}", name, t.size(-2), t.size(-1));
}

}  // namespace

double ActivationRow::kurtosis() const { return kurtosis_of(static_cast<double>(elements), squares, fourths); }

double ActivationRow::feature_kurtosis() const {
  double sum = 0;
  double sum_of_squares = 0;
  for (const double f : features) {
    sum += f;
    sum_of_squares += f * f;
  }
  return kurtosis_of(static_cast<double>(features.size()), sum, sum_of_squares);
}

double ProbabilityRow::entropy() const {
  double sum = 0;
  for (const double head : heads) sum += head;
  return sum / static_cast<double>(queries);
}

double ProbabilityRow::lowest_entropy() const {
  double lowest = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t i = 0; i < heads.size(); ++i) {
    if (std::isnan(heads[i])) return heads[i];
    if (queries_of_heads[i] > 0) lowest = std::fmin(lowest, heads[i] / queries_of_heads[i]);
  }
  return lowest;
}

void ActivationMonitor::clear() {
  activations_.clear();
  probabilities_.clear();
}

void ActivationMonitor::add_activation(const char* layer, const std::string& operand, const Tensor& x, int dim) {
  if (x.numel() == 0 || x.dim() == 0 || !x.is_floating()) return;
  const auto is = [&](const ActivationRow& r) { return r.layer == layer && r.operand == operand; };
  ActivationRow& row = row_of(activations_, is, ActivationRow{.layer = layer, .operand = operand});
  const Tensor squared = square(wide(x));
  row.elements += x.numel();
  row.squares += sum(squared).item<double>();
  row.fourths += sum(square(squared)).item<double>();
  const double largest = std::sqrt(max(squared).item<double>());
  row.largest = std::isnan(largest) ? largest : std::max(row.largest, largest);
  add_to(row.features, sum_of_each(squared, dim < 0 ? x.dim() + dim : dim));
}

void ActivationMonitor::add_probabilities(const char* layer, bool attention, const Tensor& logits, const Tensor& p) {
  if (p.numel() == 0 || p.dim() == 0) return;
  const auto is = [&](const ProbabilityRow& r) { return r.layer == layer && r.attention == attention; };
  ProbabilityRow& row =
      row_of(probabilities_, is,
             ProbabilityRow{
                 .layer = layer, .attention = attention, .largest_logit = -std::numeric_limits<double>::infinity()});
  const Tensor seen = sees_a_key(logits, false);
  const Tensor terms = where(eq(p, 0), 0, mul(p, log(p)));
  const Tensor entropies = where(seen, neg(sum(terms, {-1})), 0);
  row.queries += sum(seen).item<std::int64_t>();
  const double largest = max(where(eq(p, 0), -INFINITY, logits)).item<double>();
  row.largest_logit = std::isnan(largest) ? largest : std::max(row.largest_logit, largest);
  const auto of_heads = [](const Tensor& x) {
    return x.dim() >= 3 ? sum_of_each(x, x.dim() - 2) : reshape(sum(x), {1});
  };
  add_to(row.heads, of_heads(entropies));
  add_to(row.queries_of_heads, of_heads(cast(seen, DType::f64)));
}

void ActivationMonitor::add_attention(const OpCall& call, const AttentionAttrs& attrs, const char* layer) {
  const std::pair<const char*, int> operands[] = {{"q", 0}, {"k", 1}, {"v", 2}};
  for (const auto& [name, at] : operands) add_activation(layer, name, call[at], -1);
  const Tensor logits = logits_of(call, attrs);
  const Tensor sees = sees_a_key(logits, true);
  const Tensor p = where(sees, softmax(where(sees, logits, 0), -1), 0);
  add_probabilities(layer, true, logits, p);
}

void ActivationMonitor::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  if (record.context.phase != Phase::forward || record.context.cause->kind == CauseKind::recomputation) return;
  if (record.within && record.within->replaces) return;  // a part of a rewritten op, which is seen whole
  const Unseen unseen;
  const AccumulatorScope exact(std::nullopt);
  const char* const layer = record.context.module;
  const Fusion* const fusion = fusion_of(call);
  switch (fusion ? fusion->first : record.op) {
    case OpId::linear: return add_activation(layer, kLayerInput, call[0], -1);
    case OpId::conv2d:
    case OpId::conv2d_backward_input:  // of a transposed convolution
      return add_activation(layer, kLayerInput, call[0], 1);
    case OpId::matmul:
      for (const int i : {0, 1})
        if (!amp::is_parameter(call[i])) add_activation(layer, operand_name(i == 0 ? 'a' : 'b', call[i]), call[i], -1);
      return;
    case OpId::flash_attention: return add_attention(call, call.get<AttentionAttrs>(), layer);
    case OpId::scaled_dot_product_attention:
      if (const AttentionAttrs* const attrs = amp::attributes_of_blocks(call)) add_attention(call, *attrs, layer);
      return;
    case OpId::softmax:
      if (const int dim = call.get<DimAttrs>().dim; dim == -1 || dim == call[0].dim() - 1)
        add_probabilities(layer, false, wide(call[0]), wide(out[0]));
      return;
    default: return;
  }
}

std::string ActivationMonitor::to_string(const LayerNames& name) const {
  std::string text =
      fmt::format("{:<40} {:<10} {:>9} {:>16} {:>10}\n", "layer", "operand", "kurtosis", "of feature norms", "largest");
  for (const ActivationRow& r : activations_)
    text += fmt::format("{:<40} {:<10} {:>9.4g} {:>16.4g} {:>10.3g}\n", name(r.layer), r.operand, r.kurtosis(),
                        r.feature_kurtosis(), r.largest);
  if (probabilities_.empty()) return text;
  text += fmt::format("\n{:<40} {:<10} {:>13} {:>14} {:>15}\n", "layer", "of", "largest logit", "entropy, nats",
                      "of lowest head");
  for (const ProbabilityRow& r : probabilities_)
    text += fmt::format("{:<40} {:<10} {:>13.4g} {:>14.4g} {:>15.4g}\n", name(r.layer),
                        r.attention ? "attention" : "softmax", r.largest_logit, r.entropy(), r.lowest_entropy());
  return text;
}

}  // namespace gradual::inspect
