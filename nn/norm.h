// Normalisation layers. In half models amp keeps layers derived from Norm in f32.
#pragma once

#include "../core/ops/ops.h"
#include "module.h"

namespace gradual::nn {

struct Norm : Layer {};

// While modes().sum_over_parts sums over the parts of a batch that run through the model apart, the statistics of
// BatchNorm layers are those of the whole batch, computed with ordinary ops in f32 (f64 for f64).

struct BatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;            // of the new value in the running statistics
  bool affine = true;               // weight and bias
  bool track_running_stats = true;  // false: uses statistics of the batch in eval too
};

// Normalises over every dim except the second, channels (Ioffe and Szegedy 2015). In training it uses the batch's
// statistics and updates the running ones: running = (1 - momentum) running + momentum batch, with the unbiased
// variance. A recomputation does not update them. In eval it uses the running ones.
// Parameters "weight" (1) and "bias" (0), buffers "running_mean" (0), "running_var" (1), "num_batches_tracked" (i64).
class BatchNorm : public Norm {
 public:
  Tensor forward(const Tensor& x) override { return run(x, nullptr, {}); }
  Tensor forward_fused(const Operand& x, const Fusion& fusion, const Attrs& second, const Tensor&) override {
    return run(*x.tensor, &fusion, second);
  }

  Tensor& weight;
  Tensor& bias;
  Tensor& running_mean;
  Tensor& running_var;
  Tensor& num_batches_tracked;

 protected:
  BatchNorm(std::int64_t channels, int min_dims, int max_dims, const BatchNormOptions& options);

 private:
  Tensor run(const Tensor& x, const Fusion* fusion, const Attrs& second);
  Outputs over_parts(const Tensor& x, bool relu, double& count) const;

  BatchNormOptions options_;
  int min_dims_, max_dims_;
};

struct BatchNorm1d : BatchNorm {  // x [N, C] or [N, C, L]
  explicit BatchNorm1d(std::int64_t channels, BatchNormOptions options = {}) : BatchNorm(channels, 2, 3, options) {}
  std::optional<OpId> ends_in() const override { return only<BatchNorm1d>(OpId::batch_norm); }
};

struct BatchNorm2d : BatchNorm {  // x [N, C, H, W]
  explicit BatchNorm2d(std::int64_t channels, BatchNormOptions options = {}) : BatchNorm(channels, 4, 4, options) {}
  std::optional<OpId> ends_in() const override { return only<BatchNorm2d>(OpId::batch_norm); }
};

// The base of LayerNorm and RMSNorm.
class TrailingNorm : public Norm {
 public:
  Tensor& weight;

 protected:
  TrailingNorm(const char* layer, const Shape& normalized, bool affine, double eps);
  int dims(const Tensor& x) const;  // number of normalised dims; Error if their sizes differ from `normalized`
  Shape normalized_;
  double eps_;
};

struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;  // weight (1) and bias (0), of the normalised shape
  bool bias = true;    // with affine
};

// Normalises over the trailing dims, which must have the sizes `normalized` (Ba et al. 2016).
struct LayerNorm : TrailingNorm {
  explicit LayerNorm(const Shape& normalized, LayerNormOptions options = {});
  explicit LayerNorm(std::int64_t size, LayerNormOptions options = {}) : LayerNorm(Shape{size}, options) {}
  Tensor forward(const Tensor& x) override;

  Tensor& bias;
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;  // weight (1) and bias (0), [channels]
};

// Normalises x [N, channels, ..] over each of `groups` groups of channels and all positions (Wu and He 2018), in f32
// (f64 for f64), and rounds once. Error if the groups do not divide the channels.
class GroupNorm : public Norm {
 public:
  GroupNorm(std::int64_t groups, std::int64_t channels, GroupNormOptions options = {});
  Tensor forward(const Tensor& x) override;

  Tensor& weight;
  Tensor& bias;

 private:
  std::int64_t groups_, channels_;
  double eps_;
};

struct RMSNormOptions {
  double eps = 1e-6;
  bool affine = true;
};

// x / sqrt(mean(x^2) + eps) * weight over the trailing dims (Zhang and Sennrich 2019).
struct RMSNorm : TrailingNorm {
  explicit RMSNorm(const Shape& normalized, RMSNormOptions o = {})
      : TrailingNorm("RMSNorm", normalized, o.affine, o.eps) {}
  explicit RMSNorm(std::int64_t size, RMSNormOptions options = {}) : RMSNorm(Shape{size}, options) {}
  Tensor forward(const Tensor& x) override;
};

}  // namespace gradual::nn
