#include "judge_ties.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../core/ops/ops.h"

namespace gradual::lab {
namespace {

enum class Choice : std::uint8_t { pool, adaptive_pool, along_dims, of_all };

struct ChoosingOp {
  std::string_view target;  // its start
  Choice choice = Choice::pool;
  int argument = 0;  // how many dims the windows of a pool have; else which argument names the dims
};

constexpr ChoosingOp kChoosing[] = {
    {"aten.max_pool1d", Choice::pool, 1},
    {"aten.max_pool2d", Choice::pool, 2},
    {"aten.max_pool3d", Choice::pool, 3},
    {"aten.adaptive_max_pool1d", Choice::adaptive_pool, 1},
    {"aten.adaptive_max_pool2d", Choice::adaptive_pool, 2},
    {"aten.max.dim", Choice::along_dims, 1},
    {"aten.min.dim", Choice::along_dims, 1},
    {"aten.max.default", Choice::of_all, 0},
    {"aten.min.default", Choice::of_all, 0},
    {"aten.amax.", Choice::along_dims, 1},
    {"aten.amin.", Choice::along_dims, 1},
    {"aten.argmax.", Choice::along_dims, 1},
    {"aten.argmin.", Choice::along_dims, 1},
    {"aten.sort.default", Choice::along_dims, 1},
    {"aten.sort.stable", Choice::along_dims, 2},
    {"aten.argsort.default", Choice::along_dims, 1},
    {"aten.topk.", Choice::along_dims, 2},
    {"aten.kthvalue.", Choice::along_dims, 2},
    {"aten.median.dim", Choice::along_dims, 1},
    {"aten.median.default", Choice::of_all, 0},
    {"aten.cummax.", Choice::along_dims, 1},
    {"aten.cummin.", Choice::along_dims, 1},
};

const ChoosingOp* choosing(const pt2::Step& step) {
  const auto found =
      std::ranges::find_if(kChoosing, [&](const ChoosingOp& op) { return step.op->target.starts_with(op.target); });
  return found == std::end(kChoosing) ? nullptr : &*found;
}

using Places = std::vector<std::int64_t>;
// Fills in which elements of x the element `output` of y is chosen from, by their row-major places.
using Candidates = std::function<void(std::int64_t output, Places& places)>;

// An integer or a list of them; empty for none.
Places integers(const pt2::Step& step, std::size_t argument) {
  Places all;
  if (argument >= step.arguments.size()) return all;
  const pt2::Value& v = step.arguments[argument];
  if (const auto* one = v.get<std::int64_t>()) all.push_back(*one);
  if (const auto* list = v.get<pt2::Value::List>())
    for (const pt2::Value& item : *list)
      if (const auto* one = item.get<std::int64_t>()) all.push_back(*one);
  return all;
}

// One of each dim of a window, from one for all or one for each.
Places for_dims(const Places& given, int dims, const Places& otherwise) {
  if (given.empty()) return otherwise;
  if (given.size() == 1) return Places(static_cast<std::size_t>(dims), given[0]);
  return given;
}

struct Range {
  std::int64_t first = 0;
  std::int64_t end = 0;
  std::int64_t step = 1;
};
// What the window of place `output` covers of dim `dim` (of the window's).
using Covers = std::function<Range(int dim, std::int64_t output)>;

// The product of ranges, in the last dims of x.
Candidates windows(const Tensor& x, const Tensor& y, int dims, Covers covers) {
  const Shape in = x.sizes();
  const Shape out = y.sizes();
  return [in, out, dims, covers = std::move(covers)](std::int64_t output, Places& places) {
    std::vector<Range> ranges(static_cast<std::size_t>(dims));
    for (int d = dims - 1; d >= 0; --d) {
      const std::int64_t size = out[out.size() - dims + d];
      ranges[static_cast<std::size_t>(d)] = covers(d, output % size);
      output /= size;
    }
    places = {output};  // the plane
    for (int d = 0; d < dims; ++d) {
      const Range& r = ranges[static_cast<std::size_t>(d)];
      const std::int64_t size = in[in.size() - dims + d];
      Places finer;
      for (const std::int64_t place : places)
        for (std::int64_t i = r.first; i < r.end; i += r.step)
          if (i >= 0 && i < size) finer.push_back(place * size + i);
      places = std::move(finer);
    }
  };
}

Candidates pool_windows(const pt2::Step& step, const Tensor& x, const Tensor& y, int dims) {
  const auto count = static_cast<std::size_t>(dims);
  const Places kernel = for_dims(integers(step, 1), dims, Places(count, 1));
  const Places stride = for_dims(integers(step, 2), dims, kernel);
  const Places padding = for_dims(integers(step, 3), dims, Places(count, 0));
  const Places dilation = for_dims(integers(step, 4), dims, Places(count, 1));
  return windows(x, y, dims, [=](int dim, std::int64_t output) {
    const auto d = static_cast<std::size_t>(dim);
    const std::int64_t first = output * stride[d] - padding[d];
    return Range{first, first + kernel[d] * dilation[d], dilation[d]};
  });
}

Candidates adaptive_windows(const Tensor& x, const Tensor& y, int dims) {
  const Shape in = x.sizes();
  const Shape out = y.sizes();
  return windows(x, y, dims, [=](int dim, std::int64_t output) {
    const std::int64_t n = in[in.size() - dims + dim];
    const std::int64_t parts = out[out.size() - dims + dim];
    return Range{output * n / parts, ((output + 1) * n + parts - 1) / parts, 1};
  });
}

// Rows of x [before, length, behind] along its middle dim; y has some elements of each.
std::optional<Candidates> rows(const Tensor& x, const Tensor& y, int first, int last) {
  std::int64_t behind = 1;
  std::int64_t length = 1;
  for (int d = first; d <= last; ++d) length *= x.size(d);
  for (int d = last + 1; d < x.dim(); ++d) behind *= x.size(d);
  if (x.numel() == 0 || y.numel() % (x.numel() / length) != 0) return std::nullopt;
  const std::int64_t chosen = y.numel() / (x.numel() / length);
  return [=](std::int64_t output, Places& places) {
    const std::int64_t start = output / (chosen * behind) * length * behind + output % behind;
    places.clear();
    for (std::int64_t i = 0; i < length; ++i) places.push_back(start + i * behind);
  };
}

std::optional<Candidates> candidates_of(const pt2::Step& step, const Tensor& x, const Tensor& y) {
  const ChoosingOp& op = *choosing(step);
  if (op.choice == Choice::pool) return pool_windows(step, x, y, op.argument);
  if (op.choice == Choice::adaptive_pool) return adaptive_windows(x, y, op.argument);
  Places dims = op.choice == Choice::of_all ? Places{} : integers(step, static_cast<std::size_t>(op.argument));
  for (std::int64_t& d : dims)
    if (d < 0) d += x.dim();
  std::ranges::sort(dims);
  if (dims.empty()) return rows(x, y, 0, x.dim() - 1);
  const bool neighbours = dims.back() - dims.front() + 1 == static_cast<std::int64_t>(dims.size());
  if (!neighbours) return std::nullopt;
  return rows(x, y, static_cast<int>(dims.front()), static_cast<int>(dims.back()));
}

std::vector<double> numbers(const Tensor& t) {
  const Tensor dense = t.contiguous();
  const double* const p = dense.data<double>();
  return {p, p + dense.numel()};
}

// Calls found(output, places) for each element of y for which more than one element of x may be chosen.
template <class F>
void for_ties(const pt2::Step& step, const Tensor& x, const Tensor& error, const Tensor& y, const F& found) {
  const std::optional<Candidates> candidates = candidates_of(step, x, y);
  if (!candidates) return;
  const std::vector<double> values = numbers(x);
  const std::vector<double> chosen = numbers(y);
  const std::vector<double> errors = error.defined() ? numbers(error) : std::vector<double>(values.size(), 0.0);
  Places places;
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    (*candidates)(i, places);
    double most = 0;
    for (const std::int64_t p : places) most = std::max(most, errors[static_cast<std::size_t>(p)]);
    std::erase_if(places, [&](std::int64_t p) {
      const auto k = static_cast<std::size_t>(p);
      return !(std::abs(values[k] - chosen[static_cast<std::size_t>(i)]) <= errors[k] + most);
    });
    if (places.size() > 1) found(i, places);
  }
}

}  // namespace

bool chooses(const pt2::Step& step) { return choosing(step) != nullptr; }

Tensor contested_gradient(const pt2::Step& step, const Tensor& x, const Tensor& error, const Tensor& y,
                          const Tensor& gradient) {
  const std::vector<double> given = numbers(gradient);
  std::vector<double> contested(static_cast<std::size_t>(x.numel()), 0.0);
  bool any = false;
  for_ties(step, x, error, y, [&](std::int64_t output, const Places& places) {
    any = true;
    for (const std::int64_t p : places)
      contested[static_cast<std::size_t>(p)] += std::abs(given[static_cast<std::size_t>(output)]);
  });
  return any ? from_data(contested, x.sizes(), {.dtype = DType::f64}) : Tensor();
}

Tensor contested_choice(const pt2::Step& step, const Tensor& x, const Tensor& error, const Tensor& y) {
  std::vector<double> contested(static_cast<std::size_t>(y.numel()), 0.0);
  bool any = false;
  for_ties(step, x, error, y, [&](std::int64_t output, const Places&) {
    any = true;
    contested[static_cast<std::size_t>(output)] = 1;
  });
  return any ? from_data(contested, y.sizes(), {.dtype = DType::f64}) : Tensor();
}

}  // namespace gradual::lab
