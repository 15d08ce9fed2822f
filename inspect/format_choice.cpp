#include "format_choice.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "../autograd/autograd.h"
#include "../core/ops/ops.h"
#include "../core/quantize/bits_per_number.h"
#include "../core/support/generator.h"
#include "../core/support/rounding_draws.h"
#include "../core/support/throwf.h"
#include "gradient_sites.h"
#include "shadow.h"

namespace gradual::inspect {
namespace {

// The numbers of one call of attention: L queries and S keys of E, S values of D, for each head of the scores. Heads
// may share keys and values: these have elements of their own.
struct AttentionSizes {
  double of_q, of_k, of_v;  // elements
  double heads, queries, keys, size, values;
};
// A row for each field: its elements, what it is multiplied by, and whether backward reads it. The products are those
// of FlashAttention, which computes Q K^T again in backward.
struct FieldCost {
  std::optional<Quantizer> amp::AttentionPrecision::*field;
  double (*elements)(const AttentionSizes& n);
  double products;  // that read it
  double (*multiplications)(const AttentionSizes& n);
  bool is_kept;
};
using Inside = amp::AttentionPrecision;
double of_queries(const AttentionSizes& n) { return n.of_q; }
double of_keys(const AttentionSizes& n) { return n.of_k; }
double of_values(const AttentionSizes& n) { return n.of_v; }
double of_outputs(const AttentionSizes& n) { return n.heads * n.queries * n.values; }
double of_scores(const AttentionSizes& n) { return n.heads * n.queries * n.keys; }
double of_rows(const AttentionSizes& n) { return n.heads * n.queries; }
double over_size(const AttentionSizes& n) { return of_scores(n) * n.size; }
double over_values(const AttentionSizes& n) { return of_scores(n) * n.values; }
constexpr FieldCost kFieldCosts[] = {
    {&Inside::q, of_queries, 3, over_size, true},         {&Inside::k, of_keys, 3, over_size, true},
    {&Inside::v, of_values, 2, over_values, true},        {&Inside::p, of_scores, 2, over_values, false},
    {&Inside::d_o, of_outputs, 2, over_values, false},    {&Inside::d_p, of_scores, 1, of_scores, false},
    {&Inside::d_s, of_scores, 2, over_size, false},       {&Inside::softmax, of_rows, 1, of_rows, true},
    {&Inside::running, of_outputs, 1, of_outputs, false}, {&Inside::o, of_outputs, 1, of_outputs, true}};

void add_attention(std::vector<FormatSite>& sites, const AttentionSizes& n) {
  for (const amp::AttentionField& field : amp::kAttentionFields) {
    const FieldCost& about = *std::ranges::find(kFieldCosts, field.quantizer, &FieldCost::field);
    auto site = std::ranges::find(sites, &field, &FormatSite::attention);
    if (site == sites.end())
      site = sites.insert(site, {.layer = fmt::format("attention.{}", field.name), .attention = &field});
    site->x += about.elements(n);
    site->reads += about.elements(n) * about.products;
    site->multiplications += about.multiplications(n) * about.products;
    if (about.is_kept) site->kept += about.elements(n);
  }
}

AttentionSizes sizes_of(const OpCall& call, const Tensor& out) {
  const Tensor& q = call[0];
  const auto rows = static_cast<double>(out.numel() / std::max<std::int64_t>(1, out.size(-1) * out.size(-2)));
  const auto elements = [&](int input) { return static_cast<double>(call[input].numel()); };
  return {.of_q = elements(0),
          .of_k = elements(1),
          .of_v = elements(2),
          .heads = rows,
          .queries = static_cast<double>(out.size(-2)),
          .keys = static_cast<double>(call[1].size(-2)),
          .size = static_cast<double>(q.size(-1)),
          .values = static_cast<double>(out.size(-1))};
}

// Records the products of a forward pass with a weight, and its attentions.
class Products final : public Interceptor {
 public:
  Products(std::vector<FormatSite>& sites, std::vector<FormatSite>& attention) : sites_(sites), attention_(attention) {}
  Outputs call(const OpCall& call) override {
    Outputs out = next_below_amp(call);
    if (call.op == OpId::scaled_dot_product_attention && out[0].numel() > 0)
      add_attention(attention_, sizes_of(call, out[0]));
    const OpId op = fusion_of(call) ? fusion_of(call)->first : call.op;
    if (std::ranges::count(amp::kQuantisedOps, op) == 0 || !amp::is_parameter(call[1])) return out;
    const Tensor& x = call[0];
    const Tensor& w = call[1];
    auto site = std::ranges::find(sites_, context().module, &FormatSite::layer);
    if (site == sites_.end()) site = sites_.insert(site, {.layer = context().module});
    const bool transposed = op == OpId::conv2d_backward_input;  // each element of x is multiplied by a filter
    const std::int64_t summed = op == OpId::conv2d || transposed ? w.numel() / w.size(0) : x.sizes().back();
    site->x += static_cast<double>(x.numel());
    site->w += static_cast<double>(w.numel());
    site->y += static_cast<double>(out[0].numel());
    site->multiplications += static_cast<double>((transposed ? x : out[0]).numel()) * static_cast<double>(summed);
    site->dgrad = site->dgrad || x.requires_grad();
    return out;
  }

