// The operands of matmul and linear as batches of matrices with any strides.
#pragma once

#include <cstdint>
#include <utility>

#include "../tensor/shape.h"

namespace gradual::cpu {

// Sizes [.., rows, cols]; strides in elements.
struct MatrixBatch {
  Shape sizes, strides;
  // Makes a vector a matrix of one row or one column.
  void insert_dim(int at) {
    sizes.insert(at, 1);
    strides.insert(at, 0);
  }
  void transpose() {
    const int n = sizes.size();
    std::swap(sizes[n - 1], sizes[n - 2]);
    std::swap(strides[n - 1], strides[n - 2]);
  }
  std::int64_t rows() const { return sizes[sizes.size() - 2]; }
  std::int64_t cols() const { return sizes.back(); }
  // The offset of matrix i of a batch. Dims that are 1 or absent here are broadcast.
  std::int64_t offset(std::int64_t i, const Shape& batch) const {
    std::int64_t offset = 0;
    for (int d = batch.size() - 1, own = sizes.size() - 3; d >= 0; --d, --own) {
      if (own >= 0 && sizes[own] != 1) offset += i % batch[d] * strides[own];
      i /= batch[d];
    }
    return offset;
  }
};

// Makes matrices of the operands of matmul, or of linear, whose y has the sizes `y`. Returns the sizes of the batch.
inline Shape as_matrices(MatrixBatch& a, MatrixBatch& b, bool linear, Shape y) {
  if (linear) b.transpose();
  if (a.sizes.size() == 1) a.insert_dim(0);
  else y.erase(y.size() - 1);
  if (b.sizes.size() == 1) b.insert_dim(1);
  else y.erase(y.size() - 1);
  return y;
}

// Merges the batches of a into one tall matrix if one matrix multiplies all of them and their rows have one stride.
inline void merge_rows(MatrixBatch& a, const MatrixBatch& b, Shape& batch) {
  Shape lead = a.sizes;
  Shape lead_strides = a.strides;
  lead.erase(lead.size() - 1);
  lead_strides.erase(lead_strides.size() - 1);
  Shape rows = batch;
  rows.push_back(a.rows());
  Shape merged;
  if (b.sizes.size() > 2 || !(lead == rows) || !view_strides(lead, lead_strides, {numel(lead)}, merged)) return;
  // not every library reads a matrix whose rows overlap, for example repeated rows
  const std::int64_t count = numel(lead);
  if (count > 1 && merged[0] < (a.strides.back() == 1 ? a.cols() : 1)) return;
  if (count > 1 && a.cols() > 1 && a.strides.back() != 1 && a.strides.back() < count) return;
  a.sizes = {count, a.cols()};
  a.strides = {merged[0], a.strides.back()};
  batch = {};
}

}  // namespace gradual::cpu
