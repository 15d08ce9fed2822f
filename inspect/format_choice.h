// Chooses a format for each layer: the cost of a layer's products in each format, the harm that the format does there,
// and the assignment of least harm within a budget of cost.
#pragma once

#include "../amp/recipe.h"

namespace gradual::inspect {

// The cost of a step, summed over layers and their three products (forward, dgrad, wgrad), and over the numbers inside
// of attention and what reads them:
//   bits   multiplications times the bits of both operands, with their scales
//   kept   bytes of what backward reads: x and w; of attention q, k, v, the output and the logsumexp
//   moved  bytes of the operands of each product
enum class Cost : std::uint8_t { bits, kept, moved };
Cost cost_from_name(const std::string& name);  // Error for another name

// A module that multiplies by a weight, or a field of the model's attention (amp/attention.h), in all its attentions:
// then `layer` is its name, as "attention.q", and x its elements.
struct FormatSite {
  std::string layer = {};
  const amp::AttentionField* attention = nullptr;  // null: a module
  double reads = 0;                                // of attention: how often x is read
  double kept = 0;                                 // of attention: elements that backward reads
  // elements
  double x = 0;
  double w = 0;
  double y = 0;
  double multiplications = 0;  // of forward; the other two products have as many
  bool dgrad = false;          // its input needs a gradient
  // by format
  std::vector<double> cost = {};
  std::vector<double> harm = {};
};
double cost_of(const FormatSite& site, const amp::Recipe& format, Cost cost);

// What a field of attention is rounded by in the format of a recipe: the quantizer of x, or of dy for gradients,
// without transforms, and with current scales in place of delayed and learned ones. `softmax` has no scale: its numbers
// are single ones. None: f32.
std::optional<Quantizer> attention_quantizer(const amp::AttentionField& field, const amp::Recipe& format);

// The sites of a step, in the order of forward. Sorts the formats (fp32 and quantised recipes) by the cost of a model
// entirely in each. The harm of a format at a site has two parts: the squared error of all gradients that the site
// alone causes (inspect/gradient_sites.h), and its share of the error in the loss (inspect/shadow.h). Each is relative
// to that of the cheapest format at all sites; SNIP adds the two in the same way (arXiv 2602.01410). The model has f32
// parameters, on any device, and is in training mode. Error if no layer multiplies by a weight. with_attention: the
// fields of attention follow as sites, whose error in the loss is the difference that rounding this field alone makes;
// Error if the model has no attention.
std::vector<FormatSite> format_sites(nn::Module& model, const std::function<Tensor()>& loss,
                                     std::vector<amp::Recipe>& formats, Cost cost, bool with_attention = false);

using Assignment = std::vector<std::size_t>;  // by site, the index of its format
double cost_of(const std::vector<FormatSite>& sites, const Assignment& assignment);

// For each budget the assignment of least harm; the cheapest assignment if the budget allows none. Costs are rounded up
// to multiples of 1/4000 of the most expensive assignment; apart from that the result is exact.
std::vector<Assignment> knapsack(const std::vector<FormatSite>& sites, const std::vector<double>& budgets);

}  // namespace gradual::inspect
