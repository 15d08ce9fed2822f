#include "judge_orders.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "../autograd/grad_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "judge_bounds.h"
#include "judge_ops.h"
#include "random_order.h"

namespace gradual::lab {
namespace {

// A dim of an argument along which terms are added up.
struct Place {
  int argument = -1;
  int dim = 0;
};

struct SummingOp {
  std::string_view name;
  Place places[3];
  bool keeps_order = false;  // the result has an element for each term along the last dim
};
constexpr SummingOp kSumming[] = {
    {"aten.linear", {{0, -1}, {1, -1}}},
    {"aten.matmul", {{0, -1}, {1, -2}}},
    {"aten.mm", {{0, -1}, {1, -2}}},
    {"aten.bmm", {{0, -1}, {1, -2}}},
    {"aten.addmm", {{1, -1}, {2, -2}}},
    {"aten.baddbmm", {{1, -1}, {2, -2}}},
    {"aten.conv1d", {{0, 1}, {1, 1}}},
    {"aten.conv2d", {{0, 1}, {1, 1}}},
    {"aten.conv3d", {{0, 1}, {1, 1}}},
    {"aten.softmax", {{0, -1}}, true},
    {"aten.log_softmax", {{0, -1}}, true},
    {"aten.layer_norm", {{0, -1}, {2, -1}, {3, -1}}, true},
    {"aten.rms_norm", {{0, -1}, {2, -1}}, true},
};

int counted(int dim, const Tensor& t) { return dim < 0 ? dim + t.dim() : dim; }

// Which dims of which value are exchanged together.
struct Exchange {
  std::vector<std::pair<int, int>> dims;  // value and dim
  std::int64_t length = 0;
  int kept = 0;  // how many of the result's last dims have the terms' order
};

// Sums and means: each dim that is reduced.
std::vector<Exchange> of_reduction(const pt2::Step& step, const ValueTensors& inputs) {
  std::vector<Exchange> all;
  if (!is_op(step, "aten.sum") && !is_op(step, "aten.mean")) return all;
  const int id = id_of(step, 0);
  const Tensor x = of(inputs, id);
  if (!moves(x)) return all;
  std::vector<std::int64_t> dims = integers_of(step, 1);
  if (step.op->target.ends_with(".default") || dims.empty()) {
    dims.clear();
    for (int d = 0; d < x.dim(); ++d) dims.push_back(d);
  }
  for (const std::int64_t d : dims) {
    const int dim = counted(static_cast<int>(d), x);
    all.push_back({{{id, dim}}, x.size(dim), 0});
  }
  return all;
}

// In how many arguments a value is.
std::ptrdiff_t uses_of(const pt2::Step& step, int id) {
  return std::ranges::count_if(step.arguments, [id](const pt2::Value& v) {
    const pt2::Ref* const r = v.get<pt2::Ref>();
    return r && r->id == id;
  });
}

// One value in two arguments is exchanged along the dims of both. matmul(x, x) then has rows and columns in another
// order, which can be undone; of other ops the result would be another one. False for these.
bool settle_shared(const pt2::Step& step, Exchange& exchange) {
  std::set<std::pair<int, int>> different(exchange.dims.begin(), exchange.dims.end());
  for (const auto& [id, dim] : exchange.dims) {
    const auto places = std::ranges::count(exchange.dims, id, &std::pair<int, int>::first);
    if (places != uses_of(step, id)) return false;
  }
  const std::vector<std::pair<int, int>> dims(different.begin(), different.end());
  const bool twice = dims.size() == 2 && dims[0].first == dims[1].first;
  const bool repeated = dims.size() < exchange.dims.size();
  if (!twice) return !repeated || dims.size() == 1;
  if (!is_op(step, "aten.matmul") && !is_op(step, "aten.mm") && !is_op(step, "aten.bmm")) return false;
  exchange.kept = 2;
  return true;
}

std::vector<Exchange> exchanges_of(const pt2::Step& step, const ValueTensors& inputs) {
  const auto op = std::ranges::find_if(kSumming, [&](const SummingOp& o) { return is_op(step, o.name); });
  if (op == std::end(kSumming)) return of_reduction(step, inputs);
  Exchange exchange;
  exchange.kept = op->keeps_order ? 1 : 0;
  for (const Place& place : op->places) {
    const int id = place.argument < 0 ? -1 : id_of(step, static_cast<std::size_t>(place.argument));
    const Tensor t = of(inputs, id);
    if (!t.defined()) continue;
    const int dim = t.dim() == 1 ? 0 : counted(place.dim, t);
    const bool first = exchange.dims.empty();
    if (!moves(t) || dim < 0 || dim >= t.dim() || (!first && t.size(dim) != exchange.length)) return {};
    exchange.length = t.size(dim);
    exchange.dims.emplace_back(id, dim);
  }
  if (exchange.dims.empty() || !settle_shared(step, exchange)) return {};
  const bool along_last = !is_op(step, "aten.softmax") && !is_op(step, "aten.log_softmax");
  const std::vector<std::int64_t> dim = integers_of(step, 1);
  const Tensor x = of(inputs, id_of(step, 0));
  if (!along_last && (dim.size() != 1 || counted(static_cast<int>(dim[0]), x) != x.dim() - 1)) return {};
  if (is_op(step, "aten.layer_norm") || is_op(step, "aten.rms_norm"))
    if (dim.size() != 1) return {};
  return {exchange};
}

}  // namespace

std::optional<double> sampled_orders(StepBounds& bounds, const pt2::Step& step, const ValueTensors& inputs, int id,
                                     const Tensor& y, DType dtype) {
  const std::vector<Exchange> exchanges = exchanges_of(step, inputs);
  if (exchanges.empty() || dtype == DType::f64 || y.numel() == 0) return std::nullopt;
  const NoGrad no_grad;
  const double size = norm(finite(y)).item();
  std::mt19937_64 random(1);
  double largest = 0;
  for (int sample = 0; sample < kSampledOrders; ++sample) {
    ValueTensors exchanged;
    for (const auto& [value, t] : inputs) exchanged.emplace_back(value, moves(t) ? cast(t, DType::f32) : t);
    Tensor back;
    int kept = 0;
    for (const Exchange& e : exchanges) {
      const Tensor order = random_order(e.length, random);
      for (const auto& [value, dim] : e.dims)
        for (auto& [other, t] : exchanged)
          if (other == value) t = index_select(t, dim, order);
      kept = e.kept;
      if (kept > 0) back = inverse_order(order);
    }
    const ValueTensors outputs = bounds.evaluate(step, exchanged);
    Tensor got = of(outputs, id);
    if (!moves(got) || got.sizes() != y.sizes()) return std::nullopt;
    for (int dim = -1; dim >= -kept; --dim) got = index_select(got, dim, back);
    const Tensor rounded = cast(cast(got, dtype), DType::f64);
    largest = std::max(largest, norm(distance(rounded, y)).item());
  }
  return size > 0 ? largest / size : largest;
}

}  // namespace gradual::lab
