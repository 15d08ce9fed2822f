#include "gradient_sites.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../amp/quantized_run.h"
#include "../autograd/autograd.h"
#include "../core/support/message_text.h"
#include "../core/support/rounding_draws.h"
#include "../core/support/throwf.h"
#include "csv_text.h"
#include "mirror.h"
#include "numbers.h"
#include "op_row.h"

namespace gradual::inspect {
namespace {

using amp::Quantization, amp::Recipe;
using Site = std::pair<std::string, SiteRole>;  // layer, role

// The layer of a call that runs now, or its line.
std::string place_of(const OpCall& call) {
  CallRecord record;
  record.context = context();
  record.op = call.op;
  return OpRow(0, call, record).place();
}

// The roles of a quantised recipe.
constexpr std::pair<SiteRole, std::optional<Quantizer> Quantization::*> kQuantizedRoles[] = {
    {SiteRole::forward_x, &Quantization::forward_x},   {SiteRole::forward_w, &Quantization::forward_w},
    {SiteRole::dgrad_dy, &Quantization::dgrad_dy},     {SiteRole::dgrad_w, &Quantization::dgrad_w},
    {SiteRole::wgrad_x, &Quantization::wgrad_x},       {SiteRole::wgrad_dy, &Quantization::wgrad_dy},
    {SiteRole::update, &Quantization::weight_gradient}};

constexpr double kLargeRest = 0.1;  // of the difference of the losses: more is looked for in pairs of sites
constexpr std::size_t kPaired = 4;  // the sites that save most

// The sites that run in low precision: these alone, or all but these.
struct Choice {
  bool all = false;
  std::vector<Site> sites = {};
  bool low(const std::string& layer, SiteRole role) const {
    const auto has = [&](const Site& s) {
      return s.first == layer && (s.second == role || s.second == SiteRole::all_ops);
    };
    return std::ranges::any_of(sites, has) != all;
  }
};

// Autocast for the chosen sites.
class SitesOnly final : public Interceptor {
 public:
  // root: the model itself is a layer. seen: gets the sites of the ops that the recipe lowers, in order.
  SitesOnly(Interceptor* autocast, const Recipe& recipe, const Choice& choice, bool root,
            std::vector<std::string>& seen)
      : autocast_(autocast),
        policy_(amp::policy_table(recipe)),
        dtype_(recipe.dtype),
        choice_(choice),
        root_(root),
        seen_(seen) {}
  Outputs call(const OpCall& call) override {
    const std::string layer = root_ ? context().module : place_of(call);
    const bool lowered = policy_[call.op].kind == amp::PolicyKind::lower;
    if (lowered && std::ranges::find(seen_, layer) == seen_.end()) seen_.push_back(layer);
    const bool operands = choice_.low(layer, SiteRole::operands);
    const bool outputs = choice_.low(layer, SiteRole::stored_outputs);
    if (operands == outputs) return operands ? autocast_->call(call) : next_below_amp(call);
    // An op that is not lowered has no such parts.
    if (!lowered) return choice_.all ? autocast_->call(call) : next_below_amp(call);
    // The product in f32, of rounded operands or with a rounded result.
    const StageScope off(chain().amp, nullptr);
    const std::vector<Tensor> inputs = inputs_of(call, [&](const Tensor& t) {
      if (!t.defined() || !amp::castable(t.dtype())) return t;
      const Tensor rounded = operands ? t.to(dtype_) : t;
      return rounded.to(DType::f32);
    });
    const std::vector<const Tensor*> refs = pointers_to(inputs);
    Outputs out = dispatch(call.op, TensorRefs(refs.data(), call.inputs.size()), *call.attrs, call.where);
    if (outputs) out[0] = out[0].to(dtype_);
    if (!choice_.all) out[0] = out[0].to(DType::f32);  // what reads it is no site
    return out;
  }

 private:
  Interceptor* autocast_;
  amp::PolicyTable policy_;
  DType dtype_;
  const Choice& choice_;
  bool root_;
  std::vector<std::string>& seen_;
};

// The lines of the quantised products outside of the given layers.
class OutsideProducts final : public Observer {
 public:
  explicit OutsideProducts(const std::vector<std::string>& layers) : layers_(layers) {}
  std::set<std::string> lines;

