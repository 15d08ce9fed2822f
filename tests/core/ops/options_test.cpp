// Options hold what a caller may say; what op functions tell kernels is in the attributes alone.
#include <doctest/doctest.h>

#include "gradual/gradual.h"
#include "support/tensors.h"

namespace gradual {
namespace {

template <class T>
concept HasSize = requires(T t) { t.size; };
template <class T>
concept HasChannelsLast = requires(T t) { t.channels_last; };
template <class T>
concept HasNarrow = requires(T t) { t.narrow; };
template <class T>
concept HasKey = requires(T t) { t.key; };
static_assert(HasSize<ConvAttrs> && !HasSize<Conv2dOptions>);
static_assert(HasSize<PoolAttrs> && HasChannelsLast<PoolAttrs>);
static_assert(!HasSize<Pool2dOptions> && !HasChannelsLast<Pool2dOptions>);
static_assert(HasNarrow<CrossEntropyAttrs> && !HasNarrow<CrossEntropyOptions>);
static_assert(HasKey<AttentionAttrs> && !HasKey<AttentionOptions>);

TEST_CASE("options reach the kernels") {
  const Tensor x = randn({2, 4, 9, 8});
  const Tensor w = randn({6, 2, 3, 3});
  const Conv2dOptions o{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2};
  const ConvAttrs attrs{o};
  const Tensor none;
  const auto here = SourceLocation::current();
  CHECK(testing::same_bits(conv2d(x, w, {}, o), dispatch1(OpId::conv2d, {&x, &w, &none}, attrs, here)));
  const PoolAttrs pool{{.kernel = {3, 2}, .stride = {3, 2}, .padding = {1, 0}}};
  CHECK(testing::same_bits(max_pool2d(x, {.kernel = {3, 2}, .padding = {1, 0}}),
                           dispatch1(OpId::max_pool2d, {&x}, pool, here)));
  CHECK(adaptive_avg_pool2d(x, 3, 5).sizes() == Shape{2, 4, 3, 5});
  const Tensor logits = randn({3, 5});
  const Tensor classes = tensor({0, 4, 2}, {.dtype = DType::i64});
  const CrossEntropyOptions e{.reduction = Reduction::sum, .label_smoothing = 0.1, .ignore_index = 4};
  CHECK(testing::same_bits(cross_entropy(logits, classes, e),
                           dispatch1(OpId::cross_entropy, {&logits, &classes}, CrossEntropyAttrs{e}, here)));
}

TEST_CASE("the dropout of attention draws from a generator, and without dropout none is drawn") {
  const Tensor x = randn({8, 16});
  const auto attend = [&](double dropout, Generator& g) {
    return scaled_dot_product_attention(x, x, x, {}, {.dropout = dropout}, g);
  };
  Generator a(7);
  Generator b(7);
  const Tensor first = attend(0.5, a);
  CHECK_FALSE(testing::same_bits(first, attend(0.5, a)));
  attend(0, b);
  CHECK(testing::same_bits(first, attend(0.5, b)));
  manual_seed(3);
  const Tensor drawn = scaled_dot_product_attention(x, x, x, {}, {.dropout = 0.5});
  CHECK_FALSE(testing::same_bits(drawn, scaled_dot_product_attention(x, x, x, {}, {.dropout = 0.5})));
}

}  // namespace
}  // namespace gradual
