#include "ordered_kernels.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "../core/ops/conv_by_gemm.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "softmax_rows.h"

namespace gradual::lab {

Tensor SumDraws::product(const Tensor& a, const Tensor& b) const { return order_of(a.size(1)).product(a, b); }
Tensor SumDraws::of_columns(const Tensor& x) const { return order_of(x.size(0)).total(x); }
Tensor SumDraws::of_rows(const Tensor& x) const { return reshape(of_columns(x.transpose(0, 1)), {-1, 1}); }

namespace {

using Results = std::optional<gradual::Outputs>;
using Inputs = std::vector<Tensor>;

// As rows of the last dim.
Tensor rows_of(const Tensor& t) { return reshape(contiguous(t), {-1, t.size(-1)}); }

Tensor as_output(const Tensor& t, const RecordedOp& op, std::size_t k) {
  return reshape(contiguous(t), op.outputs[k].sizes);
}

double count(std::int64_t n) { return static_cast<double>(n); }

// --- products --------------------------------------------------------------------------------------------------------

// A vector is a row on the left, a column on the right.
Results matmul_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const bool row = in[0].dim() == 1;
  const Tensor a = row ? reshape(in[0], {1, -1}) : in[0];
  const Tensor b = in[1].dim() == 1 ? reshape(in[1], {-1, 1}) : in[1];
  if (b.dim() == 2) return {{as_output(draws.product(rows_of(a), b), op, 0)}};
  const std::int64_t m = a.size(-2);
  const std::int64_t n = a.size(-1);
  const std::int64_t k = b.size(-1);
  const Shape& sizes = op.outputs[0].sizes;
  const auto matrices = [&](const Tensor& t, std::int64_t rows, std::int64_t columns) {
    Shape all;
    for (int d = 0; d < sizes.size() - (row ? 1 : 2); ++d) all.push_back(sizes[d]);
    all.push_back(rows);
    all.push_back(columns);
    return reshape(contiguous(t.expand(all)), {-1, rows, columns});
  };
  const Tensor left = matrices(a, m, n);
  const Tensor right = matrices(b, n, k);
  const OrderedSum order = draws.order_of(n);
  std::vector<Tensor> products;
  for (std::int64_t i = 0; i < left.size(0); ++i)
    products.push_back(order.product(left.select(0, i), right.select(0, i)));
  return {{as_output(stack(products, 0), op, 0)}};
}

// Factors [m, n] and [n, k] of a product.
struct Factors {
  Tensor rows, columns;
};

// A bias [k], unless it is undefined, is a term among the others, wherever it comes.
Factors with_bias(const Tensor& rows, const Tensor& columns, const Tensor& bias) {
  if (!bias.defined()) return {rows, columns};
  return {cat({rows, ones({rows.size(0), 1})}, 1), cat({columns, reshape(contiguous(bias), {1, -1})}, 0)};
}

Results linear_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const Factors f = with_bias(rows_of(in[0]), in[1].transpose(0, 1), in.size() > 2 ? in[2] : Tensor());
  return {{as_output(draws.product(f.rows, f.columns), op, 0)}};
}

Results linear_backward_weight_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const Tensor dy = rows_of(in[0]);
  gradual::Outputs out{{as_output(draws.product(dy.transpose(0, 1), rows_of(in[1])), op, 0)}};
  if (op.outputs[1].defined()) out[1] = as_output(draws.of_columns(dy), op, 1);
  return out;
}

// Any convolution or gradient of one: products of unfolded windows, of all groups in the same order. A bias is a term.
Results convolution_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const Tensor bias = in.size() > 2 ? in[2] : Tensor();
  std::optional<OrderedSum> order;
  const auto product = [&](const Tensor& rows, const Tensor& columns, const ConvPart& part) {
    const std::int64_t channels = columns.size(1);
    const Factors f = with_bias(rows, columns, bias.defined() ? bias.narrow(0, part.group * channels, channels) : bias);
    if (!order) order.emplace(draws.order_of(f.rows.size(1)));
    return order->product(f.rows, f.columns);
  };
  constexpr std::int64_t kWholeGroup = 0;
  const auto& attrs = op.attrs.get<ConvAttrs>();
  return {{conv_by_products(op.op, in[0], in[1], attrs, op.outputs[0].sizes, product, kWholeGroup)}};
}

// --- sums ------------------------------------------------------------------------------------------------------------

// The elements of each sum as a column, [terms, sums].
Tensor columns_of_terms(const RecordedOp& op, const Tensor& x) {
  const auto& a = op.attrs.get<ReduceAttrs>();
  Shape dims;
  std::int64_t terms = 1;
  for (const bool reduced : {true, false})
    for (int d = 0; d < x.dim(); ++d) {
      if ((a.dims >> d & 1) != (reduced ? 1U : 0U)) continue;
      dims.push_back(d);
      if (reduced) terms *= x.size(d);
    }
  return reshape(contiguous(x.permute(dims)), {terms, -1});
}

