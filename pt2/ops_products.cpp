// Products of matrices and tensors.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/support/throwf.h"
#include "ops_table.h"

namespace gradual::pt2 {
namespace {

Value product(const Arguments& a) { return matmul(a.tensor(0), a.tensor(1)); }
// matmul with vectors, as torch.matmul has it.
Value matmul_any(const Arguments& a) {
  Tensor x = a.tensor(0);
  Tensor y = a.tensor(1);
  const bool row = x.dim() == 1;
  const bool column = y.dim() == 1;
  if (row) x = unsqueeze(x, 0);
  if (column) y = unsqueeze(y, 1);
  Tensor out = matmul(x, y);
  if (column) out = squeeze(out, -1);
  if (row) out = squeeze(out, column ? -1 : -2);
  return out;
}
// beta self + alpha (a b).
Value add_product(const Arguments& a) {
  Tensor out = matmul(a.tensor(1), a.tensor(2));
  if (a.number(4) != 1) out = mul(out, a.number(4));
  if (a.number(3) == 0) return out;
  const Tensor self = a.number(3) == 1 ? a.tensor(0) : mul(a.tensor(0), a.number(3));
  return add(self, out);
}
Value add_vector_product(const Arguments& a) {
  Tensor out = squeeze(matmul(a.tensor(1), unsqueeze(a.tensor(2), 1)), 1);
  if (a.number(4) != 1) out = mul(out, a.number(4));
  return add(mul(a.tensor(0), a.number(3)), out);
}
Value outer(const Arguments& a) { return mul(unsqueeze(a.tensor(0), 1), unsqueeze(a.tensor(1), 0)); }
Value einsum_row(const Arguments& a) { return einsum(a.text(0), a.tensors(1)); }

Value kron(const Arguments& a) {
  Tensor x = a.tensor(0);
  Tensor y = a.tensor(1);
  while (x.dim() < y.dim()) x = unsqueeze(x, 0);
  while (y.dim() < x.dim()) y = unsqueeze(y, 0);
  Shape outer_sizes;
  Shape inner_sizes;
  Shape sizes;
  for (int d = 0; d < x.dim(); ++d) {
    outer_sizes.push_back(x.size(d));
    outer_sizes.push_back(1);
    inner_sizes.push_back(1);
    inner_sizes.push_back(y.size(d));
    sizes.push_back(x.size(d) * y.size(d));
  }
  return reshape(mul(reshape(x, outer_sizes), reshape(y, inner_sizes)), sizes);
}
// self other dims_self dims_other
Value tensordot(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& y = a.tensor(1);
  const auto order = [&](const Tensor& t, int dims, bool summed_last, Shape& rest, std::int64_t& count) {
    Shape front;
    Shape chosen;
    for (const std::int64_t d : a.sizes(dims)) chosen.push_back(wrap_dim(d, t.dim(), "tensordot"));
    count = 1;
    for (const std::int64_t d : chosen) count *= t.size(static_cast<int>(d));
    for (int d = 0; d < t.dim(); ++d) {
      if (std::ranges::find(chosen, d) != chosen.end()) continue;
      front.push_back(d);
      rest.push_back(t.size(d));
    }
    Shape all = summed_last ? front : chosen;
    for (const std::int64_t d : summed_last ? chosen : front) all.push_back(d);
    return permute(t, all);
  };
  Shape sizes;
  std::int64_t left = 0;
  std::int64_t right = 0;
  const Tensor rows = order(x, 2, true, sizes, left);
  const Tensor columns = order(y, 3, false, sizes, right);
  if (left != right) a.fail(3, "dims of the same sizes as those of self");
  return reshape(matmul(reshape(rows, {-1, left}), reshape(columns, {right, -1})), sizes);
}

// Rows of self [S, in], sorted by expert, times the weight [E, in, out] of their expert; `offs` are the experts' ends.
Value grouped_product(const Arguments& a) {
  const Tensor& x = a.tensor(0);
  const Tensor& weight = a.tensor(1);
  std::vector<Tensor> parts;
  std::int64_t start = 0;
  std::int64_t expert = 0;
  for (const std::int64_t end : a.tensor(2).to_vector<std::int64_t>()) {
    if (end < start || end > x.size(0)) a.fail(2, "ends that do not fall, up to the number of rows");
    if (end > start) parts.push_back(matmul(narrow(x, 0, start, end - start), select(weight, 0, expert)));
    start = end;
    ++expert;
  }
  if (start < x.size(0)) parts.push_back(zeros({x.size(0) - start, weight.size(2)}, options_of(x)));
  return parts.size() == 1 ? parts[0] : cat(parts, 0);
}

constexpr OpRow kProductRows[] = {
    {"aten.matmul.default", "self other", matmul_any},
    {"aten.mm.default", "self mat2", product},
    {"aten.bmm.default", "self mat2", product},
    {"aten.mv.default", "self vec", matmul_any},
    {"aten.dot.default", "self tensor", matmul_any},
    {"aten.outer.default", "self vec2", outer},
    {"aten.addmm.default", "self mat1 mat2 beta=1 alpha=1", add_product},
    {"aten.baddbmm.default", "self batch1 batch2 beta=1 alpha=1", add_product},
    {"aten.addbmm.default", "self batch1 batch2 beta=1 alpha=1",
     [](const Arguments& a) -> Value {
       const Tensor out = sum(matmul(a.tensor(1), a.tensor(2)), {0});
       return add(mul(a.tensor(0), a.number(3)), mul(out, a.number(4)));
     }},
    {"aten.addmv.default", "self mat vec beta=1 alpha=1", add_vector_product},
    {"aten.kron.default", "self other", kron},
    {"aten.tensordot.default", "self other dims_self dims_other", tensordot},
    {"aten.ger.default", "self vec2", outer},
    {"aten.inner.default", "self other",
     [](const Arguments& a) -> Value {
       const bool rows = a.tensor(0).dim() > 0 && a.tensor(1).dim() > 0;
       if (!rows) return mul(a.tensor(0), a.tensor(1));
       return a.tensor(1).dim() == 1 ? Value(sum(mul(a.tensor(0), a.tensor(1)), {-1}))
                                     : Value(linear(a.tensor(0), a.tensor(1)));
     }},
    {"aten.einsum.default", "equation tensors path=None", einsum_row},
    {"transformers.grouped_mm_fallback.default", "input weight offs", grouped_product},
};

}  // namespace

std::span<const OpRow> product_rows() { return kProductRows; }

}  // namespace gradual::pt2