 private:
  std::vector<FormatSite>& sites_;
  std::vector<FormatSite>& attention_;
};

double bits(const std::optional<Quantizer>& q) { return q ? bits_per_number(*q) : 32; }

double finite(double harm) { return std::isfinite(harm) ? harm : 1e6; }

std::vector<Tensor> trained_parameters(nn::Module& model) {
  std::vector<Tensor> trained = model.parameters();
  std::erase_if(trained, [](const Tensor& p) { return !p.requires_grad(); });
  return trained;
}

// While it lives, a step draws what the next step of the caller will draw, with the same dropout under any rounding.
struct SameDraws {
  Generator own = Generator(default_generator().state());
  GeneratorScope draws{own};
  RoundingDraws apart{own.state()};
};

// The harm of a format by site: the squared error of the gradients, and the share of the error in the loss.
using Harm = std::vector<std::array<double, 2>>;
Harm harm_in(const amp::Recipe& format, nn::Module& model, const std::vector<FormatSite>& sites,
             const std::function<Tensor()>& loss) {
  Harm harm(sites.size());
  if (!format.quantization) return harm;
  const GradientSites alone = gradient_sites(format, model, loss);
  const SameDraws same;
  const std::vector<Tensor> parameters = trained_parameters(model);
  Shadow shadow(model, nullptr, {.attribution = true});
  const ObserverScope observing(shadow);
  const Tensor value = [&] {
    const amp::RecipeScope scope(format, parameters.empty() ? Device::cpu() : parameters[0].device());
    return loss();
  }();
  static_cast<void>(autograd::grad({value}, parameters, {}, {.allow_unused = true}));
  for (std::size_t i = 0; i < sites.size(); ++i) {
    for (const GradientSite& s : alone.sites)
      if (s.layer == sites[i].layer) harm[i][0] += finite(s.alone_whole * s.alone_whole);
    for (const ShadowRow& row : shadow.rows())
      if (row.module == sites[i].layer) harm[i][1] += finite(std::abs(row.share));
  }
  return harm;
}

// The loss of a step and all its gradients, with attention in blocks under these quantizers.
struct Step {
  std::vector<Tensor> gradients;
  double loss = 0;
};
Step step_with(const amp::AttentionPrecision& inside, nn::Module& model, const std::function<Tensor()>& loss) {
  const SameDraws same;
  const amp::Recipe recipe{.name = "attention alone", .quantization = amp::Quantization{.attention = inside}};
  const std::vector<Tensor> parameters = trained_parameters(model);
  const Tensor value = [&] {
    const amp::RecipeScope scope(recipe, parameters.empty() ? Device::cpu() : parameters[0].device());
    return loss();
  }();
  return {autograd::grad({value}, parameters, {}, {.allow_unused = true}), value.item()};
}

double squares(const Tensor& t) { return t.defined() ? sum(square(cast(t, DType::f64))).item() : 0; }

// The same for a field of attention, rounded alone. exact: the step without rounding in attention.
std::array<double, 2> harm_of_field(const FormatSite& site, const amp::Recipe& format, nn::Module& model,
                                    const std::function<Tensor()>& loss, const Step& exact) {
  amp::AttentionPrecision inside;
  inside.*site.attention->quantizer = attention_quantizer(*site.attention, format);
  if (!(inside.*site.attention->quantizer)) return {};
  const Step rounded = step_with(inside, model, loss);
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < exact.gradients.size(); ++i) {
    if (!exact.gradients[i].defined()) continue;
    error += squares(sub(cast(rounded.gradients[i], DType::f64), cast(exact.gradients[i], DType::f64)));
    size += squares(exact.gradients[i]);
  }
  return {size > 0 ? finite(error / size) : 0, finite(std::abs(rounded.loss - exact.loss))};
}

void add_harm_of_attention(Harm& harm, const amp::Recipe& format, nn::Module& model,
                           const std::vector<FormatSite>& sites, const std::function<Tensor()>& loss) {
  if (std::ranges::none_of(sites, [](const FormatSite& s) { return s.attention; })) return;
  const Step exact = step_with({}, model, loss);
  for (std::size_t i = 0; i < sites.size(); ++i)
    if (sites[i].attention) harm[i] = harm_of_field(sites[i], format, model, loss, exact);
}

double cost_of_attention(const FormatSite& s, const amp::Recipe& format, Cost cost) {
  const double each = bits(attention_quantizer(*s.attention, format));
  if (cost == Cost::bits) return s.multiplications * each;
  return (cost == Cost::kept ? s.kept : s.reads) * each / 8;
}

}  // namespace

