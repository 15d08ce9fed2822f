// Which site of a step spoils which gradient, by running the step again and again: with one site alone in low
// precision, and with all sites but one. Exact, where a shadow's shares are of second order.
//
//   const auto sites = inspect::gradient_sites(amp::recipe("mxfp4"), model, [&] { return loss_of(model(x), y); });
//   std::puts(to_string(sites).c_str());
//
// A site of a quantised recipe is a layer and an operand of one of its three products: "forward x", "forward w",
// "dgrad dy", "dgrad w", "wgrad x", "wgrad dy". A site of an autocast recipe is a layer with all of its ops.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "../amp/recipe.h"

namespace gradual::inspect {

struct GradientSite {
  std::string layer = {}, role = {};
  // Relative errors |g - g32| / |g32| of each parameter's gradient. 0 where |g32| is below 1e-6 of all gradients, as it
  // is of a bias before batch norm. alone: with this site alone low. saved: how much smaller the whole recipe's error
  // is with this site in f32; negative where errors cancel.
  std::vector<double> alone = {}, saved = {};
  double alone_whole = 0, saved_whole = 0;  // of all gradients as one vector
};

struct GradientSites {
  std::vector<std::string> parameters = {};  // those that require a gradient
  std::vector<double> size = {};             // |g32| by parameter
  std::vector<double> error = {};            // of the whole recipe, by parameter
  double error_whole = 0;
  std::vector<GradientSite> sites = {};  // in the order of the layers
};

// Two steps a site, and two more. The model has f32 parameters; parameters, gradients, buffers and the default
// generator are as before afterwards. histories: the state of delayed scaling to start each step from. Error for a
// recipe that is neither quantised nor autocast.
GradientSites gradient_sites(const amp::Recipe& recipe, nn::Module& model, const std::function<Tensor()>& loss,
                             const amp::QuantizationState* histories = nullptr);

// The sites by alone_whole, the largest first.
std::string to_string(const GradientSites& sites, std::size_t rows = 20);
std::string to_csv(const GradientSites& sites);  // RFC 4180: a line a site and parameter

}  // namespace gradual::inspect
