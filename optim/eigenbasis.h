// Eigenvectors of symmetric matrices, for SOAP. They are computed in double on the CPU, wherever the matrix is, by one
// thread, and rounded once to the matrix's dtype. A matrix with Inf or NaN has eigenvectors of NaN.
#pragma once

#include "../core/tensor/tensor.h"

namespace gradual::optim {

// The eigenvectors of `symmetric` [n, n], a column each, from the largest eigenvalue to the smallest: [n, n]. Error if
// the solver does not converge.
Tensor eigenvectors(const Tensor& symmetric);

struct RefinedBasis {
  Tensor vectors;  // [n, n]
  Tensor order;    // i64 [n]: column i of `vectors` follows column order[i] of the basis before
};
// One step of the power iteration for all columns (arXiv 2409.11321, algorithm 4): the columns of `basis` [n, n] are
// sorted by falling estimates of their eigenvalues, the diagonal of basis^T symmetric basis; then `vectors` is the Q of
// the QR decomposition of symmetric * basis.
RefinedBasis refined_eigenvectors(const Tensor& symmetric, const Tensor& basis);

}  // namespace gradual::optim
