// Quantised contractions: the quantizer of each operand of each product. A training step has three products per layer:
// forward x W, dgrad dy W and wgrad x dy. Each quantises its operands anew, along the axis that it contracts.
//
//   Quantization q = amp::recipe("mxfp8").quantization.value();
//   amp::PolicyTable table;
//   auto state = std::make_shared<amp::QuantizationState>(q);
//   amp::quantize_contractions(table, state);            // the ops of kQuantisedOps are rewritten
//   { const amp::Autocast scope({.table = table}); y = model(x); }
//
// (A RecipeRun does all of this.) Products are exact and sums are f32: two operands of at most 12 significant bits
// multiply without rounding. Outputs, norms, softmax and losses stay in high precision, and so does attention unless
// the quantisation says how (amp/attention.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/files/state_dict.h"
#include "../core/formats/accumulator.h"
#include "../core/quantize/quantizer.h"
#include "attention.h"
#include "autocast.h"
#include "outlier_channels.h"
#include "rewrite.h"
#include "site_name.h"

namespace gradual::amp {

// The quantizers of a step; operands without one stay in high precision.
struct Quantization {
  std::optional<Quantizer> forward_x = {};
  std::optional<Quantizer> forward_w = {};
  std::optional<Quantizer> dgrad_dy = {};
  std::optional<Quantizer> dgrad_w = {};
  std::optional<Quantizer> wgrad_x = {};
  std::optional<Quantizer> wgrad_dy = {};
  // Tensors kept between steps, of at least two dims: gradients of parameters before the optimizer reads them,
  // parameters and masters after its step, Adam's moments (stored as codes; SGD's momentum is the first).
  std::optional<Quantizer> weight_gradient = {};
  std::optional<Quantizer> weight = {};
  std::optional<Quantizer> master = {};
  std::optional<Quantizer> moment1 = {};
  std::optional<Quantizer> moment2 = {};
  // The result of every op of a step, rounded once: activations, gradients, losses, what the optimizer and in-place ops
  // write. Parameters begin rounded. A rewritten product is one op. Goes for all `modules`.
  std::optional<Quantizer> result = {};
  // The inside of scaled_dot_product_attention, block by block. Unset: in high precision, by the fused op if one suits.
  std::optional<AttentionPrecision> attention = {};
  std::optional<Accumulator> accumulator = {};  // of the three products; unset: that of the surrounding scope, else f32
  // Modules, by path and including their children, that follow another recipe's quantisation: {"head", "fp32"} excludes
  // one. The optimizer's moments are the same for all modules.
  // A RecipeRun accepts "first" and "last" for the model's first and last layers.
  std::vector<std::pair<std::string, std::string>> modules = {};
  // Replaces the policy of the six operands' quantizers. Recipes of 8 bits and fewer saturate, so that an infinite
  // gradient becomes the largest value; saturate_finite hands it on. A loss scale's check sees both (hidden operands).
  std::optional<Overflow> overflow = {};
  // Each channel of x is multiplied by a power of two before it is rounded and divided by it afterwards, exactly; with
  // it the channel's largest magnitude is from half of the format's largest value up to that value (Smooth-SwiGLU,
  // Fishman et al. 2024, arXiv 2409.12517, for the input of the layer after a SwiGLU; here for all layers). Not with a
  // Hadamard transform of x, requantize, or a convolution that rounds windows.
  bool smooth = false;
  // The channels of x with the largest numbers, and the columns of W that they meet, have another quantizer, in forward
  // and in the gradient of W. Of products with a parameter. A RecipeRun counts the steps; without one none is chosen.
  // Not with learned scales and gradients that are not straight.
  std::optional<OutlierChannels> outliers = {};
  // Backward rounds x and W again from forward's codes instead of from the originals, as on hardware that keeps 8 bits.
  // Not for convolutions that round windows (blocks that do not divide the channels): these have no codes of x.
  bool requantize = false;
  bool save_codes = true;  // save operands with one scale per tensor as codes for backward (no second derivatives)

