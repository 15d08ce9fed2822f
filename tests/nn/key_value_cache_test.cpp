// Attention with a cache of keys and values, against attention of all tokens at once.
#include <cmath>
#include <limits>

#include "helpers.h"

using namespace nn_test;

namespace {

constexpr std::int64_t kEmbed = 8;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kLength = 7;

// How far sums of a block may move by their order: 6 sums in a row (of both norms, q k v, scores, outputs, both layers
// of the rest) of at most 4 * kEmbed terms, each within (terms + 1) u of magnitudes near 1, in both ways of computing.
double bound(DType dtype) {
  const double u = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  return 2 * 8 * (4 * kEmbed + 1) * u;
}

nn::TransformerBlock block(DType dtype) {
  manual_seed(1);
  nn::TransformerBlock b(kEmbed, kHeads, {.causal = true});
  b.to(dtype);
  b.eval();
  return b;
}

nn::KeyValues keys_and_values(const Shape& sizes, DType dtype = DType::f32) {
  return {noise(sizes, 3, dtype), noise(sizes, 4, dtype)};
}

}  // namespace

TEST_CASE("key-value cache: parts of any length give what all tokens at once give, up to the order of sums") {
  const NoGrad off;
  for (const DType dtype : {DType::f32, DType::f64}) {
    nn::TransformerBlock b = block(dtype);
    const Tensor x = noise({3, kLength, kEmbed}, 2, dtype);
    const Tensor at_once = b(x);
    for (const std::vector<std::int64_t>& parts : {std::vector<std::int64_t>{7}, {1, 1, 1, 1, 1, 1, 1}, {3, 1, 2, 1}}) {
      nn::KeyValueCache cache;
      std::vector<Tensor> outputs;
      std::int64_t first = 0;
      for (const std::int64_t part : parts) {
        outputs.push_back(b(x.narrow(1, first, part), cache));
        first += part;
      }
      CHECK(cache.length() == kLength);
      CHECK(cache.nbytes() == 2 * static_cast<std::size_t>(3 * kLength * kEmbed) * size_of(dtype));
      CHECK(distance(cat(outputs, 1), at_once) <= bound(dtype));
    }
  }
}

TEST_CASE("key-value cache: formats are kept as codes, read as their values, in the dtype that was given") {
  const nn::KeyValues given = keys_and_values({2, kHeads, 5, 16});
  for (const char* name : {"fp32", "bf16", "fp16", "e4m3fn", "e5m2", "int8", "e2m1"}) {
    const Quantizer quantizer = nn::cache_quantizer(name);
    nn::KeyValueCache whole{quantizer};
    nn::KeyValueCache by_token{quantizer};
    const nn::KeyValues read = whole.append(given);
    nn::KeyValues last;
    for (std::int64_t t = 0; t < 5; ++t)
      last = by_token.append({given.keys.narrow(-2, t, 1), given.values.narrow(-2, t, 1)});
    CHECK(distance(read.keys, fake_quantize(given.keys, quantizer)) == 0);
    CHECK(distance(read.values, fake_quantize(given.values, quantizer)) == 0);
    CHECK(distance(last.keys, read.keys) == 0);  // a scale for each token
    CHECK(distance(last.values, read.values) == 0);
    CHECK(whole.nbytes() == by_token.nbytes());
    const std::size_t rows = 2 * 2 * kHeads * 5;
    const auto bits = static_cast<std::size_t>(format(name).storage_bits());
    CHECK(whole.nbytes() == rows * 16 * bits / 8 + (bits <= 8 ? rows * 4 : 0));
  }
  CHECK(distance(nn::KeyValueCache(nn::cache_quantizer("fp32")).append(given).keys, given.keys) == 0);
  const nn::KeyValues half = keys_and_values({kHeads, 5, 16}, DType::bf16);
  CHECK(nn::KeyValueCache(nn::cache_quantizer("e4m3fn")).append(half).keys.dtype() == DType::bf16);
}

