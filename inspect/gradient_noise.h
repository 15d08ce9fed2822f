// A weight gradient against the noise that the quantisers of its operands put into it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/observe/observer.h"
#include "mirror.h"

namespace gradual::inspect {

// Of the weights of one layer, over the steps observed. The noise is the product (wgrad) of the rounded operands minus
// that of the same operands before rounding, both in f64. An operand that forward kept as codes counts as exact.
struct GradientNoise {
  std::string layer = {};  // the module's path
  std::int64_t elements = 0;
  double gradient_squares = 0, noise_squares = 0;

  double ratio() const;  // |gradient| / |noise|; Inf: no noise
  // Training gains little from gradients below sqrt(3) times their noise (arXiv 2505.19115, sec. 5).
  bool drowns() const { return gradient_squares < 3 * noise_squares; }
};
// "fc1: |gradient| is 1.2 times its quantisation noise, below sqrt(3)".
std::string to_string(const GradientNoise& noise);

// A part of UpdateMeter; also an observer of its own.
class GradientNoiseMeter final : public Observer {
 public:
  void before(const OpCall& call) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  const std::vector<GradientNoise>& layers() const { return layers_; }
  void clear() { layers_.clear(); }

 private:
  std::vector<bool> frames_;  // custom ops that run: whether they are rewritten
  Mirror given_, exact_;      // operands after rounding and before it
  std::vector<GradientNoise> layers_;
};

}  // namespace gradual::inspect