  bool operator==(const Quantization&) const = default;
};
// The quantizers by name, in the order of the fields.
struct QuantizerField {
  const char* name;
  std::optional<Quantizer> Quantization::*quantizer;
};
inline constexpr QuantizerField kQuantizerFields[] = {{"forward_x", &Quantization::forward_x},
                                                      {"forward_w", &Quantization::forward_w},
                                                      {"dgrad_dy", &Quantization::dgrad_dy},
                                                      {"dgrad_w", &Quantization::dgrad_w},
                                                      {"wgrad_x", &Quantization::wgrad_x},
                                                      {"wgrad_dy", &Quantization::wgrad_dy},
                                                      {"weight_gradient", &Quantization::weight_gradient},
                                                      {"weight", &Quantization::weight},
                                                      {"master", &Quantization::master},
                                                      {"moment1", &Quantization::moment1},
                                                      {"moment2", &Quantization::moment2},
                                                      {"result", &Quantization::result}};
inline constexpr std::size_t kOperandFields = 6;  // the first ones, of the operands of products
// By Role: the quantizers of an operand in its two products, in the order of a training step.
inline constexpr std::optional<Quantizer> Quantization::*kOperandQuantizers[kRoles][2] = {
    {&Quantization::forward_x, &Quantization::wgrad_x},
    {&Quantization::forward_w, &Quantization::dgrad_w},
    {&Quantization::dgrad_dy, &Quantization::wgrad_dy},
    {&Quantization::weight_gradient, &Quantization::weight_gradient}};
// Throws Error that names the wrong field.
void check_valid(const Quantization& quantization);
// True if it, or a recipe that it names for modules, learns scales.
bool learns_scales(const Quantization& quantization);
bool learned(const std::optional<Quantizer>& quantizer);  // false: none, or another scale
// True if the quantizer makes finite numbers of a tensor with Inf or with NaN: by saturation, or because its format or
// its scales have neither.
bool hides_nonfinite(const Quantizer& quantizer);

// Operands that share a quantizer, in order, and the describe() text of that quantizer.
struct OperandGroup {
  std::vector<std::string> operands;
  std::string quantizer;
};
std::vector<OperandGroup> describe(const Quantization& quantization);

// What rounding the operands of wgrad did to the gradient of a weight: g became g + n.
struct GradientNoise {
  double squares = 0;  // |n|^2
  double excess = 0;   // |g + n|^2 - |g|^2

  GradientNoise& operator+=(const GradientNoise& other) {
    squares += other.squares;
    excess += other.excess;
    return *this;
  }
};
using NoiseOfGradients = std::map<std::uint64_t, GradientNoise>;  // by storage_id() of the weight

// The state of delayed scaling: amax histories of x, w and dy for each module, and of attention's operands. One object
// serves one model.
class QuantizationState : Pinned {
 public:
  // A product of a module. The weight that it multiplies identifies it.
  struct Site {
    SiteName name;
    AmaxHistory x = {};
    AmaxHistory w = {};
    AmaxHistory dy = {};
    std::uint64_t weight = 0;  // its storage_id(); 0: of activations, or not yet used
    QuantizationState* state = nullptr;
    const Quantization* quantization = nullptr;  // that of its module; null: high precision
    // The steps of learned scales of x and w, f32 []; undefined: not learned. 0: its first value is not yet known.
    Tensor x_step = {};
    Tensor w_step = {};
    ChannelSizes channels = {};  // of x, for Quantization::outliers
    // Of a site of activations whose module runs attention with delayed scales; null: none has run.
    std::shared_ptr<AttentionHistories> attention = {};

    // The chosen channels of x, bool [channels]. Undefined: none yet, or the quantisation has no outlier channels; a
    // choice of an earlier phase then waits for a later one.
    Tensor outliers() const;
    // Takes in what the calls of a step have staged of an operand: amaxes into the history, a step's first value.
    void take_staged(Role role);
  };

  // modules: what the entries of quantization.modules mean, in order (none: high precision), if not the recipes that
  // they name.
  explicit QuantizationState(Quantization quantization, std::vector<std::optional<Quantization>> modules = {});
  const Quantization& quantization() const { return quantization_; }
  // The quantisation of a module: that of the last entry of Quantization::modules that names it, else quantization().
  // Null: high precision.
  const Quantization* of_module(const std::string& path) const;
  // How the attention of a module computes; null: in high precision.
  const AttentionPrecision* attention_of_module(const std::string& path) const;
  // True if this quantisation, or that of a module, says how attention computes.
  bool rounds_attention() const;
  // True if this quantisation, or that of a module, learns scales.
  bool learns_scales() const;
  // The site of the module whose forward runs, for the product with `weight`.
  Site& site(const Tensor& weight);
  // The histories of attention in the module whose forward runs, which are those of its site of activations.
  std::shared_ptr<AttentionHistories> attention_histories();
  const std::vector<std::unique_ptr<Site>>& sites() const { return sites_; }
  // The parameters that hold the steps of learned scales of the products with `weight` or a slice of it. A RecipeRun
  // registers them in the module (amp/learned_scales.h); products of a quantisation that learns scales are an Error
  // without them.
  void set_steps(const Tensor& weight, const Tensor& x_step, const Tensor& w_step);
  void take_steps(const QuantizationState& other);
  // Takes over the histories of sites that have the same quantisation here and there, and the steps.
  void take_histories(const QuantizationState& other);
  // True if this quantisation, or that of a module, has outlier channels.
  bool has_outliers() const;
  // Whether the running step measures the channels of a product, and those of any product: the same on every rank of a
  // data-parallel run, whichever products it has met.
  bool measures_channels(const Quantization& of_product) const;
  bool measures_channels() const;
  // After the update of a step: outlier channels that its numbers decide are chosen. True if some have changed.
  bool choose_outliers();
  // The steps that have ended: the number of the running one. A RecipeRun counts the calls of its update(): updates
  // that its loss scale skips, and phases without outliers, too.
  void set_ended_steps(std::int64_t steps) { ended_steps_ = steps; }

