// A small vision transformer (Dosovitskiy et al. 2021).
#pragma once

#include <gradual/gradual.h>

namespace models {

using namespace gradual;

struct VitOptions {
  // images [N, channels, side, side]; the patch divides the side
  std::int64_t channels = 1;
  std::int64_t side = 8;
  std::int64_t patch = 2;
  std::int64_t width = 64;
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  std::int64_t classes = 10;
};

// Images to logits [N, classes]: patches, a class token and positions; the class token's output is classified.
struct Vit : nn::Module {
  explicit Vit(const VitOptions& o = {})
      : patches(register_module("patches", nn::Conv2d(o.channels, o.width, o.patch, {.stride = o.patch}))),
        token(register_parameter("token", zeros({1, 1, o.width}))),
        positions(register_parameter("positions", randn({1, tokens(o), o.width}) * 0.02)),
        blocks(register_module("blocks", nn::Sequential())),
        norm(register_module("norm", nn::LayerNorm(o.width))),
        head(register_module("head", nn::Linear(o.width, o.classes))) {
    for (std::int64_t i = 0; i < o.layers; ++i) blocks.push_back(nn::TransformerBlock(o.width, o.heads));
  }

  Tensor forward(const Tensor& x) override {
    const Tensor seen = transpose(flatten(patches(x), 2), 1, 2);  // [N, patches, width]
    const Tensor first = expand(token, {x.size(0), 1, -1}).to(seen.dtype());
    return head(select(norm(blocks(cat({first, seen}, 1) + positions)), 1, 0));
  }

  static std::int64_t tokens(const VitOptions& o) { return (o.side / o.patch) * (o.side / o.patch) + 1; }

  nn::Conv2d& patches;
  Tensor& token;
  Tensor& positions;
  nn::Sequential& blocks;
  nn::LayerNorm& norm;
  nn::Linear& head;
};

}  // namespace models