  void before(const OpCall& call, const CallRecord& record) override {
    if (record.context.phase == Phase::forward && record.replaced &&
        std::ranges::find(layers_, record.context.module) == layers_.end())
      lines.insert(file_line(call.where));
  }

 private:
  const std::vector<std::string>& layers_;
};

// The modules that own parameters of at least `dims` dims; weights of products have two.
std::vector<std::string> layers_of(nn::Module& model, int dims) {
  std::vector<std::string> layers;
  for (const auto& [path, module] : model.named_modules())
    if (std::ranges::any_of(module->named_parameters(false), [dims](const auto& p) { return p.second.dim() >= dims; }))
      layers.push_back(path);
  return layers;
}

struct Trial {
  double loss = 0;
  std::vector<Tensor> gradients = {};  // f64
};

struct Trials : Pinned {
  Trials(const Recipe& of, nn::Module& model, const std::function<Tensor()>& loss_of,
         const amp::QuantizationState* from)
      : recipe(of), loss(loss_of), histories(from) {
    if (!recipe.quantization && recipe.mode != amp::Mode::autocast)
      throwf("gradient_sites: the recipe {} is neither quantised nor autocast; its sites cannot be told apart",
             recipe.name);
    for (const auto& [name, p] : model.named_parameters())
      if (p.requires_grad()) {
        parameters.push_back(p);
        names.push_back(name);
      }
    if (parameters.empty()) throw_error("gradient_sites: no parameter of the model requires a gradient");
    for (const auto& [name, b] : model.named_buffers()) buffers.emplace_back(b, b.clone());
    if (recipe.quantization) name_layers(*recipe.quantization, model);
    layers = layers_of(model, 2);
    root = std::ranges::any_of(model.named_parameters(false), [](const auto& p) { return p.second.dim() > 0; });
  }

  ~Trials() { restore(); }

  Trial run(const Choice& choice) const {
    restore();
    const RoundingDraws apart(key);  // dropout has the same masks with any choice
    const auto state = recipe.quantization ? state_for(choice) : nullptr;
    Tensor value;
    {
      const amp::RecipeScope scope(recipe, parameters.empty() ? Device::cpu() : parameters[0].device(), state);
      SitesOnly only(chain().amp, recipe, choice, root, lowered);
      const bool part = !state && chain().amp && !(choice.all && choice.sites.empty());
      const StageScope amp(chain().amp, part ? &only : chain().amp);
      value = loss();
    }
    Trial trial{.loss = value.item()};
    const std::vector<Tensor> gradients = autograd::grad({value}, parameters, {}, {.allow_unused = true});
    for (std::size_t i = 0; i < gradients.size(); ++i)
      trial.gradients.push_back(f64_of(stored(gradients[i], names[i], state.get())));
    return trial;
  }

  // Restores buffers and random numbers, which a step changes.
  void restore() const {
    const NoGrad off;
    for (const auto& [buffer, before] : buffers) buffer.copy_(before);
    default_generator().set_state(key);
  }

  // A parameter's gradient as the optimizer reads it.
  static Tensor stored(const Tensor& g, const std::string& parameter, const amp::QuantizationState* state) {
    const Quantization* q = state ? state->of_module(parameter.substr(0, parameter.rfind('.'))) : nullptr;
    if (!g.defined() || !q || !q->weight_gradient || g.dim() < 2 || !std::isfinite(absmax(g))) return g;
    return fake_quantize(g, *q->weight_gradient, {.key = rounding_generator().next()});
  }

  std::shared_ptr<amp::QuantizationState> state_for(const Choice& choice) const {
    const amp::QuantizationState whole(*recipe.quantization);
    Quantization q = *recipe.quantization;
    std::vector<std::optional<Quantization>> of_modules;
    const auto own = [&](const std::string& path) {
      const Quantization* found = whole.of_module(path);
      return found ? std::optional(*found) : std::nullopt;
    };
    for (auto& [path, name] : q.modules) {
      of_modules.push_back(choice.all ? own(path) : std::nullopt);
      name = "fp32";
    }
    for (const std::string& layer : layers) {
      std::optional<Quantization>& site = of_modules.emplace_back(own(layer));
      q.modules.emplace_back(layer, "fp32");
      for (const auto& [role, field] : kQuantizedRoles)
        if (site && !choice.low(layer, role)) (*site.*field).reset();
    }
    for (const auto& [role, field] : kQuantizedRoles)
      if (!choice.low(outside, role)) (q.*field).reset();
    auto state = std::make_shared<amp::QuantizationState>(q, of_modules);
    if (histories) {
      state->take_steps(*histories);
      state->load_state_dict(histories->state_dict());
    }
    return state;
  }

