#include "op_table.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include <gradual/core/formats/convert.h>

namespace gradual::test {

Array make_array(const Shape& sizes, DType dtype) {
  return {.sizes = sizes, .v = std::vector<double>(static_cast<std::size_t>(numel(sizes))), .dtype = dtype};
}

std::int64_t flat_index(const Shape& sizes, const std::vector<std::int64_t>& index) {
  std::int64_t i = 0;
  for (int d = 0; d < sizes.size(); ++d) i = i * sizes[d] + index[static_cast<std::size_t>(d)];
  return i;
}

std::vector<std::int64_t> unflatten(const Shape& sizes, std::int64_t i) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(sizes.size()));
  for (int d = sizes.size() - 1; d >= 0; --d) {
    index[static_cast<std::size_t>(d)] = i % sizes[d];
    i /= sizes[d];
  }
  return index;
}

double at_broadcast(const Array& a, const std::vector<std::int64_t>& index) {
  const std::size_t lead = index.size() - static_cast<std::size_t>(a.sizes.size());
  std::vector<std::int64_t> own(index.begin() + static_cast<std::ptrdiff_t>(lead), index.end());
  for (int d = 0; d < a.sizes.size(); ++d)
    if (a.sizes[d] == 1) own[static_cast<std::size_t>(d)] = 0;
  return a[flat_index(a.sizes, own)];
}

namespace {

// Calls f(address of the element, its row-major number) for every element, in row-major order.
template <class F> void for_each_element(const Tensor& t, F f) {
  const std::size_t width = size_of(t.dtype());
  auto* base = static_cast<std::byte*>(t.raw());
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    std::int64_t rest = i;
    std::int64_t at = 0;
    for (int d = t.dim() - 1; d >= 0; --d) {
      at += rest % t.sizes()[d] * t.strides()[d];
      rest /= t.sizes()[d];
    }
    f(base + at * static_cast<std::int64_t>(width), i);
  }
}

Tensor filled(const Shape& sizes, DType dtype, const std::function<double(std::int64_t)>& value) {
  Tensor t = empty(sizes, {.dtype = dtype});
  for_each_element(t, [&](std::byte* p, std::int64_t i) {
    const double v = value(i);
    cast_and_store(dtype, &v, p, 1, 1);
  });
  return t;
}

// A tensor of t's values with the given strides and offset, in a storage whose other bytes are all ones.
Tensor placed(const Tensor& t, const Shape& strides, std::int64_t offset, std::int64_t elements) {
  const Tensor storage = empty({elements}, {.dtype = t.dtype()});
  std::memset(storage.raw(), 0xff, storage.nbytes());
  Tensor view = as_strided(storage, t.sizes(), strides, offset);
  std::vector<std::byte> from = bytes_of(t);
  const std::size_t width = size_of(t.dtype());
  // An expanded dim is written again and again with what the row-major last entry says; callers made them
  // equal.
  for_each_element(view, [&](std::byte* p, std::int64_t i) {
    std::memcpy(p, from.data() + static_cast<std::size_t>(i) * width, width);
  });
  return view;
}

Tensor permuted_storage(const Tensor& t, const std::vector<int>& order) {  // order[0]: the slowest dim
  Shape strides = t.sizes();
  std::int64_t step = 1;
  for (std::size_t k = order.size(); k-- > 0;) {
    strides[order[k]] = step;
    step *= std::max<std::int64_t>(1, t.sizes()[order[k]]);
  }
  return placed(t, strides, 0, step);
}

Tensor strided(const Tensor& t) {  // gaps between all elements and rows, none at either end of the storage
  Shape strides = t.sizes();
  std::int64_t step = 2;
  for (int d = t.dim() - 1; d >= 0; --d) {
    strides[d] = step;
    step = step * std::max<std::int64_t>(1, t.sizes()[d]) + 3;
  }
  return placed(t, strides, 5, step + 10);
}

