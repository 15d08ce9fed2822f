// OutControl of TetraJet-v2 (Chen et al. 2025, arXiv 2510.27527): the channels of x with the largest numbers are kept
// in a wider format than the others. Read: the abstract and the authors' code, not the paper's text.
//
// x = x' + X, where X has the outlier channels and x' the others, with zeros elsewhere; W = w' + W alike, along the
// channels that forward contracts. Forward is Q(x') Q(w')^T + H(X) H(W)^T, and the gradient of W is
// Q(dy)^T Q(x') + H(dy)^T H(X): Q are the quantizers of the product's operands, H the wider one. The gradient of x,
// whose product contracts no channels of x, is as without it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "../core/files/state_dict.h"
#include "../core/quantize/quantizer.h"

namespace gradual::amp {

// In the steps [from, from + window) of the training the sizes of the channels of each x are measured: the sum of the
// norms that a channel has in each call of forward whose norms are all finite. From step from + window on the largest
// ones are outliers, and they stay so in later phases of a schedule until others are chosen. Theirs for language
// models: 10% of the channels, by steps 501 to 550 of 12,505, in MXFP8.
struct OutlierChannels {
  double share = 0.1;  // of the channels, rounded to a number of at least 1; above 0 and below 1
  int from = 0;        // at least 0
  int window = 50;     // at least 1
  int period = 0;      // above 0, at least window: measured and chosen again every `period` steps; 0: once
  // H. An operand that the product's own quantizer leaves in high precision stays there. Unset: f32.
  std::optional<Quantizer> quantizer = {};

  bool operator==(const OutlierChannels&) const = default;
};
// Error naming the wrong field.
void check_valid(const OutlierChannels& options);
// "10% of the channels of x, chosen by steps 0 to 49: e4m3fn, blocks of 32 with e8m0 scales (floor)"
std::string describe(const OutlierChannels& options);
// Whether step number `step`, counted from 0, is measured, and whether outliers are chosen after it.
bool measures_in(const OutlierChannels& options, std::int64_t step);
bool chooses_after(const OutlierChannels& options, std::int64_t step);

// One number of each channel [n], shaped to a tensor of `dims` dims with the channels along `dim`: 1 along the others.
Tensor along_dim(const Tensor& channels, int dims, int dim);

// The channels of the x of one product. Sizes are f64 sums of norms that are rounded to f32, so that the sum of shards
// is the same in any order as long as sizes lie within a factor of 2^29 / calls of each other.
class ChannelSizes {
 public:
  // Stages the norms of a call's channels, which lie along the dim `channel`. Nothing, if one is not finite: a loss
  // scale may skip the step.
  void stage(const Tensor& x, int channel);
  // Stages sizes of another shard. Error for another number of channels.
  void stage(const Tensor& sizes);
  const Tensor& staged() const { return staged_; }  // f64 [channels]; undefined: none
  void forget_staged() { staged_ = Tensor(); }
  void take_staged();
  // Makes the largest of them outliers; of equal ones the first. Sizes of 0 are none, and if all are 0, or there are
  // no sizes, nothing changes. Begins anew. True if the outliers are others than before.
  bool choose(const OutlierChannels& options);
  // Begins anew without a choice.
  void forget_sizes() { sizes_ = Tensor(); }
  // bool [channels]; undefined: none yet.
  const Tensor& outliers() const { return outliers_; }

  void add_to(StateDict& state) const;
  static ChannelSizes from(const StateDict& state);

 private:
  Tensor staged_, sizes_, outliers_;  // on the CPU
};

}  // namespace gradual::amp
