// The student and the teacher of arXiv 2506.20752: a residual network with layer norms learns one without, on normal
// numbers.
#pragma once

#include "paper.h"

namespace paper {

inline constexpr std::int64_t kWidth = 32;
inline constexpr int kBlocks = 4;

// What a training quantises.
struct Precision {
  std::string format = "fp32";  // a recipe
  bool norms = false;           // the norms' weights and biases too
  bool rceil = false;
  bool activations = true;
};

inline amp::Recipe recipe(const Precision& p) {
  amp::Recipe r = amp::recipe(p.format);
  if (!r.quantization) return r;
  r.name = "student";
  for (const auto& field : amp::kQuantizerFields)
    if (auto& q = *r.quantization.*field.quantizer; q && p.rceil) set_rule(q->scaling, ScaleRule::rceil);
  if (!p.activations) {
    r.quantization->forward_x.reset();
    r.quantization->wgrad_x.reset();
  }
  return r;
}

// A recipe quantises products only; the student quantises its norms itself. The gradient passes straight through.
struct Student : nn::Module {
  struct Block : nn::Module {
    nn::LayerNorm& norm = register_module("norm", nn::LayerNorm(kWidth));
    nn::Linear& wide = register_module("wide", nn::Linear(kWidth, 4 * kWidth, {.bias = false}));
    nn::Linear& narrow = register_module("narrow", nn::Linear(4 * kWidth, kWidth));
  };
  std::vector<Block*> blocks;
  std::optional<Quantizer> norms;
  Student() {
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(&register_module("block" + std::to_string(i), Block()));
  }
  Tensor rounded(const Tensor& w) const { return norms ? w + (fake_quantize(w.detach(), *norms) - w.detach()) : w; }
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (Block* b : blocks)
      y = y + b->narrow(gelu(b->wide(layer_norm(y, 1, rounded(b->norm.weight), rounded(b->norm.bias)))));
    return y;
  }
  void quantise_norms(const Precision& p) {
    norms = {};
    if (p.norms) norms = recipe({p.format, true, p.rceil}).quantization->forward_w;
  }
};

// The teacher has no norms (as in the authors' code); U(-1/sqrt(n), 1/sqrt(n)) is the usual start of a layer.
struct Teacher {
  std::vector<Tensor> layers;
  Teacher() {
    for (int i = 0; i < 2 * kBlocks; ++i)
      layers.push_back((rand({kWidth, kWidth}) * 2.0 - 1.0) * (1 / std::sqrt(static_cast<double>(kWidth))));
  }
  Tensor operator()(const Tensor& x) const {
    Tensor y = x;
    for (int i = 0; i < kBlocks; ++i) y = matmul(gelu(matmul(y, layers[2 * i].t())), layers[2 * i + 1].t());
    return y + 0.005 * randn(x.sizes());
  }
};

}  // namespace paper
