// The operands of matmul and linear as batches of matrices, wherever their elements lie.
#pragma once

#include <cstdint>
#include <utility>

#include "../tensor/shape.h"

namespace gradual::cpu {

// [.., rows, cols] with strides in elements.
struct MatrixBatch {
  Shape sizes, strides;
  // A vector is one row, or one column.
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
  // Where matrix i of a batch begins; its dims are repeated where they are 1 or absent here.
  std::int64_t offset(std::int64_t i, const Shape& batch) const {
    std::int64_t offset = 0;
    for (int d = batch.size() - 1, own = sizes.size() - 3; d >= 0; --d, --own) {
      if (own >= 0 && sizes[own] != 1) offset += i % batch[d] * strides[own];
      i /= batch[d];
    }
    return offset;
  }
};

// Where all batches of a are multiplied by one matrix, and their rows lie as those of one tall matrix, they become it.
inline void merge_rows(MatrixBatch& a, const MatrixBatch& b, Shape& batch) {
  Shape lead = a.sizes;
  Shape lead_strides = a.strides;
  lead.erase(lead.size() - 1);
  lead_strides.erase(lead_strides.size() - 1);
  Shape rows = batch;
  rows.push_back(a.rows());
  Shape merged;
  if (b.sizes.size() > 2 || !(lead == rows) || !view_strides(lead, lead_strides, {numel(lead)}, merged)) return;
  // rows that overlap, as repeated ones do, make no matrix that every library reads
  const std::int64_t count = numel(lead);
  if (count > 1 && merged[0] < (a.strides.back() == 1 ? a.cols() : 1)) return;
  if (count > 1 && a.cols() > 1 && a.strides.back() != 1 && a.strides.back() < count) return;
  a.sizes = {count, a.cols()};
  a.strides = {merged[0], a.strides.back()};
  batch = {};
}

}  // namespace gradual::cpu
