// Attention against a reference composed of plain ops, one head at a time.
#include <algorithm>

#include "helpers.h"

using namespace nn_test;

namespace {

constexpr std::int64_t kEmbed = 6;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kHead = 3;

// softmax(q k^T / sqrt(head) + bias) v for each head, then the output projection. x [L, E], bias [L, S].
Tensor reference(const nn::MultiheadAttention& m, const Tensor& query, const Tensor& key, const Tensor& value,
                 const Tensor& bias = {}) {
  const auto projected = [&](const Tensor& x, std::int64_t part) {
    return matmul(x, m.in_proj_weight.narrow(0, part * kEmbed, kEmbed).t()) +
           m.in_proj_bias.narrow(0, part * kEmbed, kEmbed);
  };
  const Tensor q = projected(query, 0);
  const Tensor k = projected(key, 1);
  const Tensor v = projected(value, 2);
  std::vector<Tensor> heads;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const auto own = [&](const Tensor& t) { return t.narrow(1, h * kHead, kHead); };
    Tensor scores = matmul(own(q), own(k).t()) / std::sqrt(static_cast<double>(kHead));
    if (bias.defined()) scores = scores + bias;
    heads.push_back(matmul(softmax(scores, -1), own(v)));
  }
  return matmul(cat(heads, 1), m.out_proj.weight.t()) + m.out_proj.bias;
}

// 0 where a key may be seen, else minus infinity.
Tensor causal_bias(std::int64_t length) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < length; ++i)
    for (std::int64_t j = 0; j < length; ++j) v.push_back(j <= i ? 0 : -INFINITY);
  return from_data(v, {length, length}, {.dtype = DType::f64});
}

nn::MultiheadAttention attention(nn::MultiheadAttentionOptions options = {}) {
  nn::MultiheadAttention m(kEmbed, kHeads, options);
  m.to(DType::f64);
  assign(m.in_proj_bias, noise({3 * kEmbed}, 11, DType::f64));
  assign(m.out_proj.bias, noise({kEmbed}, 12, DType::f64));
  return m;
}

}  // namespace

TEST_CASE("MultiheadAttention has PyTorch's parameters and initialisation") {
  nn::MultiheadAttention m(8, 2);
  std::vector<std::string> names;
  for (const auto& [name, value] : m.state_dict()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"});
  CHECK(m.in_proj_weight.sizes() == Shape{24, 8});
  for (double v : values(m.in_proj_bias)) CHECK(v == 0);
  for (double v : values(m.out_proj.bias)) CHECK(v == 0);
  const double bound = std::sqrt(6.0 / (24 + 8));
  double largest = 0;
  for (double v : values(m.in_proj_weight)) largest = std::max(largest, std::abs(v));
  CHECK(largest <= bound);
  CHECK(largest > 0.9 * bound);
  CHECK(nn::MultiheadAttention(8, 2, {.bias = false}).parameters().size() == 2);
  CHECK(contains(message_of([] { nn::MultiheadAttention(8, 3); }), "3 heads do not divide an embedding of 8"));
  CHECK(contains(message_of([&] { m(ones({2, 3, 4})); }), "allowed is [.., length, 8]"));
}

TEST_CASE("self-attention and cross-attention against the reference") {
  nn::MultiheadAttention m = attention();
  const Tensor x = noise({5, kEmbed}, 1, DType::f64);
  const Tensor y = noise({4, kEmbed}, 2, DType::f64);
  const Tensor z = noise({4, kEmbed}, 3, DType::f64);
  CHECK(distance(m(x), reference(m, x, x, x)) < 1e-14);
  CHECK(distance(m(x, y, y), reference(m, x, y, y)) < 1e-14);
  CHECK(distance(m(x, y, z), reference(m, x, y, z)) < 1e-14);
  // A batch is its rows.
  const Tensor batch = stack({x, noise({5, kEmbed}, 4, DType::f64)});
  const Tensor out = m(batch);
  CHECK(out.sizes() == Shape{2, 5, kEmbed});
  for (int i = 0; i < 2; ++i) CHECK(distance(out[i], reference(m, batch[i], batch[i], batch[i])) < 1e-14);
}

TEST_CASE("causal attention and masks against the reference") {
  nn::MultiheadAttention plain = attention();
  nn::MultiheadAttention causal = attention({.causal = true});
  causal.load_state_dict(plain.state_dict());
  const Tensor x = noise({2, 5, kEmbed}, 1, DType::f64);
  const Tensor out = causal(x);
  for (int i = 0; i < 2; ++i) CHECK(distance(out[i], reference(plain, x[i], x[i], x[i], causal_bias(5))) < 1e-14);

  // What comes later changes nothing before it.
  const Tensor later = cat({x.narrow(1, 0, 3), noise({2, 2, kEmbed}, 8, DType::f64)}, 1);
  CHECK(same_bits(causal(later).narrow(1, 0, 3).contiguous(), out.narrow(1, 0, 3).contiguous()));
  CHECK_FALSE(same_bits(causal(later), out));

  const Tensor allowed = tril(ones({5, 5}, {.dtype = DType::bool_}));
  CHECK(distance(plain(x, x, x, {.mask = allowed}), out) < 1e-15);
  CHECK(distance(plain(x, x, x, {.causal = true}), out) < 1e-15);
  CHECK(distance(plain(x, x, x, {.mask = causal_bias(5)}), out) < 1e-15);
  // [N, L, S]: one for each of the batch.
  const Tensor all = ones({5, 5}, {.dtype = DType::bool_});
  const Tensor mixed = plain(x, x, x, {.mask = stack({allowed, all})});
  CHECK(distance(mixed[0], out[0]) < 1e-15);
  CHECK(distance(mixed[1], plain(x)[1]) < 1e-15);
}

TEST_CASE("gradients reach every parameter of attention as in the reference") {
  nn::MultiheadAttention m = attention();
  const Tensor x = noise({5, kEmbed}, 1, DType::f64);
  const Tensor weights = noise({5, kEmbed}, 2, DType::f64);
  sum(m(x) * weights).backward();
  std::vector<Tensor> grads;
  for (const Tensor& p : m.parameters()) grads.push_back(p.grad());
  m.zero_grad();
  sum(reference(m, x, x, x) * weights).backward();
  const std::vector<Tensor> parameters = m.parameters();
  for (std::size_t i = 0; i < grads.size(); ++i) CHECK(distance(grads[i], parameters[i].grad()) < 1e-13);
}

TEST_CASE("dropout of probabilities: in training only, and the same numbers for the same generator") {
  nn::MultiheadAttention m(kEmbed, kHeads, {.dropout = 0.5});
  const Tensor x = noise({2, 8, kEmbed});
  manual_seed(5);
  const Tensor first = m(x);
  const Tensor second = m(x);
  manual_seed(5);
  CHECK(same_bits(m(x), first));
  CHECK_FALSE(same_bits(first, second));
  m.eval();
  nn::MultiheadAttention without(kEmbed, kHeads);
  without.load_state_dict(m.state_dict());
  CHECK(same_bits(m(x), without(x)));
}

TEST_CASE("TransformerBlock drops and adds in one op, with the bits of two") {
  const auto make = [] {
    Generator generator(5);
    const GeneratorScope scope(generator);
    return nn::TransformerBlock(8, 2, {.dropout = 0.3, .causal = true});
  };
  nn::TransformerBlock together = make();
  nn::TransformerBlock apart = make();
  for (nn::Dropout* layer : {&apart.dropout1, &apart.dropout2})
    layer->register_forward_hook([](nn::Module&, const Tensor&, const Tensor&) {});
  for (const bool training : {true, false}) {
    together.train(training);
    apart.train(training);
    Tensor y[2], x[2];
    for (const bool fused : {false, true}) {
      Generator generator(9);
      const GeneratorScope scope(generator);
      x[fused] = noise({3, 5, 8}, 2).set_requires_grad();
      y[fused] = (fused ? together : apart)(x[fused]);
      CHECK(on_tape(y[fused], "dropout_add") == (fused && training));
      sum(square(y[fused])).backward();
    }
    CHECK(same_bits(y[0], y[1]));
    CHECK(same_bits(x[0].grad(), x[1].grad()));
    const auto mine = together.named_parameters();
    const auto theirs = apart.named_parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) CHECK(same_bits(mine[i].second.grad(), theirs[i].second.grad()));
    together.zero_grad();
    apart.zero_grad();
  }
  together.train();
  Profile profile;
  {
    const ObserverScope scope(profile);
    together(noise({3, 5, 8}, 2));
  }
  CHECK(contains(profile.table(), "dropout_add"));  // an observer sees what runs, and changes nothing
  const UnfusedScope parts;
  CHECK_FALSE(on_tape(together(noise({3, 5, 8}, 2)), "dropout_add"));
}

