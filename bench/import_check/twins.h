// Two models as one writes them here; twins.py has them as one writes them in PyTorch. Names of parameters are equal.
#pragma once

#include <gradual/gradual.h>

#include <cstdint>
#include <vector>

#include "../../examples/models/resnet20.h"

namespace twins {

using namespace gradual;

struct Block : nn::Module {
  Block(std::int64_t width, std::int64_t count)
      : heads(count),
        ln1(register_module("ln1", nn::LayerNorm(width))),
        attn(register_module("attn", nn::Linear(width, 3 * width))),
        proj(register_module("proj", nn::Linear(width, width))),
        ln2(register_module("ln2", nn::LayerNorm(width))),
        fc(register_module("fc", nn::Linear(width, 4 * width))),
        fc2(register_module("fc2", nn::Linear(4 * width, width))) {}

  Tensor forward(const Tensor& x) override {
    const std::int64_t batch = x.size(0);
    const std::int64_t length = x.size(1);
    const std::int64_t width = x.size(2);
    std::vector<Tensor> parts = split(attn(ln1(x)), width, 2);
    for (Tensor& part : parts) part = transpose(view(part, {batch, length, heads, width / heads}), 1, 2);
    const Tensor y = scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, {.causal = true});
    const Tensor z = add(x, proj(reshape(transpose(y, 1, 2), {batch, length, width})));
    return add(z, fc2(gelu(fc(ln2(z)))));
  }

  std::int64_t heads;
  nn::LayerNorm& ln1;
  nn::Linear& attn;
  nn::Linear& proj;
  nn::LayerNorm& ln2;
  nn::Linear& fc;
  nn::Linear& fc2;
};

// Tokens [N, T] to the loss of the next token.
struct GPT : nn::Module {
  GPT(std::int64_t tokens, std::int64_t places, std::int64_t width, std::int64_t heads, int layers)
      : wte(register_module("wte", nn::Embedding(tokens, width))),
        wpe(register_module("wpe", nn::Embedding(places, width))),
        h(register_module("h", nn::Sequential())),
        ln(register_module("ln", nn::LayerNorm(width))),
        head(register_module("head", nn::Linear(width, tokens, {.bias = false}))) {
    for (int i = 0; i < layers; ++i) h.push_back(Block(width, heads));
  }

  Tensor forward(const Tensor& tokens) override {
    const std::int64_t length = tokens.size(1);
    const Tensor x = h(add(wte(tokens), wpe(arange(0, static_cast<double>(length), 1, {.dtype = DType::i64}))));
    const Tensor logits = narrow(head(ln(x)), 1, 0, length - 1);
    const Tensor next = narrow(tokens, 1, 1, length - 1);
    return cross_entropy(flatten(logits, 0, 1), flatten(next));
  }

  nn::Embedding& wte;
  nn::Embedding& wpe;
  nn::Sequential& h;
  nn::LayerNorm& ln;
  nn::Linear& head;
};

// Images [N, 3, H, W] and labels [N] to the loss.
inline Tensor loss_of(models::ResNet20& net, const std::vector<Tensor>& inputs) {
  return cross_entropy(net(inputs.at(0)), inputs.at(1));
}
inline Tensor loss_of(GPT& net, const std::vector<Tensor>& inputs) { return net(inputs.at(0)); }

}  // namespace twins
