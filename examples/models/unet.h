// A small diffusion model: a U-Net that predicts the noise in an image (Ho et al. 2020).
#pragma once

#include <gradual/gradual.h>

#include <cmath>
#include <numbers>

namespace models {

using namespace gradual;

// x [N, in, H, W] and the time's features [N, time] -> [N, out, H, W].
struct ResidualBlock : nn::Module {
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t time)
      : norm1(register_module("norm1", nn::GroupNorm(8, in))),
        conv1(register_module("conv1", nn::Conv2d(in, out, 3, {.padding = 1}))),
        project(register_module("project", nn::Linear(time, out))),
        norm2(register_module("norm2", nn::GroupNorm(8, out))),
        conv2(register_module("conv2", nn::Conv2d(out, out, 3, {.padding = 1}))),
        shortcut(in == out ? nullptr : &register_module("shortcut", nn::Conv2d(in, out, 1))) {}

  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& time) {
    const Tensor shift = project(silu(time));
    const Tensor h = conv1(silu(norm1(x))) + shift.reshape({x.size(0), -1, 1, 1});
    return conv2(silu(norm2(h))) + (shortcut ? (*shortcut)(x) : x);
  }
  Tensor operator()(const Tensor& x, const Tensor& time, Loc loc = Loc::current()) {
    const nn::ModuleCall call(*this, loc);
    return call.leave(x, forward(x, time));
  }

  nn::GroupNorm& norm1;
  nn::Conv2d& conv1;
  nn::Linear& project;
  nn::GroupNorm& norm2;
  nn::Conv2d& conv2;
  nn::Conv2d* shortcut;
};

// Noisy images [N, channels, H, W] (H and W even) and times [N] -> the noise.
struct UNet : nn::Module {
  static constexpr std::int64_t kWidth = 32;
  static constexpr std::int64_t kTime = 64;

  explicit UNet(std::int64_t channels)
      : time1(register_module("time1", nn::Linear(kWidth, kTime))),
        time2(register_module("time2", nn::Linear(kTime, kTime))),
        first(register_module("first", nn::Conv2d(channels, kWidth, 3, {.padding = 1}))),
        before(register_module("before", ResidualBlock(kWidth, kWidth, kTime))),
        down(register_module("down", nn::Conv2d(kWidth, 2 * kWidth, 3, {.stride = 2, .padding = 1}))),
        middle(register_module("middle", ResidualBlock(2 * kWidth, 2 * kWidth, kTime))),
        up(register_module("up", nn::Conv2d(2 * kWidth, kWidth, 3, {.padding = 1}))),
        after(register_module("after", ResidualBlock(2 * kWidth, kWidth, kTime))),
        norm(register_module("norm", nn::GroupNorm(8, kWidth))),
        last(register_module("last", nn::Conv2d(kWidth, channels, 3, {.padding = 1}))) {}

  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& t) {
    const Tensor time = time2(silu(time1(waves(t))));
    const Tensor wide = before(first(x), time);
    const Tensor narrow = middle(down(wide), time);
    const Tensor large = interpolate(narrow, wide.size(2), wide.size(3));
    const Tensor y = after(cat({up(large), wide}, 1), time);
    return last(silu(norm(y)));
  }
  Tensor operator()(const Tensor& x, const Tensor& t, Loc loc = Loc::current()) {
    const nn::ModuleCall call(*this, loc);
    return call.leave(x, forward(x, t));
  }

  // The mean squared error of the predicted noise. At time t (from 0, i64 [N]) the share kept(t) of the image is left.
  Tensor loss(const Tensor& images, const Tensor& noise, const Tensor& t) {
    const Tensor share = kept(t).to(images.dtype()).reshape({-1, 1, 1, 1});
    const Tensor noisy = sqrt(share) * images + sqrt(1 - share) * noise;
    return mse_loss((*this)(noisy, t.to(images.dtype())).to(images.dtype()), noise);
  }

  static constexpr std::int64_t kSteps = 100;
  static Tensor kept(const Tensor& t) {  // the cosine schedule (Nichol and Dhariwal 2021), without its offset
    return square(cos((t.to(DType::f64) + 1) * (std::numbers::pi / 2 / (kSteps + 1))));
  }

 private:
  // Sines and cosines of the time [N], in kWidth / 2 frequencies from 1 to 1/10000 -> [N, kWidth].
  static Tensor waves(const Tensor& t) {
    constexpr double kCount = kWidth / 2.0;
    const Tensor i = arange(0, kCount, 1, options_of(t));
    const Tensor angle = t.reshape({-1, 1}) * exp(i * (-std::log(10000.0) / kCount));
    return cat({sin(angle), cos(angle)}, 1);
  }

  nn::Linear& time1;
  nn::Linear& time2;
  nn::Conv2d& first;
  ResidualBlock& before;
  nn::Conv2d& down;
  ResidualBlock& middle;
  nn::Conv2d& up;
  ResidualBlock& after;
  nn::GroupNorm& norm;
  nn::Conv2d& last;
};

}  // namespace models