Tensor expanded(const Tensor& t) {
  const std::int64_t row = t.numel() / t.sizes()[0];
  const std::size_t width = size_of(t.dtype());
  const Tensor repeated = empty(t.sizes(), {.dtype = t.dtype()});
  for (std::int64_t i = 0; i < t.sizes()[0]; ++i)
    std::memcpy(static_cast<std::byte*>(repeated.raw()) + static_cast<std::size_t>(i * row) * width, t.raw(),
                static_cast<std::size_t>(row) * width);
  Shape strides = t.strides();
  strides[0] = 0;
  return placed(repeated, strides, 0, row);
}

std::vector<int> order_for(Layout layout, int ndim) {
  std::vector<int> order(static_cast<std::size_t>(ndim));
  for (int i = 0; i < ndim; ++i) order[static_cast<std::size_t>(i)] = i;
  if (layout == Layout::reversed) {
    std::reverse(order.begin(), order.end());
  } else if (layout == Layout::channels_last) {
    order = {0, 2, 3, 1};
  } else {
    std::swap(order[order.size() - 1], order[order.size() - 2]);
  }
  return order;
}

std::optional<Tensor> one_laid_out(const Tensor& t, Layout layout, bool may_expand) {
  const int n = t.dim();
  switch (layout) {
    case Layout::offset: return placed(t, t.strides(), 3, t.numel() + 7);
    case Layout::transposed:
    case Layout::first_transposed:
      if (n < 2) return {};
      return permuted_storage(t, order_for(layout, n));
    case Layout::reversed:
      if (n < 3) return {};
      return permuted_storage(t, order_for(layout, n));
    case Layout::channels_last:
      if (n != 4) return {};
      return permuted_storage(t, order_for(layout, n));
    case Layout::strided:
      if (n < 1) return {};
      return strided(t);
    case Layout::expanded:
      if (n < 1 || t.sizes()[0] < 2 || t.numel() == 0 || !may_expand) return {};
      return expanded(t);
    case Layout::contiguous:
    case Layout::count_: break;
  }
  return {};
}

}  // namespace

Array to_array(const Tensor& given) {
  if (!given.defined()) return {.sizes = {}, .v = {}, .defined = false};
  const Tensor t = with_storage_on(Device::cpu(), given);
  Array a = make_array(t.sizes(), t.dtype());
  for_each_element(t, [&](std::byte* p, std::int64_t i) { fetch_and_cast(t.dtype(), p, 1, &a[i], 1); });
  return a;
}

Tensor Draw::uniform(const Shape& sizes, double low, double high) { return away(sizes, low, high, {}); }

Tensor Draw::away(const Shape& sizes, double low, double high, const std::vector<double>& kinks) {
  if (dtype == DType::bool_) return mask(sizes);
  return filled(sizes, dtype, [&](std::int64_t) {
    for (;;) {
      double v = low + (high - low) * next();
      if (is_integral(dtype)) v = std::floor(low + (high - low + 1) * next());
      if (dtype == DType::u8) v = std::fabs(v);
      const bool near = is_floating(dtype) &&
                        std::any_of(kinks.begin(), kinks.end(), [v](double k) { return std::fabs(v - k) < 0.1; });
      if (!near) return v;
    }
  });
}

Tensor Draw::distinct(const Shape& sizes) {
  const std::int64_t n = numel(sizes);
  std::vector<std::int64_t> rank(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < rank.size(); ++i) rank[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = rank.size(); i > 1; --i)
    std::swap(rank[i - 1], rank[static_cast<std::size_t>(next() * static_cast<double>(i))]);
  const double step = is_floating(dtype) ? 0.25 : 1;
  const std::int64_t half = n / 2;
  const double shift = dtype == DType::u8 ? 0 : static_cast<double>(half);
  return filled(sizes, dtype, [&](std::int64_t i) {
    return (static_cast<double>(rank[static_cast<std::size_t>(i)]) - shift) * step;
  });
}

Tensor Draw::index(const Shape& sizes, std::int64_t count) {
  return filled(sizes, DType::i64, [&](std::int64_t) { return std::floor(next() * static_cast<double>(count)); });
}

Tensor Draw::mask(const Shape& sizes) {
  return filled(sizes, DType::bool_, [&](std::int64_t i) { return i < 2 ? i == 0 : next() < 0.5; });
}

