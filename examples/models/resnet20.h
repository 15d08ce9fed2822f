// ResNet-20 for small images (He et al. 2016, section 4.2). Names are those of the usual PyTorch version.
#pragma once

#include <gradual/gradual.h>

namespace models {

using namespace gradual;

inline nn::Conv2d conv3x3(std::int64_t in, std::int64_t out, std::int64_t stride = 1) {
  return nn::Conv2d(in, out, 3, {.stride = stride, .padding = 1, .bias = false});
}

// x [N, in, H, W] -> [N, out, H / stride, W / stride]. Where the sizes differ, the shortcut takes every second pixel
// and pads the channels with zeros (the paper's option A).
struct BasicBlock : nn::Module {
  BasicBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : more((out - in) / 2),
        step(stride),
        conv1(register_module("conv1", conv3x3(in, out, stride))),
        bn1(register_module("bn1", nn::BatchNorm2d(out))),
        conv2(register_module("conv2", conv3x3(out, out))),
        bn2(register_module("bn2", nn::BatchNorm2d(out))) {}

  Tensor forward(const Tensor& x) override {
    Tensor shortcut = x;
    if (step > 1) shortcut = x.index({Slice{}, Slice{}, Slice{0, {}, step}, Slice{0, {}, step}});
    if (more > 0) shortcut = pad(shortcut, {0, more, 0, 0}, {0, more, 0, 0});
    return relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut);
  }

  std::int64_t more, step;
  nn::Conv2d& conv1;
  nn::BatchNorm2d& bn1;
  nn::Conv2d& conv2;
  nn::BatchNorm2d& bn2;
};

// Images [N, channels, H, W] to logits [N, classes].
struct ResNet20 : nn::Module {
  ResNet20(std::int64_t channels, std::int64_t classes)
      : conv1(register_module("conv1", conv3x3(channels, 16))),
        bn1(register_module("bn1", nn::BatchNorm2d(16))),
        layer1(register_module("layer1", stage(16, 16))),
        layer2(register_module("layer2", stage(16, 32))),
        layer3(register_module("layer3", stage(32, 64))),
        linear(register_module("linear", nn::Linear(64, classes))) {}

  Tensor forward(const Tensor& x) override { return linear(layer3(layer2(layer1(relu(bn1(conv1(x)))))).mean({2, 3})); }

  static nn::Sequential stage(std::int64_t in, std::int64_t out) {
    return nn::Sequential{BasicBlock(in, out, in == out ? 1 : 2), BasicBlock(out, out, 1), BasicBlock(out, out, 1)};
  }

  nn::Conv2d& conv1;
  nn::BatchNorm2d& bn1;
  nn::Sequential& layer1;
  nn::Sequential& layer2;
  nn::Sequential& layer3;
  nn::Linear& linear;
};

}  // namespace models