TEST_CASE("key-value cache: what it keeps is its own") {
  const Tensor packed = noise({kHeads, 3, 3 * 4}, 3);  // as a packed projection gives them
  const nn::KeyValues given = {packed.narrow(-1, 4, 4), packed.narrow(-1, 8, 4)};
  const Tensor before = given.keys.contiguous().clone();
  nn::KeyValueCache cache;
  CHECK(!cache.append(given).keys.shares_storage(packed));
  packed.fill_(0);
  CHECK(distance(cache.append(keys_and_values({kHeads, 1, 4})).keys.narrow(-2, 0, 3), before) == 0);
}

TEST_CASE("key-value cache: random scales are drawn anew in each call") {
  const nn::KeyValues given = keys_and_values({kHeads, 4, 128});
  nn::KeyValueCache cache{Quantizer{.format = format("e2m1"), .scaling = EdenBlocks{}}};
  cache.append(given);
  const Tensor keys = cache.append(given).keys;
  CHECK(distance(keys.narrow(-2, 0, 4), keys.narrow(-2, 4, 4)) > 0);
}

TEST_CASE("key-value cache: an 8-bit cache moves attention by its rounding") {
  const NoGrad off;
  nn::TransformerBlock b = block(DType::f32);
  const Tensor x = noise({3, kLength, kEmbed}, 2);
  const Tensor at_once = b(x);
  const auto moved_by = [&](const char* name) {
    nn::KeyValueCache cache{nn::cache_quantizer(name)};
    return distance(b(x, cache), at_once);
  };
  CHECK(moved_by("fp32") <= bound(DType::f32));
  const double by_fp16 = moved_by("fp16");
  const double by_bf16 = moved_by("bf16");
  const double by_e4m3 = moved_by("e4m3fn");
  CHECK(by_fp16 > bound(DType::f32));
  CHECK(by_bf16 > 2 * by_fp16);
  CHECK(by_e4m3 > 2 * by_bf16);
  CHECK(by_e4m3 < 0.2);
}

TEST_CASE("key-value cache: what cannot be kept is an Error, and nothing is kept") {
  nn::KeyValueCache cache;
  cache.append(keys_and_values({2, 3, 4}));
  const auto of = [&](const nn::KeyValues& added) { return message_of([&] { cache.append(added); }); };
  CHECK(contains(of({zeros({2, 1, 4}), zeros({2, 2, 4})}), "keys f32 [2, 1, 4] and values f32 [2, 2, 4]"));
  CHECK(contains(of(keys_and_values({3, 1, 4})), "keys f32 [3, 1, 4], those before are f32 [2, 0, 4]"));
  CHECK(contains(of(keys_and_values({2, 1, 4}, DType::f64)), "keys f64 [2, 1, 4]"));
  CHECK(contains(of({zeros({2, 1, 4}).set_requires_grad(), zeros({2, 1, 4})}), "keeps no gradients"));
  CHECK(cache.length() == 3);
  CHECK(cache.append(keys_and_values({2, 1, 4})).keys.sizes() == Shape{2, 4, 4});
  CHECK(contains(
      message_of([] { nn::KeyValueCache refused(Quantizer{.format = format("e4m3fn"), .scaling = DelayedScale{}}); }),
      "takes no delayed or learned scaling"));

  const NoGrad off;
  nn::MultiheadAttention attention(kEmbed, kHeads);
  const Tensor x = noise({1, 2, kEmbed}, 2);
  const Tensor y = noise({1, 2, kEmbed}, 3);
  nn::KeyValueCache unused;
  const auto with = [&](const Tensor& key, nn::AttentionCall how) {
    how.cache = &unused;
    return message_of([&] { attention(x, key, key, how); });
  };
  for (const std::string& said :
       {with(x, {}), with(y, {.causal = true}), with(x, {.mask = ones({2, 2}), .causal = true})})
    CHECK(contains(said, "causal self-attention without a mask"));
  CHECK(unused.length() == 0);
}