Tensor Draw::values(const std::vector<double>& v, const Shape& sizes) {
  return filled(sizes, dtype, [&](std::int64_t i) { return v.at(static_cast<std::size_t>(i)); });
}

const std::vector<Row>& op_table() {
  static const std::vector<Row> table = [] {
    std::vector<Row> all;
    for (auto part :
         {unary_rows, binary_rows, reduction_rows, contraction_rows, convolution_rows, attention_rows, pooling_rows,
          normalization_rows, softmax_rows, loss_rows, movement_rows, indexing_rows, in_place_rows}) {
      std::vector<Row> rows = part();
      std::move(rows.begin(), rows.end(), std::back_inserter(all));
    }
    return all;
  }();
  return table;
}

const Row& row_of(OpId op) {
  for (const Row& row : op_table())
    if (row.op == op) return row;
  throw_error("the op table has no row for " + std::string(gradual::to_string(op)));
}

bool chosen(const char* variable, std::string_view name) {
  const char* only = std::getenv(variable);
  return !only || ("," + std::string(only) + ",").find("," + std::string(name) + ",") != std::string::npos;
}

std::vector<const Row*> rows_under_test() {
  std::vector<const Row*> rows;
  for (const Row& row : op_table())
    if (chosen("GRADUAL_TEST_OP", gradual::to_string(row.op))) rows.push_back(&row);
  if (rows.empty()) throw_error("GRADUAL_TEST_OP names no op");
  return rows;
}

std::vector<Sample> samples_of(const Row& row, DType dtype) {
  if (!row.samples) return {};
  Draw draw(dtype, 1000 + static_cast<std::uint64_t>(row.op));
  return row.samples(draw);
}

const char* to_string(Layout layout) {
  static constexpr const char* kNames[] = {"contiguous", "offset",        "transposed", "first transposed",
                                           "reversed",   "channels-last", "strided",    "expanded"};
  return kNames[static_cast<int>(layout)];
}

int written_inputs(const Row& row) { return op_info(row.op).kind == OpKind::InPlace ? row.written : 0; }

std::optional<Tensors> lay_out(const Tensors& inputs, Layout layout, int written) {
  if (layout == Layout::contiguous) return fresh(inputs);
  Tensors out = fresh(inputs);
  bool any = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].defined() || (layout == Layout::first_transposed && i > 0)) continue;
    if (std::optional<Tensor> t = one_laid_out(out[i], layout, i >= static_cast<std::size_t>(written))) {
      out[i] = *t;
      any = true;
    }
  }
  if (!any) return {};
  return out;
}

Tensor with_storage_on(Device device, const Tensor& t) {
  if (!t.defined() || t.device() == device) return t;
  const Storage& s = *t.unsafe_impl()->storage;
  const Tensor all =
      empty({static_cast<std::int64_t>(s.bytes / size_of(t.dtype()))}, {.dtype = t.dtype(), .device = device});
  device::copy(all.raw(), device, s.data, s.device, s.bytes);
  return as_strided(all, t.sizes(), t.strides(), t.offset());
}

std::vector<std::byte> bytes_of(const Tensor& given) {
  const Tensor t = with_storage_on(Device::cpu(), given);
  const std::size_t width = size_of(t.dtype());
  const auto* const first = static_cast<const std::byte*>(t.raw());
  if (t.is_contiguous()) return {first, first + t.nbytes()};
  std::vector<std::byte> bytes(t.nbytes());
  for_each_element(t, [&](const std::byte* p, std::int64_t i) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * width, p, width);
  });
  return bytes;
}

std::vector<std::byte> storage_of(const Tensor& t) {
  const Tensor here = with_storage_on(Device::cpu(), t);
  const Storage& s = *here.unsafe_impl()->storage;
  const auto* p = static_cast<const std::byte*>(s.data);
  return {p, p + s.bytes};
}

