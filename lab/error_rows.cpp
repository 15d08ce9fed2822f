#include "error_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"

namespace gradual::lab {
namespace {

RecordedTensor in_f64(RecordedTensor t) {
  t.dtype = DType::f64;
  return t;
}

RecordedTensor transposed(RecordedTensor t) {
  const int last = t.sizes.size() - 1;
  std::swap(t.sizes[last], t.sizes[last - 1]);
  std::swap(t.strides[last], t.strides[last - 1]);
  return t;
}

Shape of_rows(Shape sizes) {
  if (sizes.empty()) return {1};
  sizes[sizes.size() - 1] = 1;
  return sizes;
}

// The squares of the norms of a row's groups.
double square_of_groups(const double* norms, const double* groups, std::int64_t n) {
  std::vector<std::pair<double, double>> met;
  for (std::int64_t i = 0; i < n; ++i)
    if (met.empty() || met.back().first != groups[i]) met.emplace_back(groups[i], norms[i]);
  std::ranges::sort(met);
  double sum = 0;
  for (std::size_t i = 0; i < met.size(); ++i)
    if (i == 0 || met[i].first != met[i - 1].first) sum += met[i].second * met[i].second;
  return sum;
}

}  // namespace

Tensor norm_of_rows(const Tensor& t) { return sqrt(sum(square(t), {-1}, true)); }

Tensor ErrorRows::rows(const RecordedTensor& t, const Tensor& e) const {
  constexpr double kOfF64 = 1 + 0x1p-40;
  const Tensor of_elements = t.sizes.empty() ? reshape(abs(e), {1}) : norm_of_rows(e);
  if (t.sizes.empty() || !norms_.knows(t)) return of_elements;
  const Tensor norms = norms_.read(in_f64(t));
  const Tensor groups = groups_.read(in_f64(t));
  const std::int64_t n = t.sizes[t.sizes.size() - 1];
  const double copies = t.strides[t.strides.size() - 1] == 0 ? static_cast<double>(n) : 1;  // of an expanded element
  std::vector<double> found(static_cast<std::size_t>(of_elements.numel()));
  for (std::size_t r = 0; r < found.size(); ++r) {
    const auto first = static_cast<std::int64_t>(r) * n;
    const double square = square_of_groups(norms.data<double>() + first, groups.data<double>() + first, n);
    found[r] = std::sqrt(copies * square) * kOfF64;
  }
  return minimum(from_data(found, of_elements.sizes(), {.dtype = DType::f64}), of_elements);
}

Tensor ErrorRows::columns(const RecordedTensor& t, const Tensor& e) const {
  return contiguous(rows(transposed(t), contiguous(e.transpose(-1, -2))).transpose(-1, -2));
}

void ErrorRows::write(const RecordedTensor& t, const Tensor& rows) {
  if (!t.defined()) return;
  const Shape sizes = of_rows(t.sizes);
  std::vector<double> numbers(static_cast<std::size_t>(rows.numel()));
  for (double& number : numbers) number = next_++;
  const Tensor groups = from_data(numbers, sizes, {.dtype = DType::f64});
  const auto wide = [&](const Tensor& of) { return reshape(of, sizes).expand(t.sizes.empty() ? sizes : t.sizes); };
  norms_.write(in_f64(t), reshape(contiguous(wide(rows)), t.sizes));
  groups_.write(in_f64(t), reshape(contiguous(wide(groups)), t.sizes));
}

void ErrorRows::forget(const RecordedOp& op) {
  norms_.forget(op);
  groups_.forget(op);
}

Tensor largest_singular_value(const Tensor& matrices) {
  constexpr int kSquarings = 5;
  constexpr double kOfF64 = 1 + 0x1p-30;
  const Tensor turned = matrices.transpose(-1, -2);
  const bool wide = matrices.size(-2) <= matrices.size(-1);
  Tensor power = wide ? matmul(matrices, turned) : matmul(turned, matrices);
  const auto norm = [](const Tensor& m) { return maximum(sqrt(sum(square(m), {-2, -1}, true)), 1e-300); };
  Tensor most = norm(power);
  power = div(power, most);
  for (int i = 1; i <= kSquarings; ++i) {
    power = matmul(power, power);
    const Tensor size = norm(power);
    power = div(power, size);
    most = mul(most, exp(mul(log(size), std::ldexp(1.0, -i))));
  }
  return mul(sqrt(most), kOfF64);
}

}  // namespace gradual::lab
