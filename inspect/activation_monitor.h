// Signs of outliers, step by step, before a low-precision training diverges: the kurtosis of the activations that enter
// products ("Towards Fully FP8 GEMM LLM Training at Scale", arXiv 2505.20524, whose abstract and summaries were read),
// and of attention the largest logit (arXiv 2302.05442) and the entropy of the probabilities (arXiv 2303.06296; these
// two were not read).
//
//   inspect::ActivationMonitor monitor;
//   { const ObserverScope scope(monitor); run.step(..); }
//   std::puts(monitor.to_string().c_str());
//
// All numbers are of forward, before the recipe rounds them, and computed in f64. A recomputed segment counts once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/observe/observer.h"
#include "layer_names.h"

namespace gradual::inspect {

// The operand of linear layers and convolutions.
inline constexpr const char* kLayerInput = "x";

// Sums over the elements of an activation; features are its last dim, of a convolution the channels.
struct ActivationRow {
  std::string layer = {};  // the module's path
  // kLayerInput of linear layers and convolutions, "q", "k" and "v" of an attention that one op computes; of a matmul
  // "a 64x16" or "b 16x64" with its last two sizes. Matmuls of a layer with equal sizes are added up: those of an
  // attention in parts, where a sequence is as long as a head is wide.
  std::string operand = {};
  std::int64_t elements = 0;
  double squares = 0;
  double fourths = 0;
  double largest = 0;                 // magnitude
  std::vector<double> features = {};  // sum of the squares of each

  // mean(x^4) / mean(x^2)^2: 3 of normal numbers around 0, `elements` of a single one that is not 0. NaN if all are 0.
  double kurtosis() const;
  // The same of the features' norms: mean_j(s_j^4) / mean_j(s_j^2)^2 with s_j^2 the mean square of feature j ("kurtosis
  // over neuron activation norms", arXiv 2405.19279): 1 if all are alike, the number of features if one has everything.
  double feature_kurtosis() const;
};

// Sums over the queries of an attention, or the rows of another softmax along the last dim, that see a key.
struct ProbabilityRow {
  std::string layer = {};
  bool attention = false;  // false: a softmax of another kind, or of an attention that no fused op computes
  std::int64_t queries = 0;
  double largest_logit = 0;        // with the mask, after the scale
  std::vector<double> heads = {};  // sum of the entropies of each head, in nats; heads are the dim before the queries'
  std::vector<double> queries_of_heads = {};

  // All are NaN if a logit is.
  double entropy() const;         // the mean over queries
  double lowest_entropy() const;  // of the head in which that is lowest
};

class ActivationMonitor final : public Observer {
 public:
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;

  // Over all calls since clear(), in the order of first appearance.
  const std::vector<ActivationRow>& activations() const { return activations_; }
  const std::vector<ProbabilityRow>& probabilities() const { return probabilities_; }
  void clear();
  std::string to_string(const LayerNames& name = {}) const;

 private:
  void add_activation(const char* layer, const std::string& operand, const Tensor& x, int feature_dim);
  void add_attention(const OpCall& call, const AttentionAttrs& attrs, const char* layer);
  void add_probabilities(const char* layer, bool attention, const Tensor& logits, const Tensor& probabilities);

  std::vector<ActivationRow> activations_;
  std::vector<ProbabilityRow> probabilities_;
};

}  // namespace gradual::inspect