  Recipe recipe;
  const std::function<Tensor()>& loss;
  const amp::QuantizationState* histories;
  RandomKey key = default_generator().state();
  std::vector<Tensor> parameters;
  std::vector<std::string> names, layers;          // of parameters, and of layers with products
  bool root = false;                               // the model itself has parameters
  std::string outside = "ops outside of layers";   // the site of all other quantised products
  mutable std::vector<std::string> lowered;        // sites of an autocast recipe
  std::vector<std::pair<Tensor, Tensor>> buffers;  // with their initial values
};

// |g| by parameter; the last value is that of all gradients as one vector.
std::vector<double> sizes_of(const std::vector<Tensor>& g) {
  std::vector<double> sizes;
  for (const Tensor& t : g) sizes.push_back(t.defined() ? std::sqrt(squares(t)) : 0);
  sizes.push_back(std::sqrt(std::inner_product(sizes.begin(), sizes.end(), sizes.begin(), 0.0)));
  return sizes;
}

// |g - exact| / size by parameter; the last value is that of all gradients as one vector.
std::vector<double> errors(const std::vector<Tensor>& g, const std::vector<Tensor>& exact,
                           const std::vector<double>& size) {
  std::vector<Tensor> difference;
  for (std::size_t i = 0; i < g.size(); ++i)
    difference.push_back(g[i].defined() && exact[i].defined() ? minus(g[i], exact[i]) : Tensor());
  std::vector<double> of = sizes_of(difference);
  for (std::size_t i = 0; i < of.size(); ++i) of[i] = size[i] > 1e-6 * size.back() ? of[i] / size[i] : 0;
  return of;
}

bool is_part(SiteRole role) { return role == SiteRole::operands || role == SiteRole::stored_outputs; }

// Replays pairs of the sites that save most, if the sites one by one leave much of the difference unexplained.
void add_pairs(GradientSites& result, const Trials& trials) {
  if (std::abs(result.rest()) <= kLargeRest * std::abs(result.loss - result.exact_loss)) return;
  std::vector<const GradientSite*> most;
  for (const GradientSite& s : result.sites)
    if (!is_part(s.role)) most.push_back(&s);
  std::ranges::stable_sort(most, {}, [](const GradientSite* s) { return -std::abs(s->loss_saved); });
  most.resize(std::min(most.size(), kPaired));
  for (std::size_t i = 0; i < most.size(); ++i)
    for (std::size_t k = 0; k < i; ++k) {
      const GradientSite& a = *most[k];
      const GradientSite& b = *most[i];
      const Trial without = trials.run({.all = true, .sites = {{a.layer, a.role}, {b.layer, b.role}}});
      const double saved = result.loss - without.loss;
      result.pairs.push_back({a, b, saved, saved - a.loss_saved - b.loss_saved});
    }
  std::ranges::stable_sort(result.pairs, {}, [](const SitePair& p) { return -std::abs(p.together); });
}

}  // namespace

std::string_view to_string(SiteRole role) {
  return enum_name(role, {"forward x", "forward w", "dgrad dy", "dgrad w", "wgrad x", "wgrad dy", "update", "all ops",
                          "operands", "stored outputs"});
}

double GradientSites::rest() const {
  double rest = loss - exact_loss;
  for (const GradientSite& s : sites) rest -= is_part(s.role) ? 0 : s.loss_saved;
  return rest;
}

GradientSites gradient_sites(const amp::Recipe& recipe, nn::Module& model, const std::function<Tensor()>& loss,
                             const amp::QuantizationState* histories) {
  Trials trials(recipe, model, loss, histories);
  const Trial exact = trials.run({});
  OutsideProducts products(trials.layers);
  Trial low;
  {
    const ObserverScope scope(products);
    low = trials.run({.all = true});
  }
  if (products.lines.size() == 1) trials.outside = *products.lines.begin();
  const std::vector<double> size = sizes_of(exact.gradients);
  const std::vector<double> whole = errors(low.gradients, exact.gradients, size);
  const auto each = [](const std::vector<double>& all) { return std::vector(all.begin(), all.end() - 1); };
  GradientSites result{trials.names, each(size), each(whole), whole.back(), low.loss, exact.loss};
  const auto add = [&](const std::string& layer, SiteRole role) {
    const Trial without = trials.run({.all = true, .sites = {{layer, role}}});
    const Trial only = trials.run({.sites = {{layer, role}}});
    const std::vector<double> alone = errors(only.gradients, exact.gradients, size);
    std::vector<double> saved = errors(without.gradients, exact.gradients, size);
    for (std::size_t i = 0; i < saved.size(); ++i) saved[i] = whole[i] - saved[i];
    result.sites.push_back(
        {layer, role, each(alone), each(saved), alone.back(), saved.back(), low.loss - without.loss});
  };
  if (recipe.quantization) {
    std::vector<std::string> sites = trials.layers;
    if (!products.lines.empty()) sites.push_back(trials.outside);
    for (const std::string& layer : sites)
      for (const auto& [role, field] : kQuantizedRoles)
        if (*recipe.quantization.*field) add(layer, role);
  } else {
    std::vector<std::string> sites = layers_of(model, 1);
    std::vector<std::string> of_products = trials.layers;
    for (const std::string& layer : std::vector(trials.lowered))
      if (std::ranges::find(sites, layer) == sites.end()) {
        sites.push_back(layer);
        of_products.push_back(layer);
      }
    for (const std::string& layer : sites) add(layer, SiteRole::all_ops);
    for (const std::string& layer : of_products) {
      add(layer, SiteRole::operands);
      add(layer, SiteRole::stored_outputs);
    }
  }
  add_pairs(result, trials);
  return result;
}

std::string to_string(const GradientSites& sites, std::size_t rows, const LayerNames& name) {
  std::string text =
      fmt::format("error of all gradients: {:.3g} of their size\n{:<28}  {:<14}  {:>9}  {:>9}  {:>10}  {}\n",
                  sites.error_whole, "layer", "role", "alone", "saves", "saves loss", "most in");
  std::vector<GradientSite> order = sites.sites;
  std::ranges::stable_sort(order, std::greater{}, &GradientSite::alone_whole);
  for (std::size_t i = 0; i < std::min(rows, order.size()); ++i) {
    const GradientSite& s = order[i];
    std::size_t most = 0;  // index of the largest error
    for (std::size_t k = 1; k < s.alone.size(); ++k)
      if (s.alone[k] * sites.size[k] > s.alone[most] * sites.size[most]) most = k;
    text +=
        fmt::format("{:<28}  {:<14}  {:>9.3g}  {:>9.3g}  {:>+10.2e}  {}\n", name(s.layer), to_string(s.role),
                    s.alone_whole, s.saved_whole, s.loss_saved,
                    s.alone_whole == 0 ? "-" : fmt::format("{} {:.3g}", name(sites.parameters[most]), s.alone[most]));
  }
  if (order.size() > rows) text += fmt::format("and {} more\n", order.size() - rows);
  text += "saves loss: by a replay in which later layers round anew; a share of the loss is of first order\n";
  text += fmt::format("loss {:.9g}, in f32 {:.9g}: difference {:+.3e}; the sites one by one save {:+.3e}\n", sites.loss,
                      sites.exact_loss, sites.loss - sites.exact_loss, sites.loss - sites.exact_loss - sites.rest());
  for (const SitePair& p : sites.pairs)
    text += fmt::format("{} {} and {} {} save {:+.3e}: {:+.3e} more than one by one\n", name(p.a.layer),
                        to_string(p.a.role), name(p.b.layer), to_string(p.b.role), p.loss_saved, p.together);
  return text;
}

std::string to_csv(const GradientSites& sites) {
  std::string text = "layer,operand,parameter,alone,saved,loss_saved\n";
  for (const GradientSite& s : sites.sites)
    for (std::size_t i = 0; i < sites.parameters.size(); ++i)
      text += fmt::format("{},{},{},{:.6g},{:.6g},{:.6g}\n", csv_field(s.layer), to_string(s.role),
                          csv_field(sites.parameters[i]), s.alone[i], s.saved[i], s.loss_saved);
  return text;
}

}  // namespace gradual::inspect
