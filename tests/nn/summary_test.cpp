// The summary's text, and that it leaves no trace.
#include "helpers.h"

using namespace nn_test;

TEST_CASE("summary lists shapes, parameters and bytes") {
  struct Net : nn::Module {
    nn::Sequential& body = register_module(
        "body", nn::Sequential(nn::Conv2d(1, 8, 3, {.padding = 1}), nn::BatchNorm2d(8), nn::ReLU(), nn::MaxPool2d(2)));
    nn::Flatten& flat = register_module("flat", nn::Flatten());
    nn::Linear& head = register_module("head", nn::Linear(128, 1000));
    nn::Linear& unused = register_module("unused", nn::Linear(2, 2, {.bias = false}));
    Net() { unused.set_requires_grad(false); }
    Tensor forward(const Tensor& x) override { return head(flat(body(x))); }
  };
  Net net;
  CHECK(nn::summary(net, {2, 1, 8, 8}) ==
        "layer               output            parameters    bytes\n"
        "Net                 [2, 1000] f32              -        -\n"
        "  body: Sequential  [2, 8, 4, 4] f32           -        -\n"
        "    0: Conv2d       [2, 8, 8, 8] f32          80      320\n"
        "    1: BatchNorm2d  [2, 8, 8, 8] f32          16      136\n"
        "    2: ReLU         [2, 8, 8, 8] f32           -        -\n"
        "    3: MaxPool2d    [2, 8, 4, 4] f32           -        -\n"
        "  flat: Flatten     [2, 128] f32               -        -\n"
        "  head: Linear      [2, 1000] f32        129,000  516,000\n"
        "  unused: Linear    -                          4       16\n"
        "129,100 parameters, 129,096 trainable; 516,400 bytes of parameters, 72 of buffers\n");
}

TEST_CASE("summary leaves modes, buffers, hooks and the generator as they were") {
  nn::Sequential model{nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Dropout(0.5), nn::Linear(4, 2)};
  model[3].eval();
  const StateDict before = model.state_dict();
  const Tensor mean = before.tensor("1.running_mean").clone();
  const std::uint64_t stream = default_generator().stream();
  nn::summary(model, {3, 4});
  CHECK(same_bits(before.tensor("1.running_mean"), mean));
  CHECK(before.tensor("1.num_batches_tracked").item() == 0);
  CHECK(default_generator().stream() == stream);
  CHECK(model.training());
  CHECK(model[1].training());
  CHECK_FALSE(model[3].training());

  // An input that does not fit: the error passes through, and all is as before.
  CHECK(contains(message_of([&] { nn::summary(model, {3, 5}); }), "linear"));
  CHECK(model[2].training());
  CHECK_FALSE(model[3].training());
}

TEST_CASE("summary takes integer inputs, half models and shared parameters") {
  struct Tied : nn::Module {
    nn::Embedding& embedding = register_module("embedding", nn::Embedding(10, 4));
    nn::TransformerBlock& block = register_module("block", nn::TransformerBlock(4, 2));
    nn::Linear& head = register_module("head", nn::Linear(4, 10, {.bias = false}));
    Tied() { head.weight = embedding.weight; }
    Tensor forward(const Tensor& i) override { return head(block(embedding(i))); }
  };
  Tied model;
  model.to(DType::bf16);
  const std::string text = nn::summary(model, {2, 3}, DType::i64);
  CHECK(contains(text, "[2, 3, 10] bf16"));
  CHECK(contains(text, "embedding: Embedding"));
  CHECK(contains(text, "    self_attn: MultiheadAttention  [2, 3, 4] bf16"));
  // 40 embedding (and head), 60 + 20 attention, 80 + 68 feed-forward, 16 norms
  CHECK(contains(text, "284 parameters, 284 trainable; 568 bytes"));
}
