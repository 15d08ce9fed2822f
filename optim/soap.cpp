#include "soap.h"

#include <cmath>
#include <string>

#include "../core/ops/compute_mode.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "eigenbasis.h"

namespace gradual::optim {
namespace {

// The statistics of the k-th rotated dimension.
std::size_t covariance_of(std::size_t k) { return 2 * k; }
std::size_t basis_of(std::size_t k) { return 2 * k + 1; }

// x as rows along `dim`: [numel / n, n].
Tensor rows_along(const Tensor& x, int dim) { return reshape(transpose(x, dim, -1), {-1, x.size(dim)}); }

// Contracts `dim` of x, of n elements, with the first dimension of `matrix` [n, n].
Tensor multiplied(const Tensor& x, int dim, const Tensor& matrix) {
  const Shape sizes = transpose(x, dim, -1).sizes();
  return transpose(reshape(matmul(rows_along(x, dim), cast(matrix, x.dtype())), sizes), dim, -1);
}

enum class Direction : std::uint8_t { into_basis, out_of_basis };

Tensor rotated(Tensor x, const std::vector<int>& dims, std::span<const Tensor> statistics, Direction direction) {
  for (std::size_t k = 0; k < dims.size(); ++k) {
    const Tensor& basis = statistics[basis_of(k)];
    x = multiplied(x, dims[k], direction == Direction::into_basis ? basis : transpose(basis, 0, 1));
  }
  return x;
}

void check_options(const SoapOptions& o) {
  if (const auto& beta = o.statistics_beta; beta && !(*beta >= 0 && *beta < 1))
    throwf("optimizer: soap: statistics_beta {} is out of range; it must be in [0, 1)", *beta);
  if (o.refresh_every < 1)
    throwf("optimizer: soap: refresh_every {} is out of range; it must be at least 1", o.refresh_every);
  if (o.largest_dim < 1)
    throwf("optimizer: soap: largest_dim {} is out of range; it must be at least 1", o.largest_dim);
}

}  // namespace

Soap::Soap(std::vector<ParamGroup> groups, const SoapOptions& o)
    : Optimizer("soap", {"exp_avg", "exp_avg_sq"}, std::move(groups),
                {.lr = o.lr, .weight_decay = o.weight_decay, .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps},
                o.precision),
      statistics_beta_(o.statistics_beta),
      refresh_every_(o.refresh_every),
      largest_dim_(o.largest_dim) {
  check_options(o);
}

Optimizer::Choices Soap::choices() const {
  return {{"statistics_beta", statistics_beta_ ? fmt::format("{}", *statistics_beta_) : "beta2"},
          {"refresh_every", fmt::format("{}", refresh_every_)},
          {"largest_dim", fmt::format("{}", largest_dim_)}};
}

// A dimension of one element has the basis 1.
std::vector<int> Soap::rotated_dims(const Tensor& param) const {
  std::vector<int> dims;
  if (param.dim() < 2) return dims;
  for (int d = 0; d < param.dim(); ++d)
    if (param.size(d) > 1 && param.size(d) <= largest_dim_) dims.push_back(d);
  return dims;
}

std::vector<Optimizer::Statistic> Soap::statistics(const Tensor& param) const {
  std::vector<Statistic> out;
  for (const int d : rotated_dims(param)) {
    const std::int64_t n = param.size(d);
    out.push_back({fmt::format("covariance.{}", d), {n, n}});
    out.push_back({fmt::format("basis.{}", d), {n, n}});
  }
  return out;
}

// Adds the gradient's products with itself to the matrices.
void Soap::gather(const Update& u) const {
  const StageScope exact(chain().results, nullptr);
  const std::vector<int> dims = rotated_dims(u.weight);
  const double beta = statistics_beta_.value_or(u.group.beta2.value());
  for (std::size_t k = 0; k < dims.size(); ++k) {
    Tensor& covariance = u.statistics[covariance_of(k)];
    const Tensor rows = rows_along(cast(u.gradient, covariance.dtype()), dims[k]);
    covariance = beta * covariance + (1 - beta) * matmul(transpose(rows, 0, 1), rows);
  }
}

void Soap::refresh(const Update& u) const {
  const StageScope exact(chain().results, nullptr);
  const std::vector<int> dims = rotated_dims(u.weight);
  Tensor& second = u.state[1];
  for (std::size_t k = 0; k < dims.size(); ++k) {
    Tensor& basis = u.statistics[basis_of(k)];
    const RefinedBasis refined = refined_eigenvectors(u.statistics[covariance_of(k)], basis);
    basis = refined.vectors;
    second = index_select(second, dims[k], refined.order);
  }
}

Tensor Soap::update(const Update& u) {
  const MatmulPrecisionScope exact(MatmulPrecision::f32);
  const std::vector<int> dims = rotated_dims(u.weight);
  if (u.step == 1) {
    gather(u);
    for (std::size_t k = 0; k < dims.size(); ++k)
      u.statistics[basis_of(k)] = eigenvectors(u.statistics[covariance_of(k)]);
    return clone(u.weight);
  }
  const double lr = u.group.lr.value();
  const double beta1 = u.group.beta1.value();
  const double beta2 = u.group.beta2.value();
  const std::int64_t t = u.step - 1;
  Tensor& first = u.state[0];
  Tensor& second = u.state[1];
  first = beta1 * first + (1 - beta1) * u.gradient;
  const Tensor gradient = rotated(u.gradient, dims, u.statistics, Direction::into_basis);
  second = beta2 * second + (1 - beta2) * square(gradient);
  const Tensor momentum = rotated(first, dims, u.statistics, Direction::into_basis);
  const Tensor step = momentum / (sqrt(second) + u.group.eps.value());
  const auto count = static_cast<double>(t);
  const double rate = lr * std::sqrt(1 - std::pow(beta2, count)) / (1 - std::pow(beta1, count));
  Tensor next = u.weight - rate * rotated(step, dims, u.statistics, Direction::out_of_basis);
  const double decay = u.group.weight_decay.value();
  if (decay != 0) next = next * (1 - lr * decay);
  gather(u);
  if (t % refresh_every_ == 0) refresh(u);
  return next;
}

}  // namespace gradual::optim
