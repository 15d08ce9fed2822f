#include "gradient_sites.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "../amp/quantized_run.h"
#include "../autograd/autograd.h"
#include "../core/support/throwf.h"
#include "csv_text.h"
#include "error_sum.h"
#include "mirror.h"

namespace gradual::inspect {
namespace {

using amp::Quantization, amp::Recipe;
using Field = std::optional<Quantizer> Quantization::*;

// The operands of the three products.
constexpr struct {
  const char* name;
  Field field;
} kRoles[] = {{"forward x", &Quantization::forward_x}, {"forward w", &Quantization::forward_w},
              {"dgrad dy", &Quantization::dgrad_dy},   {"dgrad w", &Quantization::dgrad_w},
              {"wgrad x", &Quantization::wgrad_x},     {"wgrad dy", &Quantization::wgrad_dy}};

// The sites that run in low precision.
struct Choice {
  bool all = false;                       // all sites but the one below; else only that one
  std::optional<std::string> layer = {};  // unset: no site
  Field role = nullptr;                   // the operand, in a quantised recipe
};

// Passes only the ops of the chosen layers to autocast.
class LayersOnly final : public Interceptor {
 public:
  LayersOnly(Interceptor* autocast, const Choice& choice) : autocast_(autocast), choice_(choice) {}
  Outputs call(const OpCall& call) override {
    const bool is_site = choice_.layer && context().module == *choice_.layer;
    return is_site != choice_.all ? autocast_->call(call) : next_below_amp(call);
  }

 private:
  Interceptor* autocast_;
  const Choice& choice_;
};

struct Trial {
  double loss = 0;
  std::vector<Tensor> gradients = {};  // f64
};

class Trials {
 public:
  Trials(const Recipe& recipe, nn::Module& model, const std::function<Tensor()>& loss,
         const amp::QuantizationState* histories)
      : recipe_(recipe), loss_(loss), histories_(histories), key_(default_generator().state()) {
    if (!recipe.quantization && recipe.mode != amp::Mode::autocast)
      throwf("gradient_sites: the recipe {} is neither quantised nor autocast; its sites cannot be told apart",
             recipe.name);
    for (const auto& [name, p] : model.named_parameters())
      if (p.requires_grad()) parameters_.push_back(p), names_.push_back(name);
    for (const auto& [name, b] : model.named_buffers()) buffers_.emplace_back(b, b.clone());
    if (recipe_.quantization) name_layers(*recipe_.quantization, model);
    device_ = parameters_.empty() ? Device::cpu() : parameters_.front().device();
  }

  const std::vector<std::string>& names() const { return names_; }

  Trial run(const Choice& choice) const {
    const Restored restored(*this);
    Recipe r = recipe_;
    std::shared_ptr<amp::QuantizationState> state;
    if (r.quantization) state = state_for(choice, r);
    Tensor value;
    {
      const amp::RecipeScope scope(r, device_, state);
      LayersOnly only(chain().amp, choice);
      const bool part = !r.quantization && !(choice.all && !choice.layer);
      const StageScope amp(chain().amp, part && chain().amp ? &only : chain().amp);
      value = loss_();
    }
    Trial trial{.loss = value.item()};
    for (const Tensor& g : autograd::grad({value}, parameters_, {}, {.allow_unused = true}))
      trial.gradients.push_back(g.defined() ? widened(g) : Tensor());
    return trial;
  }

 private:
  // Restores buffers and random numbers, which a step changes.
  struct Restored {
    const Trials& of;
    explicit Restored(const Trials& trials) : of(trials) { default_generator().set_state(of.key_); }
    ~Restored() {
      const NoGrad off;
      for (const auto& [buffer, before] : of.buffers_) buffer.copy_(before);
      default_generator().set_state(of.key_);
    }
  };

  std::shared_ptr<amp::QuantizationState> state_for(const Choice& choice, const Recipe& r) const {
    const amp::QuantizationState whole(*r.quantization);
    Quantization q = *r.quantization;
    std::vector<std::optional<Quantization>> of_modules;
    for (auto& [path, name] : q.modules) {
      const Quantization* own = whole.of_module(path);
      of_modules.push_back(choice.all && own ? std::optional(*own) : std::nullopt);
      name = "fp32";
    }
    if (choice.layer) {
      std::optional<Quantization> site;
      if (const Quantization* own = whole.of_module(*choice.layer)) {
        site = *own;
        for (const auto& [name, field] : kRoles)
          if ((field == choice.role) == choice.all) (*site.*field).reset();
      }
      q.modules.emplace_back(*choice.layer, "fp32");
      of_modules.push_back(site);
    }
    if (!choice.all)
      for (const auto& [name, field] : kRoles) (q.*field).reset();
    auto state = std::make_shared<amp::QuantizationState>(q, of_modules);
    if (histories_) state->load_state_dict(histories_->state_dict());
    return state;
  }