std::optional<Quantizer> attention_quantizer(const amp::AttentionField& field, const amp::Recipe& format) {
  if (!format.quantization) return {};
  std::optional<Quantizer> q = field.of_backward ? format.quantization->dgrad_dy : format.quantization->forward_x;
  if (!q) return {};
  q->hadamard = false;
  q->signs = HadamardSigns::fixed;
  q->center = false;
  q->gradient = QuantizerGradient::straight;
  q->overflow = format.quantization->overflow.value_or(q->overflow);
  if (has_kept_scale(q->scaling)) q->scaling = TensorScale{};
  if (field.quantizer == &amp::AttentionPrecision::softmax) q->scaling = NoScale{};
  return q;
}

Cost cost_from_name(const std::string& name) {
  for (const auto& [known, cost] : {std::pair("bits", Cost::bits), {"kept", Cost::kept}, {"moved", Cost::moved}})
    if (name == known) return cost;
  throw_error("no cost '" + name + "'; allowed are bits, kept and moved");
}

double cost_of(const FormatSite& s, const amp::Recipe& format, Cost cost) {
  if (s.attention) return cost_of_attention(s, format, cost);
  const amp::Quantization q = format.quantization.value_or(amp::Quantization());
  const double x = bits(q.forward_x);
  const double w = bits(q.forward_w);
  const double wgrad_x = bits(q.wgrad_x);
  const double wgrad_dy = bits(q.wgrad_dy);
  const double dgrad_w = s.dgrad ? bits(q.dgrad_w) : 0;
  const double dgrad_dy = s.dgrad ? bits(q.dgrad_dy) : 0;
  if (cost == Cost::bits) return s.multiplications * (x + w + dgrad_dy + dgrad_w + wgrad_x + wgrad_dy);
  if (cost == Cost::kept) return (s.x * wgrad_x + s.w * dgrad_w) / 8;
  return (s.x * (x + wgrad_x) + s.w * (w + dgrad_w) + s.y * (dgrad_dy + wgrad_dy)) / 8;
}

