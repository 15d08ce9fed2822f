// Norms of the errors of rows: how far a whole row of a tensor may be from its exact numbers. Internal to tolerance().
//
// Errors of single elements add up as if all of them were largest at once. The norm of a row's errors grows by the norm
// of what an op does to rows, which is much less: by the largest singular value of a matrix instead of the sums of its
// magnitudes.
#pragma once

#include "recorded_ops.h"

namespace gradual::lab {

// Elements belong to groups, which are the rows of the tensors that were written. A row of another view may have parts
// of several groups: the squares of their norms add up.
class ErrorRows {
 public:
  // Of t's rows along its last dim, f64 [.., 1], with the errors `e` of its elements. columns: along the one before it,
  // [.., 1, n].
  Tensor rows(const RecordedTensor& t, const Tensor& e) const;
  Tensor columns(const RecordedTensor& t, const Tensor& e) const;
  // rows: f64 [.., 1].
  void write(const RecordedTensor& t, const Tensor& rows);
  void forget(const RecordedOp& op);

 private:
  RecordedNumbers norms_, groups_;
  double next_ = 1;
};

// The norms along the last dim, which stays.
Tensor norm_of_rows(const Tensor& t);
// At least the largest singular value of each matrix [.., k, n], f64 [.., 1, 1]. G = B B^T has the eigenvalues of which
// it is the root, and no eigenvalue of a power of G exceeds its Frobenius norm.
Tensor largest_singular_value(const Tensor& matrices);

}  // namespace gradual::lab
