// Measures which site of a step spoils which gradient. It runs the step with one site alone in low precision, and with
// all sites but one. The result is exact; a shadow's shares are correct to second order.
//
//   const auto sites = inspect::gradient_sites(amp::recipe("mxfp4"), model, [&] { return loss_of(model(x), y); });
//   std::puts(to_string(sites).c_str());
//
// A site is a layer and a role. Products outside of all layers with weights are sites too: under autocast by their
// module or the program's line; of a quantised recipe all together, by the line if there is one.
#pragma once

#include "../amp/recipe.h"
#include "layer_names.h"

namespace gradual::inspect {

// Roles of a quantised recipe: the operands of the three products, and update, the rounding of the gradient that the
// optimizer reads. Such a recipe stores outputs in f32. Roles of an autocast recipe: all_ops, and in layers of products
// their operands (also where backward reads them) and stored_outputs (results and their gradients).
enum class SiteRole : std::uint8_t {
  forward_x,
  forward_w,
  dgrad_dy,
  dgrad_w,
  wgrad_x,
  wgrad_dy,
  update,
  all_ops,
  operands,
  stored_outputs
};
std::string_view to_string(SiteRole role);  // "forward x"

struct GradientSite {
  std::string layer = {};
  SiteRole role = SiteRole::all_ops;
  // Relative errors |g - g32| / |g32| of each parameter's gradient; 0 if |g32| is below 1e-6 of all gradients, as for a
  // bias before batch norm. alone: with only this site in low precision. saved: the decrease of the whole recipe's
  // error with this site in f32; negative if errors cancel.
  std::vector<double> alone = {};
  std::vector<double> saved = {};
  // for all gradients as one vector
  double alone_whole = 0;
  double saved_whole = 0;
  double loss_saved = 0;  // the whole recipe's loss minus the loss with this site in f32: a replay, not an estimate
};

// Two sites in f32. together: what they save beyond the sum of what each saves.
struct SitePair {
  GradientSite a = {};
  GradientSite b = {};
  double loss_saved = 0;
  double together = 0;
};

struct GradientSites {
  std::vector<std::string> parameters = {};  // those that require a gradient
  std::vector<double> size = {};             // |g32| by parameter
  std::vector<double> error = {};            // of the whole recipe, by parameter
  double error_whole = 0;
  double loss = 0;                       // of the whole recipe
  double exact_loss = 0;                 // and with all sites in f32
  std::vector<GradientSite> sites = {};  // in the order of the layers
  // Pairs of the sites that save most, by |together|, if rest() is more than a tenth of the difference of the losses.
  std::vector<SitePair> pairs = {};
  // The difference of the losses minus what the sites one by one save (of an autocast recipe: its layers).
  double rest() const;
};

// Runs two steps per site, two more, and one per pair. The model has f32 parameters. Parameters, gradients, buffers and
// the default generator are restored. histories: the state of delayed scaling from which each step starts. Error for a
// recipe that is neither quantised nor autocast.
GradientSites gradient_sites(const amp::Recipe& recipe, nn::Module& model, const std::function<Tensor()>& loss,
                             const amp::QuantizationState* histories = nullptr);

// The sites by alone_whole, largest first.
std::string to_string(const GradientSites& sites, std::size_t rows = 20, const LayerNames& name = {});
std::string to_csv(const GradientSites& sites);  // RFC 4180: one line per site and parameter

}  // namespace gradual::inspect
