// SOAP (Vyas et al. 2024, arXiv 2409.11321): AdamW in the eigenbasis of Shampoo's matrices (Gupta et al. 2018, arXiv
// 1802.09568). Written with ops: slower than AdamW's fused step.
#pragma once

#include <cstdint>
#include <optional>

#include "optimizer.h"

namespace gradual::optim {

struct SoapOptions {
  double lr = 3e-3;
  double beta1 = 0.95;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.01;                  // w *= 1 - lr * weight_decay, after the update
  std::optional<double> statistics_beta = {};  // of the matrices L and R, in [0, 1); unset: beta2
  std::int64_t refresh_every = 10;             // updates from one refresh of the bases to the next; at least 1
  std::int64_t largest_dim = 10000;            // a longer dimension has no matrix: its basis is the identity
  UpdateOptions precision = {};
};

// For a matrix, with t counted per parameter from its second step on; the first one starts L, R and their bases, and
// does not move the weight:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) (QL^T g QR)^2;
//   w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) QL ((QL^T m QR) / (sqrt(v) + eps)) QR^T;  w *= 1 - lr weight_decay;
//   L = beta L + (1 - beta) g g^T;  R = beta R + (1 - beta) g^T g.
// The columns of QL and QR are eigenvectors of L and R: those of the first step's, then every refresh_every updates one
// step of the power iteration (optim/eigenbasis.h), which also sorts v's rows and columns by estimated eigenvalues. A
// tensor of more dimensions has a matrix for each; parameters of one or none are updated by the same formulas without a
// basis; the first step leaves them as well. m and v are kept as UpdateOptions says; the matrices are computed and kept
// in f32 (f64 for f64 parameters), whatever a recipe rounds. The formulas are those of the authors' program
// (github.com/nikhilvyas/SOAP), which keeps m in the eigenbasis. The CPU computes the bases: a GPU's step waits for it.
class Soap final : public Optimizer {
 public:
  explicit Soap(const std::vector<Tensor>& params, const SoapOptions& options = {})
      : Soap(one_group(params), options) {}
  explicit Soap(std::vector<ParamGroup> groups, const SoapOptions& options = {});
  Choices choices() const override;

 protected:
  Tensor update(const Update& u) override;
  // "covariance.0", "basis.0", "covariance.1", ..: the number is that of the dimension.
  std::vector<Statistic> statistics(const Tensor& param) const override;

 private:
  std::vector<int> rotated_dims(const Tensor& param) const;
  void gather(const Update& u) const;
  void refresh(const Update& u) const;

  std::optional<double> statistics_beta_;
  std::int64_t refresh_every_;
  std::int64_t largest_dim_;
};

}  // namespace gradual::optim
