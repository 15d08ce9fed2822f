// Convolutions.
#pragma once

#include "../core/ops/derived_ops.h"
#include "module.h"

namespace gradual::nn {

// weight and bias, which start from U(-b, b), b = 1/sqrt(fan in). Error for sizes below 1, and for groups that do not
// divide both channels.
class Convolution : public Layer {
 public:
  Tensor& weight;
  Tensor& bias;  // undefined if there is none

 protected:
  // weight [rows, columns/groups, kernel..]
  Convolution(const char* layer, std::int64_t in, std::int64_t out, const Shape& kernel, std::int64_t groups,
              bool biased, bool transposed);
};

// y = op(x, weight, bias, options).
template <class Options, Tensor (*op)(const Tensor&, const Tensor&, const Tensor&, Options, Loc)>
class ConvolutionBy : public Convolution {
 public:
  Tensor forward(const Tensor& x) override { return op(x, weight, bias, options_, Loc::current()); }

 protected:
  ConvolutionBy(const char* layer, std::int64_t in, std::int64_t out, const Shape& kernel, bool biased,
                const Options& o)
      : Convolution(layer, in, out, kernel, o.groups, biased, std::is_same_v<Options, ConvTranspose2dOptions>),
        options_(o) {}
  Options options_;
};

// One number stands for height and width.
struct Conv2dLayerOptions {
  Size2 stride = 1;
  Size2 padding = 0;
  Size2 dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

// x [N, in, H, W] -> [N, out, H', W'] with H' = (H + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down.
// weight [out, in/groups, kernel height, kernel width], bias [out].
struct Conv2d : ConvolutionBy<Conv2dOptions, conv2d> {
  Conv2d(std::int64_t in, std::int64_t out, Size2 kernel, Conv2dLayerOptions o = {})
      : ConvolutionBy("Conv2d", in, out, {kernel[0], kernel[1]}, o.bias, {o.stride, o.padding, o.dilation, o.groups}) {}
};

struct Conv1dLayerOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

// x [N, in, L] -> [N, out, L'], as Conv2d along one dim. weight [out, in/groups, kernel], bias [out].
struct Conv1d : ConvolutionBy<Conv1dOptions, conv1d> {
  Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, Conv1dLayerOptions o = {})
      : ConvolutionBy("Conv1d", in, out, kernel, o.bias, {o.stride, o.padding, o.dilation, o.groups}) {}
};

struct ConvTranspose2dLayerOptions {
  Size2 stride = 1;
  Size2 padding = 0;
  Size2 output_padding = 0;
  Size2 dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

// x [N, in, H, W] -> [N, out, H', W'], see conv_transpose2d. weight [in, out/groups, kernel height, kernel width],
// bias [out].
struct ConvTranspose2d : ConvolutionBy<ConvTranspose2dOptions, conv_transpose2d> {
  ConvTranspose2d(std::int64_t in, std::int64_t out, Size2 kernel, ConvTranspose2dLayerOptions o = {})
      : ConvolutionBy("ConvTranspose2d", in, out, {kernel[0], kernel[1]}, o.bias,
                      {o.stride, o.padding, o.output_padding, o.dilation, o.groups}) {}
};

}  // namespace gradual::nn