double cost_of(const std::vector<FormatSite>& sites, const Assignment& a) {
  double all = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) all += sites[i].cost[a[i]];
  return all;
}

std::vector<FormatSite> format_sites(nn::Module& model, const std::function<Tensor()>& loss,
                                     std::vector<amp::Recipe>& formats, Cost cost, bool with_attention) {
  std::vector<FormatSite> sites;
  std::vector<FormatSite> attention;
  {
    Products products(sites, attention);
    const StageScope amp(chain().amp, &products);
    static_cast<void>(loss());
  }
  if (sites.empty()) throw_error("no layer of the model multiplies by a weight");
  if (trained_parameters(model).empty()) throw_error("format_sites: no parameter of the model requires a gradient");
  if (with_attention && attention.empty()) throw_error("the model has no attention (scaled_dot_product_attention)");
  if (with_attention) std::ranges::move(attention, std::back_inserter(sites));
  std::ranges::stable_sort(formats, {}, [&](const amp::Recipe& f) {
    double all = 0;
    for (const FormatSite& s : sites) all += cost_of(s, f, cost);
    return all;
  });
  // The harm of the cheapest format at all sites, to which that of all formats is relative. Not 0: it divides.
  double gradients = 1e-300;
  double share = 1e-300;
  for (const amp::Recipe& f : formats) {
    Harm harm = harm_in(f, model, sites, loss);
    add_harm_of_attention(harm, f, model, sites, loss);
    if (&f == &formats.front())
      for (const auto& [of_gradients, of_loss] : harm) {
        gradients += of_gradients;
        share += of_loss;
      }
    for (std::size_t i = 0; i < sites.size(); ++i) {
      sites[i].cost.push_back(cost_of(sites[i], f, cost));
      sites[i].harm.push_back(harm[i][0] / gradients + harm[i][1] / share);
    }
  }
  return sites;
}

std::vector<Assignment> knapsack(const std::vector<FormatSite>& sites, const std::vector<double>& budgets) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double most = 0;
  for (const FormatSite& s : sites) most += std::ranges::max(s.cost);
  constexpr int kBins = 4000;  // of costs from 0 to `most`
  const auto bins = [&](double cost) { return static_cast<std::size_t>(std::ceil(cost / most * kBins - 1e-9)); };
  const std::size_t size = kBins + 1 + sites.size();  // each cost may be rounded up
  std::size_t least = 0;                              // bins of the cheapest assignment
  for (const FormatSite& s : sites) least += bins(std::ranges::min(s.cost));
  std::vector<double> harm(size, 0);             // least harm of the sites so far, by bins of cost
  std::vector<std::vector<std::size_t>> choice;  // by site, and by bins of cost for it and the sites before
  for (const FormatSite& s : sites) {
    std::vector<double> next(size, kNever);
    std::vector<std::size_t>& chosen = choice.emplace_back(size, 0);
    for (std::size_t f = 0; f < s.cost.size(); ++f)
      for (std::size_t b = bins(s.cost[f]); b < size; ++b)
        if (const double h = harm[b - bins(s.cost[f])] + s.harm[f]; h < next[b]) {
          next[b] = h;
          chosen[b] = f;
        }
    harm = std::move(next);
  }
  std::vector<Assignment> all;
  for (const double budget : budgets) {
    const auto allowed = static_cast<std::size_t>(std::max(0.0, budget) / most * kBins + 1e-9);
    std::size_t b = std::min(size - 1, std::max(allowed, least));
    Assignment& a = all.emplace_back(sites.size(), 0);
    for (std::size_t i = sites.size(); i-- > 0;) {
      a[i] = choice[i][b];
      b -= bins(sites[i].cost[a[i]]);
    }
  }
  return all;
}

}  // namespace gradual::inspect