Results sum_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const Tensor terms = columns_of_terms(op, in[0]);
  if (terms.size(0) < 2) return {};
  Tensor total = draws.of_columns(terms);
  if (op.op == OpId::mean) total = div(total, count(terms.size(0)));
  return {{as_output(total, op, 0)}};
}

// The root of a sum of squares.
Results norm_of_order_2(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const Tensor terms = columns_of_terms(op, in[0]);
  if (terms.size(0) < 2 || op.attrs.get<ReduceAttrs>().value != 2) return {};
  return {{as_output(sqrt(draws.of_columns(square(terms))), op, 0)}};
}

// Rows of src that have the same index are added up.
Results index_add_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const auto& a = op.attrs.get<IndexAttrs>();
  if (a.dim != 0 || in[0].dim() < 1 || in[0].numel() == 0) return {};
  std::map<std::int64_t, std::vector<std::int64_t>> places;
  const auto indices = contiguous(in[1]).to_vector<std::int64_t>();
  for (std::size_t i = 0; i < indices.size(); ++i) places[indices[i]].push_back(static_cast<std::int64_t>(i));
  const Tensor rows = reshape(contiguous(in[0]), {in[0].size(0), -1});
  const Tensor y = zeros({a.size, rows.size(1)});
  for (const auto& [index, of] : places) {
    const Tensor terms =
        index_select(rows, 0, from_data(of, {static_cast<std::int64_t>(of.size())}, {.dtype = DType::i64}));
    y.narrow(0, index, 1).copy_(draws.of_columns(terms));
  }
  return {{as_output(y, op, 0)}};
}

// --- softmax ---------------------------------------------------------------------------------------------------------

// x minus the largest of its row, -Inf where a causal mask is.
Tensor shifted(const RecordedOp& op, const Tensor& x) {
  const bool causal = op.attrs.is<DimAttrs>() && op.attrs.get<DimAttrs>().causal;
  const Tensor masked = causal ? causally_masked(x) : x;
  const Tensor rows = rows_of(masked);
  return sub(rows, amax(rows, {-1}, true));
}

Results softmax_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  if (!is_along_last(op)) return {};
  const Tensor x = shifted(op, in[0]);
  const Tensor e = exp(x);
  const Tensor total = draws.of_rows(e);
  return {{as_output(op.op == OpId::softmax ? div(e, total) : sub(x, log(total)), op, 0)}};
}

Results softmax_backward_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  if (!is_along_last(op)) return {};
  const Tensor dy = rows_of(in[0]);
  const Tensor y = rows_of(in[1]);
  if (op.op == OpId::log_softmax_backward) return {{as_output(sub(dy, mul(exp(y), draws.of_rows(dy))), op, 0)}};
  return {{as_output(mul(y, sub(dy, draws.of_rows(mul(dy, y)))), op, 0)}};
}

Results cross_entropy_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const auto& a = op.attrs.get<CrossEntropyAttrs>();
  if (in[0].dim() != 2 || a.label_smoothing != 0) return {};
  const Tensor x = shifted(op, in[0]);
  const Tensor log_p = sub(x, log(draws.of_rows(exp(x))));
  const Tensor counts = ne(in[1], static_cast<double>(a.ignore_index));
  const Tensor classes = reshape(where(counts, in[1], 0), {-1, 1});
  const Tensor losses = where(counts, neg(reshape(gather(log_p, 1, classes), {-1})), 0);
  if (a.reduction == Reduction::none) return {{losses, log_p}};
  Tensor loss = draws.of_columns(reshape(losses, {-1, 1}));
  if (a.reduction == Reduction::mean) loss = div(loss, std::max(1.0, sum(cast(counts, DType::f64)).item()));
  return {{as_output(loss, op, 0), log_p}};
}

// --- norms -----------------------------------------------------------------------------------------------------------

// x as [vectors, elements]: a vector is what has a mean and a variance of its own, a row or a channel.
struct Vectors {
  bool channels = false;
  std::int64_t elements = 0;
  Shape sizes;  // of x

  Tensor of(const Tensor& x) const {
    if (!channels) return reshape(contiguous(x), {-1, elements});
    Shape order{1};
    for (int d = 0; d < x.dim(); ++d)
      if (d != 1) order.push_back(d);
    return reshape(contiguous(x.permute(order)), {x.size(1), -1});
  }
  Tensor back(const Tensor& vectors) const {
    if (!channels) return reshape(vectors, sizes);
    Shape there{sizes[1], sizes[0]};
    Shape order{1, 0};
    for (int d = 2; d < sizes.size(); ++d) {
      there.push_back(sizes[d]);
      order.push_back(d);
    }
    return contiguous(reshape(vectors, there).permute(order));
  }
  // A weight of each channel, or of each element of a row.
  Tensor weight(const Tensor& t) const { return reshape(contiguous(t), channels ? Shape{-1, 1} : Shape{1, -1}); }
  Tensor statistic(const Tensor& t) const { return reshape(contiguous(t), {-1, 1}); }
};