  // What the calls that come are for. It decides what they do to the histories.
  enum class Purpose : std::uint8_t {
    training,      // they stage amaxes. Histories take these in when the outermost autocast region (x, w) or backward
                   // (dy) ends
    part_of_step,  // the same, but the caller advances the histories: a step of several shards, or one that may fail
    evaluation     // histories do not change. A RecipeRun sets it while its model is in eval mode
  };
  Purpose purpose = Purpose::training;
  void end_forward();
  void end_backward();
  // After a forward or backward that threw: histories are as they were before it.
  void forget_staged();

  // With `watch`, operands of a training step that hold Inf or NaN and whose quantizer hides that are counted on their
  // device, so that a loss scale's check sees them. A RecipeRun with a loss scale sets it.
  bool watch = false;
  void look_at(const Tensor& operand, const Quantizer& quantizer);
  bool hides(const Quantizer& quantizer);                                          // hides_nonfinite(), computed once
  bool looks_at(const Quantizer& quantizer) { return watch && hides(quantizer); }  // if not, look_at() does nothing
  // The number of these operands since the last call, i64 [1]; undefined if no quantizer of an operand hides them.
  Tensor take_hidden() { return std::exchange(hidden_, Tensor()); }
  const Tensor& hidden() const { return hidden_; }
  void put_hidden(Tensor count) { hidden_ = std::move(count); }  // for the next take_hidden()

  // With `measures`, each product that is the gradient of a weight and rounds an operand is computed without rounding
  // too, and the difference is noise. Operands that forward kept only as codes (requantize; random ones, which would be
  // drawn again) count as exact. The noise of several products adds up as if it were independent of each other and of
  // other products' gradients. A RecipeRun sets it where its schedule needs it.
  bool measures = false;
  void add_noise(std::uint64_t weight, const GradientNoise& noise);
  NoiseOfGradients take_noise();
  const NoiseOfGradients& noise() const { return noise_; }
  void put_noise(NoiseOfGradients noise);

  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  Site& find(const SiteName& name);
  // Whether has(q) is true of this quantisation, or of that of a module.
  template <class F> bool any(const F& has) const;
  Quantization quantization_;
  std::vector<std::optional<Quantization>> overrides_;  // of quantization_.modules
  std::vector<std::unique_ptr<Site>> sites_;
  std::map<std::string, std::vector<const void*>> weights_;  // of each module, in order of first use
  struct Steps {
    Tensor weight, x, w;
  };
  std::vector<Steps> steps_;
  std::vector<std::pair<Quantizer, bool>> hides_;  // what hides_nonfinite() said
  Tensor hidden_;
  NoiseOfGradients noise_;
  std::int64_t ended_steps_ = 0;
};

// The products that a recipe quantises. conv2d_backward_input is here as conv_transpose2d.
inline constexpr OpId kQuantisedOps[] = {OpId::matmul, OpId::linear, OpId::conv2d, OpId::conv2d_backward_input};
// Sets a table's policies of these ops, and of attention if the state rounds it, to quantised rewrites. A call stages
// amaxes if its gradients are recorded; with `unrecorded` every call does (a checkpointed segment records nothing yet).
// Modules that the quantisation excludes have these ops in f32, and attention in the dtype of its inputs, whatever the
// table's policies were.
void quantize_contractions(PolicyTable& table, const std::shared_ptr<QuantizationState>& state,
                           bool unrecorded = false);
// The same for an autocast region, which is one forward for `state`. No state: a new one.
void quantize_region(AutocastOptions& options, const Quantization& quantization,
                     std::shared_ptr<QuantizationState> state);

}  // namespace gradual::amp