TEST_CASE("TransformerBlock is its parts, with the names of PyTorch's encoder layer") {
  nn::TransformerBlock block(8, 2, {.causal = true});
  std::vector<std::string> names;
  for (const auto& named : block.named_parameters()) names.push_back(named.first);
  CHECK(names == std::vector<std::string>{"self_attn.in_proj_weight", "self_attn.in_proj_bias",
                                          "self_attn.out_proj.weight", "self_attn.out_proj.bias", "linear1.weight",
                                          "linear1.bias", "linear2.weight", "linear2.bias", "norm1.weight",
                                          "norm1.bias", "norm2.weight", "norm2.bias"});
  CHECK(block.linear1.weight.sizes() == Shape{32, 8});
  const Tensor x = noise({2, 5, 8});
  const Tensor n = block.norm1(x);
  const Tensor y = x + block.self_attn(n, n, n, {.causal = true});
  CHECK(same_bits(block(x), y + block.linear2(gelu(block.linear1(block.norm2(y))))));
  nn::TransformerBlock like_gpt2(8, 2, {.causal = true, .gelu = Gelu::tanh});
  like_gpt2.load_state_dict(block.state_dict());
  CHECK(same_bits(like_gpt2(x), y + block.linear2(gelu(block.linear1(block.norm2(y)), Gelu::tanh))));
  // But for the order of sums, which may follow the number of rows.
  CHECK(max(abs(block(x).narrow(1, 0, 2) - block(x.narrow(1, 0, 2)))).item() < 1e-5);

  // Attending to itself alone, a position does not see its neighbours.
  const Tensor self = eye(5, {.dtype = DType::bool_});
  const Tensor other = cat({x.narrow(1, 0, 1), noise({2, 4, 8}, 9)}, 1);
  CHECK(same_bits(block(x, self).narrow(1, 0, 1).contiguous(), block(other, self).narrow(1, 0, 1).contiguous()));

  nn::TransformerBlock thin(8, 2, {.feedforward = 5, .dropout = 0.3, .bias = false});
  CHECK(thin.linear1.weight.sizes() == Shape{5, 8});
  CHECK(thin.parameters().size() == 6);
  CHECK_FALSE(same_bits(thin(x), thin(x)));
  thin.eval();
  CHECK(same_bits(thin(x), thin(x)));
}