std::optional<Vectors> vectors_of(const RecordedOp& op, const Tensor& x) {
  const auto& a = op.attrs.get<NormAttrs>();
  const bool batch = op.op == OpId::batch_norm || op.op == OpId::batch_norm_backward;
  if (batch && (!a.training || a.relu)) return {};
  Vectors v{.channels = batch, .elements = 1, .sizes = x.sizes()};
  for (int d = 0; d < x.dim(); ++d)
    if (batch ? d != 1 : d >= x.dim() - a.dims) v.elements *= x.size(d);
  return v;
}

Results norm_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const std::optional<Vectors> v = vectors_of(op, in[0]);
  if (!v) return {};
  const bool centred = op.op != OpId::rms_norm;
  const double n = count(v->elements);
  const Tensor x = v->of(in[0]);
  const Tensor mean = centred ? div(draws.of_rows(x), n) : Tensor();
  const Tensor deviation = centred ? sub(x, mean) : x;
  const Tensor variance = div(draws.of_rows(square(deviation)), n);
  const Tensor root = rsqrt(add(variance, op.attrs.get<NormAttrs>().eps));
  Tensor y = mul(deviation, root);
  if (in[1].defined()) y = mul(y, v->weight(in[1]));
  if (centred && in[2].defined()) y = add(y, v->weight(in[2]));
  gradual::Outputs out{{v->back(y)}};
  if (centred) out[1] = as_output(mean, op, 1);
  const std::size_t last = centred ? 2 : 1;
  out[static_cast<int>(last)] = as_output(root, op, last);
  return out;
}

// r (g - mean g - x' mean(g x')) with g = dy w, x' = (x - mean) r.
Results norm_backward_in_order(const RecordedOp& op, const Inputs& in, const SumDraws& draws) {
  const std::optional<Vectors> v = vectors_of(op, in[1]);
  if (!v) return {};
  const bool centred = op.op != OpId::rms_norm_backward;
  const Tensor dy = v->of(in[0]);
  const Tensor x = v->of(in[1]);
  const Tensor root = v->statistic(in[centred ? 4 : 3]);
  const Tensor normal = mul(centred ? sub(x, v->statistic(in[3])) : x, root);
  const Tensor g = in[2].defined() ? mul(dy, v->weight(in[2])) : dy;
  const double n = count(v->elements);
  Tensor dx = sub(g, mul(normal, div(draws.of_rows(mul(g, normal)), n)));
  if (centred) dx = sub(dx, div(draws.of_rows(g), n));
  gradual::Outputs out{{v->back(mul(dx, root))}};
  const Tensor terms[] = {Tensor(), mul(dy, normal), dy};
  for (std::size_t k = 1; k < kMaxOutputs; ++k) {
    if (!op.outputs[k].defined()) continue;
    const Tensor total = v->channels ? draws.of_rows(terms[k]) : draws.of_columns(terms[k]);
    out[static_cast<int>(k)] = as_output(total, op, k);
  }
  return out;
}

struct Kernel {
  OpId op;
  Results (*run)(const RecordedOp& op, const Inputs& in, const SumDraws& draws);
};
constexpr Kernel kKernels[] = {
    {OpId::matmul, matmul_in_order},
    {OpId::linear, linear_in_order},
    {OpId::linear_backward_weight, linear_backward_weight_in_order},
    {OpId::conv2d, convolution_in_order},
    {OpId::conv2d_backward_input, convolution_in_order},
    {OpId::conv2d_backward_weight, convolution_in_order},
    {OpId::sum, sum_in_order},
    {OpId::mean, sum_in_order},
    {OpId::norm, norm_of_order_2},
    {OpId::index_add, index_add_in_order},
    {OpId::softmax, softmax_in_order},
    {OpId::log_softmax, softmax_in_order},
    {OpId::softmax_backward, softmax_backward_in_order},
    {OpId::log_softmax_backward, softmax_backward_in_order},
    {OpId::cross_entropy, cross_entropy_in_order},
    {OpId::layer_norm, norm_in_order},
    {OpId::rms_norm, norm_in_order},
    {OpId::batch_norm, norm_in_order},
    {OpId::layer_norm_backward, norm_backward_in_order},
    {OpId::rms_norm_backward, norm_backward_in_order},
    {OpId::batch_norm_backward, norm_backward_in_order},
};

}  // namespace

Results run_in_order(const RecordedOp& op, const Inputs& inputs, const SumDraws& draws) {
  const auto kernel = std::ranges::find(kKernels, op.op, &Kernel::op);
  return kernel == std::end(kKernels) ? Results() : kernel->run(op, inputs, draws);
}

}  // namespace gradual::lab