  Recipe recipe_;
  const std::function<Tensor()>& loss_;
  const amp::QuantizationState* histories_;
  RandomKey key_;
  Device device_;
  std::vector<Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<std::pair<Tensor, Tensor>> buffers_;  // with their initial values
};

// |g| by parameter; the last value is that of all gradients as one vector.
std::vector<double> sizes_of(const std::vector<Tensor>& g) {
  std::vector<double> sizes;
  double all = 0;
  for (const Tensor& t : g) {
    sizes.push_back(t.defined() ? std::sqrt(squares(t)) : 0);
    all += sizes.back() * sizes.back();
  }
  sizes.push_back(std::sqrt(all));
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

// The modules that own parameters of at least `dims` dims; weights of products have two.
std::vector<std::string> layers_of(nn::Module& model, int dims) {
  std::vector<std::string> layers;
  for (const auto& [path, module] : model.named_modules())
    if (std::ranges::any_of(module->named_parameters(false), [dims](const auto& p) { return p.second.dim() >= dims; }))
      layers.push_back(path);
  return layers;
}

}  // namespace

GradientSites gradient_sites(const amp::Recipe& recipe, nn::Module& model, const std::function<Tensor()>& loss,
                             const amp::QuantizationState* histories) {
  const Trials trials(recipe, model, loss, histories);
  const Trial exact = trials.run({}), low = trials.run({.all = true});
  const std::vector<double> size = sizes_of(exact.gradients), whole = errors(low.gradients, exact.gradients, size);
  GradientSites result{
      .parameters = trials.names(), .size = {size.begin(), size.end() - 1}, .error = {whole.begin(), whole.end() - 1}};
  result.error_whole = whole.back(), result.loss = low.loss, result.exact_loss = exact.loss;
  const auto add = [&](const std::string& layer, const char* role, Field field) {
    const Trial without = trials.run({.all = true, .layer = layer, .role = field});
    std::vector<double> alone = errors(trials.run({.layer = layer, .role = field}).gradients, exact.gradients, size);
    std::vector<double> saved = errors(without.gradients, exact.gradients, size);
    for (std::size_t i = 0; i < saved.size(); ++i) saved[i] = whole[i] - saved[i];
    GradientSite site{.layer = layer, .role = role, .alone_whole = alone.back(), .saved_whole = saved.back()};
    site.loss_saved = low.loss - without.loss;
    alone.pop_back(), saved.pop_back();
    site.alone = std::move(alone), site.saved = std::move(saved);
    result.sites.push_back(std::move(site));
  };
  const std::optional<Quantization>& q = recipe.quantization;
  for (const std::string& layer : layers_of(model, q ? 2 : 1)) {
    if (!q) add(layer, "all ops", nullptr);
    for (const auto& [name, field] : kRoles)
      if (q && (*q.*field)) add(layer, name, field);
  }
  return result;
}

std::string to_string(const GradientSites& sites, std::size_t rows) {
  std::string text =
      fmt::format("error of all gradients: {:.3g} of their size\n{:<28}  {:<10}  {:>9}  {:>9}  {:>10}  {}\n",
                  sites.error_whole, "layer", "operand", "alone", "saves", "saves loss", "most in");
  std::vector<GradientSite> order = sites.sites;
  double saved = 0;
  for (const GradientSite& s : order) saved += s.loss_saved;
  std::ranges::stable_sort(order, std::greater{}, &GradientSite::alone_whole);
  for (std::size_t i = 0; i < std::min(rows, order.size()); ++i) {
    const GradientSite& s = order[i];
    std::size_t most = 0;  // index of the largest error
    for (std::size_t k = 1; k < s.alone.size(); ++k)
      if (s.alone[k] * sites.size[k] > s.alone[most] * sites.size[most]) most = k;
    text += fmt::format("{:<28}  {:<10}  {:>9.3g}  {:>9.3g}  {:>+10.2e}  {}\n", s.layer, s.role, s.alone_whole,
                        s.saved_whole, s.loss_saved,
                        s.alone_whole == 0 ? "-" : fmt::format("{} {:.3g}", sites.parameters[most], s.alone[most]));
  }
  if (order.size() > rows) text += fmt::format("and {} more\n", order.size() - rows);
  return text + fmt::format("loss {:.9g}, in f32 {:.9g}: difference {:+.3e}; the sites one by one save {:+.3e}\n",
                            sites.loss, sites.exact_loss, sites.loss - sites.exact_loss, saved);
}

std::string to_csv(const GradientSites& sites) {
  std::string text = "layer,operand,parameter,alone,saved,loss_saved\n";
  for (const GradientSite& s : sites.sites)
    for (std::size_t i = 0; i < sites.parameters.size(); ++i)
      text += fmt::format("{},{},{},{:.6g},{:.6g},{:.6g}\n", csv_field(s.layer), csv_field(s.role),
                          csv_field(sites.parameters[i]), s.alone[i], s.saved[i], s.loss_saved);
  return text;
}

}  // namespace gradual::inspect
