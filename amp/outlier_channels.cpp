#include "outlier_channels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "bookkeeping.h"
#include "quantization_parts.h"

namespace gradual::amp {

void check_valid(const OutlierChannels& o) {
  if (!(o.share > 0 && o.share < 1)) throwf("outliers: share is {}; allowed is above 0 and below 1", o.share);
  if (o.from < 0) throwf("outliers: from is {}; allowed is at least 0", o.from);
  if (o.window < 1) throwf("outliers: window is {}; allowed is at least 1", o.window);
  if (o.period != 0 && o.period < o.window)
    throwf("outliers: period is {} and window {}; allowed is 0 (chosen once) or at least the window", o.period,
           o.window);
  if (!o.quantizer) return;
  in_context("outliers, quantizer", [&] { check_valid(*o.quantizer); });
  const Quantizer& q = *o.quantizer;
  if (beyond_own_scales(q) || q.gradient != QuantizerGradient::straight)
    throwf(
        "outliers: the quantizer is {}; allowed are scales from the operand's own numbers, without a transform, "
        "centering and a gradient that is not straight",
        describe(q));
}

std::string describe(const OutlierChannels& o) {
  const std::string again = o.period > 0 ? fmt::format(" and again every {}", o.period) : "";
  return fmt::format("{:g}% of the channels of x, chosen by steps {} to {}{}: {}", 100 * o.share, o.from,
                     o.from + o.window - 1, again, o.quantizer ? describe(*o.quantizer) : "fp32");
}

// The number of steps since the last window began. Below 0: none has begun.
static std::int64_t since_window(const OutlierChannels& o, std::int64_t step) {
  const std::int64_t since = step - o.from;
  return since >= 0 && o.period > 0 ? since % o.period : since;
}

bool measures_in(const OutlierChannels& o, std::int64_t step) {
  const std::int64_t since = since_window(o, step);
  return since >= 0 && since < o.window;
}

bool chooses_after(const OutlierChannels& o, std::int64_t step) { return since_window(o, step) == o.window - 1; }

Tensor along_dim(const Tensor& channels, int dims, int dim) {
  Shape sizes = Shape::filled(dims, 1);
  sizes[wrap_dim(dim, dims, "channels")] = channels.numel();
  return channels.reshape(sizes);
}

void ChannelSizes::stage(const Tensor& x, int channel) {
  const Bookkeeping unseen;
  const Tensor channels_last = x.detach().transpose(channel, -1);
  const Tensor rows = channels_last.reshape({-1, x.size(channel)}).to(DType::f64);
  const Tensor norms = cast(cast(sqrt(sum(square(rows), {0})), DType::f32), DType::f64).to(Device::cpu());
  if (std::ranges::all_of(norms.to_vector<double>(), [](double norm) { return std::isfinite(norm); })) stage(norms);
}

void ChannelSizes::stage(const Tensor& sizes) {
  const Bookkeeping unseen;
  const Tensor& known = staged_.defined() ? staged_ : sizes_;
  if (known.defined() && known.sizes() != sizes.sizes())
    throwf("outliers: a product's x has {} channels now and had {} before; leave the module out by `modules`",
           sizes.numel(), known.numel());
  staged_ = staged_.defined() ? staged_ + sizes : sizes;
}

void ChannelSizes::take_staged() {
  if (!staged_.defined()) return;
  const Bookkeeping unseen;
  sizes_ = sizes_.defined() ? sizes_ + staged_ : staged_;
  staged_ = Tensor();
}

bool ChannelSizes::choose(const OutlierChannels& options) {
  if (!sizes_.defined()) return false;
  const Bookkeeping unseen;
  const std::vector<double> sizes = std::exchange(sizes_, Tensor()).to_vector<double>();
  std::vector<std::int64_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::int64_t c) { return sizes[static_cast<std::size_t>(c)]; });
  const auto wanted = std::llround(options.share * static_cast<double>(sizes.size()));
  const auto above_zero = std::ranges::count_if(sizes, [](double size) { return size > 0; });
  if (above_zero == 0) return false;
  std::vector<double> chosen(sizes.size(), 0.0);
  for (std::int64_t i = 0; i < std::clamp<std::int64_t>(wanted, 1, above_zero); ++i)
    chosen[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = 1;
  if (outliers_.defined() && outliers_.to(DType::f64).to_vector<double>() == chosen) return false;
  outliers_ = from_data(chosen, {std::ssize(chosen)}).to(DType::bool_);
  return true;
}

void ChannelSizes::add_to(StateDict& state) const {
  if (sizes_.defined()) state.set("channels.sizes", sizes_);
  if (outliers_.defined()) state.set("channels.outliers", outliers_);
}

ChannelSizes ChannelSizes::from(const StateDict& state) {
  ChannelSizes channels;
  if (state.contains("channels.sizes")) channels.sizes_ = state.tensor("channels.sizes").clone();
  if (state.contains("channels.outliers")) channels.outliers_ = state.tensor("channels.outliers").clone();
  return channels;
}

}  // namespace gradual::amp