Tensors fresh(const Tensors& inputs) {
  Tensors out;
  for (const Tensor& t : inputs) {
    if (!t.defined()) {
      out.emplace_back();
      continue;
    }
    const Tensor copy = empty(t.sizes(), {.dtype = t.dtype()});
    const std::vector<std::byte> bytes = bytes_of(t);
    if (!bytes.empty()) std::memcpy(copy.raw(), bytes.data(), bytes.size());
    out.push_back(copy);
  }
  return out;
}

Tensor converted(const Tensor& t, DType dtype) {
  if (!t.defined() || !t.is_floating()) return t;
  const Array a = to_array(t);
  return filled(t.sizes(), dtype, [&](std::int64_t i) { return a[i]; });
}

namespace {

// The distance of the format's values around v.
double ulp(double v, const FloatInfo& f) {
  if (v == 0 || !std::isfinite(v)) return f.min_subnormal;
  return std::max(std::ldexp(f.epsilon, std::ilogb(v)), f.min_subnormal);
}

double tolerance(const Row& row, const Array& want, std::int64_t i, DType dtype) {
  if (!is_floating(dtype)) return 0;
  const FloatInfo out = float_info(dtype);
  const double compute = float_info(dtype == DType::f64 ? DType::f64 : DType::f32).epsilon;
  double size = std::fabs(want[i]);
  if (!want.magnitude.empty()) size = std::max(size, want.magnitude[static_cast<std::size_t>(i)]);
  // The one rounding on store is relative to the value; only what is rounded before is relative to the terms.
  const double stored = std::min(row.roundings, 0.5) * ulp(want[i], out);
  const double before = std::max(0.0, row.roundings - 0.5) * (out.epsilon * size + out.min_subnormal);
  const double narrowed = row.roundings > 0 && out.epsilon > compute ? 0.5 : 0;  // rounded to f32 first
  return stored + before + (row.ulps + want.length + narrowed) * compute * size;
}

bool agrees(double got, double want, double tol) {
  if (std::isnan(want)) return std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return got == want;
  return std::fabs(got - want) <= tol;
}

}  // namespace

std::string compare(const Row& row, const Tensors& outputs, const Arrays& reference) {
  std::ostringstream why;
  why.precision(17);
  if (outputs.size() != reference.size()) {
    why << outputs.size() << " outputs, expected " << reference.size();
    return why.str();
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const Tensor& y = outputs[k];
    const Array& want = reference[k];
    why << "output " << k << ": ";
    if (y.defined() != want.defined) {
      why << (y.defined() ? "defined" : "undefined") << " against expectation";
      return why.str();
    }
    if (!y.defined()) continue;
    if (y.dtype() != want.dtype || y.sizes() != want.sizes) {
      why << to_string(y.sizes()) << ' ' << gradual::to_string(y.dtype()) << ", expected " << to_string(want.sizes)
          << ' ' << gradual::to_string(want.dtype);
      return why.str();
    }
    const Array got = to_array(y);
    for (std::int64_t i = 0; i < got.numel(); ++i) {
      const double tol = tolerance(row, want, i, y.dtype());
      if (agrees(got[i], want[i], tol)) continue;
      why << "element " << to_string(Shape(unflatten(y.sizes(), i))) << " is " << got[i] << ", expected " << want[i]
          << " within " << tol;
      return why.str();
    }
    why.str("");
  }
  return "";
}

std::string describe(const Row& row, const Sample& sample, const Tensors& inputs, const std::string& layout) {
  std::string text = std::string(gradual::to_string(row.op)) + " '" + sample.label + "' " + layout + ":";
  for (const Tensor& t : inputs) {
    text += t.defined() ? " " + to_string(t.sizes()) + " " + std::string(gradual::to_string(t.dtype())) + " strides " +
                              to_string(t.strides()) + ";"
                        : " none;";
  }
  return text + " (alone: GRADUAL_TEST_OP=" + std::string(gradual::to_string(row.op)) + " test_op_table)";
}

void expect_none(const std::string& problem, const std::string& where) {
  if (problem.empty()) return;
  ADD_FAIL_CHECK_AT("op_table", 0, where << "\n    " << problem);
}

}  // namespace gradual::test
