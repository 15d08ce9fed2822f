#include "eigenbasis.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "../core/support/throwf.h"

// As core/cpu/gemm_eigen.h, with which the linker may share functions.
#define EIGEN_GEMM_TO_COEFFBASED_THRESHOLD 1
#define EIGEN_NO_IO
#include <Eigen/Eigenvalues>
#include <Eigen/QR>

namespace gradual::optim {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::MatrixXd matrix_of(const Tensor& t) {
  const std::vector<double> values = t.to_vector<double>();
  return Eigen::Map<const RowMajor>(values.data(), t.size(0), t.size(1));
}

Tensor tensor_of(const Eigen::MatrixXd& m, const Tensor& like) {
  std::vector<double> values(static_cast<std::size_t>(m.size()));
  Eigen::Map<RowMajor>(values.data(), m.rows(), m.cols()) = m;
  return from_data(values, like.sizes(), {.dtype = like.dtype(), .device = like.device()});
}

Tensor nan_like(const Tensor& t) {
  return full(t.sizes(), std::numeric_limits<double>::quiet_NaN(), {.dtype = t.dtype(), .device = t.device()});
}

std::vector<std::int64_t> by_falling(const Eigen::VectorXd& values) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(values.size()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return values[a] > values[b]; });
  return order;
}

}  // namespace

Tensor eigenvectors(const Tensor& symmetric) {
  const Eigen::MatrixXd matrix = matrix_of(symmetric);
  if (!matrix.allFinite()) return nan_like(symmetric);
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(matrix);
  if (solver.info() != Eigen::Success)
    throwf("optimizer: the eigenvectors of a matrix {} did not converge", to_string(symmetric.sizes()));
  return tensor_of(solver.eigenvectors().rowwise().reverse(), symmetric);
}

RefinedBasis refined_eigenvectors(const Tensor& symmetric, const Tensor& basis) {
  const Eigen::MatrixXd matrix = matrix_of(symmetric);
  const Eigen::MatrixXd before = matrix_of(basis);
  const Eigen::MatrixXd product = matrix * before;
  const bool finite = product.allFinite();
  const Eigen::VectorXd estimates = before.cwiseProduct(product).colwise().sum();
  const std::vector<std::int64_t> order =
      by_falling(finite ? estimates : Eigen::VectorXd(Eigen::VectorXd::Zero(estimates.size())));
  const Tensor indices = from_data(order, {symmetric.size(0)}, {.dtype = DType::i64, .device = symmetric.device()});
  if (!finite) return {nan_like(symmetric), indices};
  Eigen::MatrixXd sorted(product.rows(), product.cols());
  for (Eigen::Index i = 0; i < sorted.cols(); ++i) sorted.col(i) = product.col(order[static_cast<std::size_t>(i)]);
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(sorted);
  const Eigen::MatrixXd vectors = qr.householderQ();
  return {tensor_of(vectors, symmetric), indices};
}

}  // namespace gradual::optim
