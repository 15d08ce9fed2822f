// Quantised products against their definition: operands rounded by fake_quantize along the axis that is contracted,
// then multiplied and summed in f64.
#include "../../amp/quantization.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <variant>

#include "../../amp/recipe.h"
#include "../../autograd/autograd.h"
#include "../../autograd/grad_mode.h"
#include "../../core/ops/conv_by_gemm.h"
#include "../../core/quantize/quantize_part.h"
#include "../../core/tensor/memory.h"
#include "../../nn/linear.h"
#include "../../optim/sgd.h"
#include "support.h"

using namespace gradual;
using amp::Quantization;

namespace {

struct Kind {
  std::string name;
  Quantization quantization;
};

Quantization same(const Quantizer& q) {
  return {.forward_x = q, .forward_w = q, .dgrad_dy = q, .dgrad_w = q, .wgrad_x = q, .wgrad_dy = q};
}

// Every kind of scaling, rounded to nearest: the definition draws no random numbers.
std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const char* name : {"e4m2", "fp8-delayed", "fp8-current", "fp8-rowwise", "fp8-block128", "mxfp8", "mxfp6",
                           "mxfp4", "nvfp4", "msamp-o1"})
    all.push_back({name, *amp::recipe(name).quantization});
  const Quantizer e4m3{.format = format("e4m3fn"), .scaling = FixedScale{.value = 12}};
  all.push_back({"a fixed scale", same(e4m3)});
  const FloatBlocks blocks{.block = 5};
  all.push_back({"ragged blocks with f32 scales", same({.format = format("e3m2"), .scaling = blocks})});
  for (const char* name : {"mxfp8", "nvfp4", "mx9", "hif4", "nvfp4-4over6", "fp8-block128"}) {
    Quantization small = *amp::recipe(name).quantization;
    for (const auto& [field, quantizer] : amp::kQuantizerFields)
      if (auto& q = small.*quantizer; q && block_size(q->scaling)) {
        if (auto* const parts = std::get_if<CodedParts>(&q->scaling)) *parts = {.part = 2, .inner_part = 1};
        set_block(q->scaling, 4);
      }
    all.push_back({std::string(name) + ", blocks of 4", small});
  }
  for (Kind& k : all) {
    k.quantization.weight = std::nullopt;  // the optimizer's, not the products'
    k.quantization.weight_gradient = std::nullopt;
    for (const auto& [field, quantizer] : amp::kQuantizerFields)
      if (auto& q = k.quantization.*quantizer) {
        q->rounding = {};
        q->hadamard = false;
        q->overflow = Overflow::saturate;
      }
  }
  return all;
}

bool per_tensor(const Quantizer& q) { return gradual::per_tensor(q.scaling); }

// The definition's own histories of delayed scaling.
struct Histories {
  AmaxHistory x, w, dy;

  void advance(const Quantization& q, const Tensor& x_now, const Tensor& w_now, const Tensor& dy_now) {
    if (!is_any<DelayedScale>(q.forward_x->scaling)) return;
    x.stage(absmax(x_now));
    x.advance(std::get<DelayedScale>(q.forward_x->scaling), q.forward_x->format);
    w.stage(absmax(w_now));
    w.advance(std::get<DelayedScale>(q.forward_w->scaling), q.forward_w->format);
    dy.stage(absmax(dy_now));
    dy.advance(std::get<DelayedScale>(q.dgrad_dy->scaling), q.dgrad_dy->format);
  }
};

Tensor rounded(const Tensor& t, const std::optional<Quantizer>& q, int axis, AmaxHistory& history) {
  return fake_quantize(t.detach(), *q, {.axis = axis, .history = &history, .use = QuantizeFor::evaluation});
}

// What is wanted, and for each element the sum of the products' magnitudes, which bounds its error.
struct Exact {
  Tensor value, magnitude;  // f64
};
Exact exact(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::f64);
  const Tensor y = b.to(DType::f64);
  return {matmul(x, y), matmul(abs(x), abs(y))};
}

// The largest error in units of its bound. Sums of k products in f32, in any order: k u of the magnitude, u = 2^-24
// (Higham 2002, 3.5). Eight roundings more: a product's two, the scales' on either way (two each at most), the bias.
double error(const Tensor& got, const Exact& want, std::int64_t k) {
  const auto y = got.detach().to_vector<double>();
  const auto e = want.value.to_vector<double>();
  const auto m = want.magnitude.to_vector<double>();
  REQUIRE(got.sizes() == want.value.sizes());
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double bound = 1.01 * static_cast<double>(k + 8) * 0x1p-24 * m[i] + 0x1p-140;
    worst = std::max(worst, std::isnan(y[i]) ? HUGE_VAL : std::abs(y[i] - e[i]) / bound);
  }
  return worst;
}

// A recipe's region around one op, its backward, and the ends of both.
struct Region {
  explicit Region(const Quantization& q) : recipe{.name = "test"}, state(std::make_shared<amp::QuantizationState>(q)) {
    recipe.quantization = q;
  }
  template <class F> Tensor forward(const F& f) const {
    const amp::RecipeScope scope(recipe, Device::cpu(), state);
    return f();
  }
  void backward(const Tensor& y, const Tensor& dy) const {
    autograd::backward({y}, {dy});
    state->end_backward();
  }
  amp::Recipe recipe;
  std::shared_ptr<amp::QuantizationState> state;
};

Tensor leaf(const Shape& sizes, std::uint64_t seed) {
  // magnitudes over 12 binades, so that blocks differ and small elements are lost
  const Tensor t = random(sizes, seed) * exp(random(sizes, seed + 100) * 2);
  return t.detach().set_requires_grad();
}

// New values for the same weight.
void renew(Tensor& w, const Tensor& values) {
  if (!w.defined()) {
    w = values;
    return;
  }
  const NoGrad off;
  w.copy_(values);
  w.zero_grad();
}

}  // namespace

TEST_CASE("matmul, forward and both gradients, under every kind of scaling") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    const Quantization& q = kind.quantization;
    for (const Shape& batch : {Shape{}, Shape{2}}) {
      const Region region(q);
      Histories h;
      Tensor w;  // one in both rounds: histories belong to weights
      const auto sized = [&](std::int64_t rows, std::int64_t cols) {
        Shape s = batch;
        s.push_back(rows);
        s.push_back(cols);
        return s;
      };
      for (std::uint64_t round = 0; round < 2; ++round) {  // the second one has delayed scales
        const Tensor x = leaf(sized(6, 40), round);
        renew(w, leaf(sized(40, 9), 10 + round));
        const Tensor dy = leaf(sized(6, 9), 20 + round).detach();
        const Tensor y = region.forward([&] { return matmul(x, w); });
        region.backward(y, dy);
        const auto t = [](const Tensor& m) { return m.detach().transpose(-1, -2); };
        const Exact forward = exact(rounded(x, q.forward_x, -1, h.x), rounded(w, q.forward_w, -2, h.w));
        CHECK(error(y, forward, 40) <= 1);
        CHECK(error(y, exact(x.detach(), w.detach()), 40) > 1);
        CHECK(error(x.grad(), exact(rounded(dy, q.dgrad_dy, -1, h.dy), rounded(t(w), q.dgrad_w, -2, h.w)), 9) <= 1);
        CHECK(error(w.grad(), exact(rounded(t(x), q.wgrad_x, -1, h.x), rounded(dy, q.wgrad_dy, -2, h.dy)), 6) <= 1);
        if (!per_tensor(*q.forward_x) && !has_tiles(q.forward_x->scaling) && block_size(q.forward_x->scaling) < 128) {
          const Exact wrong = exact(rounded(x, q.forward_x, -2, h.x), rounded(w, q.forward_w, -2, h.w));
          CHECK(error(y, wrong, 40) > 1);
        }
        h.advance(q, x.detach(), w.detach(), dy);
      }
    }
  }
}

TEST_CASE("products with vectors, and of a matrix with a batch") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    const Quantization& q = kind.quantization;
    Histories h;
    for (const auto& [left, right] : {std::pair{Shape{33}, Shape{33, 7}},
                                      {Shape{6, 33}, Shape{33}},
                                      {Shape{33}, Shape{33}},
                                      {Shape{3, 6, 33}, Shape{33, 7}},
                                      {Shape{33}, Shape{3, 33, 7}},
                                      {Shape{3, 6, 33}, Shape{33}}}) {
      const Region region(q);
      const Tensor x = leaf(left, 1);
      const Tensor w = leaf(right, 2);
      const int axis = right.size() == 1 ? -1 : -2;
      const Tensor y = region.forward([&] { return matmul(x, w); });
      CHECK(error(y, exact(rounded(x, q.forward_x, -1, h.x), rounded(w, q.forward_w, axis, h.w)), 33) <= 1);
      region.backward(y, ones(y.sizes()));
      CHECK(x.grad().sizes() == left);
      CHECK(w.grad().sizes() == right);
    }
  }
}

TEST_CASE("linear with a bias, rows of several dims") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    const Quantization& q = kind.quantization;
    const Region region(q);
    Histories h;
    Tensor w;
    for (std::uint64_t round = 0; round < 2; ++round) {
      const Tensor x = leaf({2, 5, 37}, round);
      const Tensor b = leaf({9}, 30);
      renew(w, leaf({9, 37}, 10 + round));
      const Tensor dy = leaf({2, 5, 9}, 20 + round).detach();
      const Tensor y = region.forward([&] { return linear(x, w, b); });
      region.backward(y, dy);
      Exact forward = exact(rounded(x, q.forward_x, -1, h.x), rounded(w, q.forward_w, -1, h.w).t());
      forward.value = forward.value + b.detach().to(DType::f64);
      forward.magnitude = forward.magnitude + abs(b.detach().to(DType::f64));
      CHECK(error(y, forward, 37) <= 1);
      CHECK(error(x.grad(), exact(rounded(dy, q.dgrad_dy, -1, h.dy), rounded(w, q.dgrad_w, 0, h.w)), 9) <= 1);
      const Tensor rows = dy.reshape({10, 9});
      const Tensor in = x.detach().reshape({10, 37});
      CHECK(error(w.grad(), exact(rounded(rows, q.wgrad_dy, 0, h.dy).t(), rounded(in, q.wgrad_x, 0, h.x)), 10) <= 1);
      CHECK(same_bits(b.grad(), sum(rows, {0})));  // high precision
      h.advance(q, x.detach(), w.detach(), dy);
    }
    const Tensor one = leaf({37}, 50);
    const Tensor v = leaf({9, 37}, 51);
    Histories fresh;
    const Tensor y = region.forward([&] { return linear(one, v); });
    CHECK(error(y, exact(rounded(one, q.forward_x, -1, fresh.x), rounded(v, q.forward_w, -1, fresh.w).t()), 37) <= 1);
  }
}

namespace {

struct Conv {
  std::int64_t n, c, h, w, o, kh, kw;
  ConvAttrs attrs;
  std::int64_t out(int i) const {
    const std::int64_t size = i ? w : h;
    const std::int64_t kernel = i ? kw : kh;
    return (size + 2 * attrs.padding[i] - attrs.dilation[i] * (kernel - 1) - 1) / attrs.stride[i] + 1;
  }
};

// An element of a [N, C, H, W] tensor; 0 outside of it.
struct PaddedImages {
  explicit PaddedImages(const Tensor& t) : values(t.detach().to_vector<float>()), sizes(t.sizes()) {}
  float operator()(std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) const {
    if (y < 0 || x < 0 || y >= sizes[2] || x >= sizes[3]) return 0;
    return values[static_cast<std::size_t>(((n * sizes[1] + c) * sizes[2] + y) * sizes[3] + x)];
  }
  std::vector<float> values;
  Shape sizes;
};

// [d0 d1 d2, e0 e1 e2] of f at all indices.
template <class F> Tensor table(std::array<std::int64_t, 3> d, std::array<std::int64_t, 3> e, const F& f) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < d[0] * d[1] * d[2]; ++i)
    for (std::int64_t k = 0; k < e[0] * e[1] * e[2]; ++k)
      out.push_back(f(i / (d[1] * d[2]), i / d[2] % d[1], i % d[2], k / (e[1] * e[2]), k / e[2] % e[1], k % e[2]));
  return from_data(out, {d[0] * d[1] * d[2], e[0] * e[1] * e[2]});
}

// The three products of a group as matrices with K last: forward over (kh, kw, c), dgrad over (kh, kw, o) with the
// kernel turned, wgrad over (oh, ow, n).
struct Products {
  Products(const Conv& v, std::int64_t group, const PaddedImages& x, const PaddedImages& w, const PaddedImages& dy) {
    const std::int64_t cs = v.c / v.attrs.groups;
    const std::int64_t os = v.o / v.attrs.groups;
    const std::int64_t oh = v.out(0);
    const std::int64_t ow = v.out(1);
    const auto& s = v.attrs.stride;
    const auto& p = v.attrs.padding;
    const auto& d = v.attrs.dilation;
    const auto window = [&, group](auto n, auto oy, auto ox, auto c, auto ky, auto kx) {
      return x(n, group * cs + c, oy * s[0] - p[0] + ky * d[0], ox * s[1] - p[1] + kx * d[1]);
    };
    forward_x = table({v.n, oh, ow}, {v.kh, v.kw, cs},
                      [&](auto n, auto oy, auto ox, auto ky, auto kx, auto c) { return window(n, oy, ox, c, ky, kx); });
    forward_w = table({1, 1, os}, {v.kh, v.kw, cs},
                      [&](auto, auto, auto o, auto ky, auto kx, auto c) { return w(group * os + o, c, ky, kx); });
    dgrad_dy = table({v.n, v.h, v.w}, {v.kh, v.kw, os}, [&](auto n, auto iy, auto ix, auto ty, auto tx, auto o) {
      const std::int64_t y = iy + p[0] - (v.kh - 1 - ty) * d[0];
      const std::int64_t xx = ix + p[1] - (v.kw - 1 - tx) * d[1];
      if (y < 0 || xx < 0 || y % s[0] || xx % s[1]) return 0.0F;
      return dy(n, group * os + o, y / s[0], xx / s[1]);
    });
    dgrad_w = table({1, 1, cs}, {v.kh, v.kw, os}, [&](auto, auto, auto c, auto ty, auto tx, auto o) {
      return w(group * os + o, c, v.kh - 1 - ty, v.kw - 1 - tx);
    });
    wgrad_dy = table({1, 1, os}, {oh, ow, v.n},
                     [&](auto, auto, auto o, auto oy, auto ox, auto n) { return dy(n, group * os + o, oy, ox); });
    wgrad_x = table({cs, v.kh, v.kw}, {oh, ow, v.n},
                    [&](auto c, auto ky, auto kx, auto oy, auto ox, auto n) { return window(n, oy, ox, c, ky, kx); });
  }
  Tensor forward_x, forward_w, dgrad_dy, dgrad_w, wgrad_dy, wgrad_x;
};

// An operand's rows, of a tensor whose largest magnitude is `amax`, and its quantizer.
struct Rows {
  const Tensor& rows;
  const Quantizer& by;
  Tensor amax;

  Tensor rounded() const {
    if (per_tensor(by)) return rows;  // that was done to the whole tensor
    const QuantizedOperand r = quantize_part(rows, by, {.axis = 1}, {.amax = amax});
    return r.scale.defined() ? r.values * r.scale : r.values;
  }
};
Exact product_of(const Rows& a, const Rows& b) { return exact(a.rounded(), b.rounded().t()); }

// A product [n h w, c] of each group as images [n, groups c, h, w].
Exact images(const std::vector<Exact>& groups, std::int64_t n, std::int64_t h, std::int64_t w) {
  const auto joined = [&](Tensor Exact::*part) {
    std::vector<Tensor> all;
    for (const Exact& g : groups) all.push_back((g.*part).reshape({n, h, w, -1}).permute({0, 3, 1, 2}));
    return cat(all, 1);
  };
  return {joined(&Exact::value), joined(&Exact::magnitude)};
}

const Conv kConvs[] = {
    {2, 4, 6, 5, 6, 3, 3, {{.padding = {1, 1}}}},
    {2, 3, 8, 7, 5, 3, 2, {{.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}}}},
    {2, 4, 7, 6, 6, 3, 3, {{.stride = {3, 2}, .padding = {1, 2}, .groups = 2}}},
    {1, 4, 5, 5, 4, 1, 1, {{.stride = {2, 2}, .padding = {1, 1}, .groups = 4}}},  // windows that see padding alone
    {4, 8, 5, 6, 4, 2, 3, {{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2}}},
    {32, 32, 3, 3, 32, 2, 1, {{.padding = {0, 1}}}},
    {2, 5, 40, 40, 3, 3, 3, {{.padding = {1, 1}}}},  // windows in several parts
};

}  // namespace

TEST_CASE("convolutions are the products of their windows: blocks run along K of each of the three") {
  for (const Kind& kind : kinds()) {
    CAPTURE(kind.name);
    const Quantization& q = kind.quantization;
    for (const Conv& v : kConvs) {
      CAPTURE(v.attrs.groups);
      CAPTURE(v.kh);
      const std::int64_t cs = v.c / v.attrs.groups;
      const std::int64_t os = v.o / v.attrs.groups;
      const Region region(q);
      Histories h;
      Tensor w;
      for (std::uint64_t round = 0; round < 2; ++round) {
        const Tensor x = leaf({v.n, v.c, v.h, v.w}, round);
        renew(w, leaf({v.o, cs, v.kh, v.kw}, 10 + round));
        const Tensor b = leaf({v.o}, 40);
        const Tensor dy = leaf({v.n, v.o, v.out(0), v.out(1)}, 20 + round).detach();
        const Tensor y = region.forward([&] { return conv2d(x, w, b, v.attrs); });
        region.backward(y, dy);
        // One scale per tensor rounds the tensor; the others round its windows.
        const auto whole = [](const Tensor& t, const Quantizer& by, AmaxHistory& history) {
          return PaddedImages(per_tensor(by) ? rounded(t, by, -1, history) : t);
        };
        const PaddedImages fx = whole(x, *q.forward_x, h.x);
        const PaddedImages fw = whole(w, *q.forward_w, h.w);
        const PaddedImages fdy = whole(dy, *q.dgrad_dy, h.dy);
        std::vector<Exact> forward, dgrad, wgrad;
        for (std::int64_t g = 0; g < v.attrs.groups; ++g) {
          const Products m(v, g, fx, fw, fdy);
          const Tensor ax = absmax_tensor(x.detach());
          const Tensor aw = absmax_tensor(w.detach());
          const Tensor ady = absmax_tensor(dy);
          forward.push_back(product_of({m.forward_x, *q.forward_x, ax}, {m.forward_w, *q.forward_w, aw}));
          dgrad.push_back(product_of({m.dgrad_dy, *q.dgrad_dy, ady}, {m.dgrad_w, *q.dgrad_w, aw}));
          wgrad.push_back(product_of({m.wgrad_dy, *q.wgrad_dy, ady}, {m.wgrad_x, *q.wgrad_x, ax}));
        }
        Exact want = images(forward, v.n, v.out(0), v.out(1));
        const Tensor bias = b.detach().to(DType::f64).reshape({v.o, 1, 1});
        want.value = want.value + bias;
        want.magnitude = want.magnitude + abs(bias);
        CHECK(error(y, want, cs * v.kh * v.kw) <= 1);
        CHECK(error(x.grad(), images(dgrad, v.n, v.h, v.w), os * v.kh * v.kw) <= 1);
        Exact dw = wgrad[0];
        for (std::size_t g = 1; g < wgrad.size(); ++g) {
          dw.value = cat({dw.value, wgrad[g].value}, 0);
          dw.magnitude = cat({dw.magnitude, wgrad[g].magnitude}, 0);
        }
        CHECK(error(w.grad().flatten(1), dw, v.n * v.out(0) * v.out(1)) <= 1);
        CHECK(error(b.grad(), {sum(dy.to(DType::f64), {0, 2, 3}), sum(abs(dy.to(DType::f64)), {0, 2, 3})},
                    v.n * v.out(0) * v.out(1)) <= 1);
        h.advance(q, x.detach(), w.detach(), dy);
      }
    }
  }
}

namespace {

// conv2d and its gradients by quantisation q with sums in f64, once as amp computes them and once as products of
// windows that are rounded as rows: [y, dx, dw, ..].
std::vector<Tensor> both_ways(Quantization q, const Conv& v) {
  q.accumulator = Accumulator{.f64 = true};
  const Region region(q);
  const Tensor x = leaf({v.n, v.c, v.h, v.w}, 1);
  const Tensor w = leaf({v.o, v.c / v.attrs.groups, v.kh, v.kw}, 2);
  const Tensor y = region.forward([&] { return conv2d(x, w, {}, v.attrs); });
  const Tensor dy = leaf(y.sizes(), 3).detach();
  region.backward(y, dy);
  const NoGrad off;
  const AccumulatorScope sums(q.accumulator);
  const auto by_rows = [&](OpId op, const Tensor& a, const Quantizer& qa, const Tensor& b, const Quantizer& qb,
                           const Shape& out, const Size2& size) {
    const auto rounded_product = [&](const Tensor& rows, const Tensor& columns, const ConvPart&) {
      const QuantizedOperand r = quantize_part(rows, qa, {.axis = 1}, {.amax = absmax_tensor(a)});
      const QuantizedOperand c = quantize_part(columns, qb, {.axis = 0}, {.amax = absmax_tensor(b)});
      Tensor product = matmul(r.values, c.values);
      if (r.scale.defined()) product.mul_(r.scale);
      if (c.scale.defined()) product.mul_(c.scale);
      return product;
    };
    ConvAttrs attrs = v.attrs;
    attrs.size = size;
    return conv_by_products(op, a.detach(), b.detach(), attrs, out, rounded_product, 0);
  };
  return {y.detach(),
          x.grad(),
          w.grad(),
          by_rows(OpId::conv2d, x, *q.forward_x, w, *q.forward_w, y.sizes(), 0),
          by_rows(OpId::conv2d_backward_input, dy, *q.dgrad_dy, w, *q.dgrad_w, x.sizes(), {v.h, v.w}),
          by_rows(OpId::conv2d_backward_weight, dy, *q.wgrad_dy, x, *q.wgrad_x, w.sizes(), {v.kh, v.kw})};
}

}  // namespace

TEST_CASE("convolutions: operands that are rounded once have the bits of windows that are rounded as rows") {
  for (const Kind& kind : kinds()) {
    if (per_tensor(*kind.quantization.forward_x)) continue;
    CAPTURE(kind.name);
    for (const Conv& v : kConvs) {
      CAPTURE(v.c);
      CAPTURE(v.kh);
      const std::vector<Tensor> all = both_ways(kind.quantization, v);
      CHECK(same_bits(all[0], all[3]));
      CHECK(same_bits(all[1], all[4]));
      CHECK(same_bits(all[2], all[5]));
    }
  }
}

TEST_CASE("convolutions round each number once where blocks divide the channels") {
  // Two output channels, of which the second sees x one pixel further to the left.
  const Tensor w = zeros({2, 4, 1, 2});
  w.select(0, 0).select(2, 1).fill_(1);
  w.select(0, 1).select(2, 0).fill_(1);
  const Tensor x = random({2, 4, 6, 6}, 1);
  for (const int block : {2, 3}) {
    const Quantizer by_chance{
        .format = format("e2m1"), .rounding = rounding_from_name("stochastic"), .scaling = PowerBlocks{.block = block}};
    const Region region({.forward_x = by_chance});
    const Tensor y = region.forward([&] { return conv2d(x, w); });
    const Tensor sooner = y.select(1, 0).narrow(2, 0, 4);
    const Tensor later = y.select(1, 1).narrow(2, 1, 4);
    CHECK(same_bits(sooner, later) == (block == 2));
  }
}

TEST_CASE("the gradient of a transformed convolution's weight does not hold its operands twice") {
  const Quantizer q{.format = format("e2m1"), .scaling = PowerBlocks{.block = 16}, .hadamard = true};
  const Region region({.wgrad_x = q, .wgrad_dy = q});
  const Tensor x = random({16, 64, 16, 16}, 1);
  const Tensor w = leaf({64, 64, 1, 1}, 2);
  const Tensor y = region.forward([&] { return conv2d(x, w); });
  const Tensor dy = random(y.sizes(), 3);
  reset_peak_memory();
  const std::int64_t before = memory_stats().total.current;
  region.backward(y, dy);
  // dy rounded, and of x two of: in order, transformed, rounded, in the kernel's order
  const auto bytes = static_cast<double>(dy.nbytes());
  CHECK(static_cast<double>(memory_stats().total.peak - before) <= 3.5 * bytes);
}

TEST_CASE("convolutions transform groups of 16 channels or samples, and zeros fill the last group") {
  const Quantizer q{.format = format("e8m23"), .hadamard = true};  // rounds nothing
  for (const Conv& v : kConvs) {
    const auto step = [&](const Quantization& by) {
      const Region region(by);
      const Tensor x = leaf({v.n, v.c, v.h, v.w}, 1);
      const Tensor w = leaf({v.o, v.c / v.attrs.groups, v.kh, v.kw}, 2);
      const Tensor y = region.forward([&] { return conv2d(x, w, {}, v.attrs); });
      region.backward(y, leaf(y.sizes(), 3).detach());
      return std::vector<Tensor>{y.detach(), x.grad(), w.grad()};
    };
    const std::vector<Tensor> exact_step = step({});
    const std::vector<Tensor> turned = step(same(q));
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(absmax(turned[i] - exact_step[i]) <= 1e-5 * absmax(exact_step[i]));
      CHECK_FALSE(same_bits(turned[i], exact_step[i]));
    }
  }
  // By hand: rounding follows the transform.
  const auto by_hand = [](const Tensor& t) {
    const Tensor last = pad(t.permute({0, 2, 3, 1}), {0, 0, 0, 0}, {0, 0, 0, 13});
    return fake_quantize(hadamard16(last, 0x9d2b), {.format = format("e4m3fn")}).permute({0, 3, 1, 2});
  };
  const Tensor x = random({2, 3, 5, 5}, 1);
  const Tensor w = random({4, 3, 3, 3}, 2);
  const Quantizer narrow{.format = format("e4m3fn"), .hadamard = true};
  const Region region({.forward_x = narrow, .forward_w = narrow});
  const Tensor want = conv2d(by_hand(x), by_hand(w));
  CHECK(absmax(region.forward([&] { return conv2d(x, w); }) - want) <= 1e-6 * absmax(want));
}

TEST_CASE("the accumulator of a quantisation is that of its three products") {
  Quantization q = *amp::recipe("mxfp8").quantization;
  for (const char* name : {"fp16-acc", "hopper-fp8-14bit/promote=16"}) {
    CAPTURE(name);
    q.accumulator = accumulator(name);
    const Region region(q);
    const Tensor x = leaf({6, 40}, 1);
    const Tensor w = leaf({40, 9}, 2);
    const Tensor dy = leaf({6, 9}, 3).detach();
    const Tensor y = region.forward([&] { return matmul(x, w); });
    region.backward(y, dy);
    const auto t = [](const Tensor& m) { return m.detach().t(); };
    Histories h;
    const auto product = [&](const Tensor& a, const Tensor& b) {
      const AccumulatorScope scope(q.accumulator);
      return matmul(a, b);
    };
    CHECK(same_bits(y, product(rounded(x, q.forward_x, -1, h.x), rounded(w, q.forward_w, -2, h.w))));
    CHECK(same_bits(x.grad(), product(rounded(dy, q.dgrad_dy, -1, h.dy), rounded(t(w), q.dgrad_w, -2, h.w))));
    CHECK(same_bits(w.grad(), product(rounded(t(x), q.wgrad_x, -1, h.x), rounded(dy, q.wgrad_dy, -2, h.dy))));
    CHECK_FALSE(same_bits(y, matmul(rounded(x, q.forward_x, -1, h.x), rounded(w, q.forward_w, -2, h.w))));
  }
}

TEST_CASE("a convolution of one scale per tensor with one per row: codes are of the operand, not of its windows") {
  const Quantizer tensor{.format = format("e4m3fn"), .scaling = TensorScale{}};
  Quantizer row = tensor;
  row.scaling = RowScale{};
  Tensor dw[2];
  for (const bool codes : {false, true}) {
    const Region region({.forward_x = tensor, .forward_w = row, .wgrad_x = tensor, .save_codes = codes});
    const Tensor x = leaf({2, 4, 6, 6}, 1);
    const Tensor w = leaf({6, 2, 3, 3}, 2);
    const Tensor y = region.forward([&] { return conv2d(x, w, {}, {.stride = {2, 2}, .groups = 2}); });
    region.backward(y, random(y.sizes(), 3));
    dw[codes] = w.grad();
    // x is rounded with its own amax, whatever the windows and groups that its elements fall into
    const Tensor want =
        conv2d(fake_quantize(x.detach(), tensor), fake_quantize(w.detach().flatten(1), row).reshape(w.sizes()), {},
               {.stride = {2, 2}, .groups = 2});
    CHECK(max(abs(y.detach() - want)).item() <= 1e-5 * max(abs(want)).item());
  }
  CHECK(same_bits(dw[0], dw[1]));
}

TEST_CASE("linear transforms its operands as matmul does") {
  Quantizer q{.format = format("e2m1"), .scaling = TensorScale{}, .hadamard = true};
  const Region region({.forward_x = q, .forward_w = q});
  const Tensor x = random({4, 40}, 1);
  const Tensor w = random({8, 40}, 2);
  const Tensor y = region.forward([&] { return linear(x, w); });
  CHECK(same_bits(y, region.forward([&] { return matmul(x, w.t()); })));
  q.hadamard = false;
  const Region plain({.forward_x = q, .forward_w = q});
  CHECK_FALSE(same_bits(y, plain.forward([&] { return linear(x, w); })));
}

TEST_CASE("without an accumulator of its own a quantised product has that of the scope") {
  const Tensor x = random({2, 300}, 1);
  const Tensor w = random({3, 300}, 2);
  const AccumulatorScope scope(accumulator("bf16-acc"));
  Quantization q = *amp::recipe("e8m23").quantization;
  CHECK(same_bits(Region(q).forward([&] { return linear(x, w); }), linear(x, w)));
  q.accumulator = Accumulator{.f64 = true};
  CHECK_FALSE(same_bits(Region(q).forward([&] { return linear(x, w); }), linear(x, w)));
}

TEST_CASE("the Hadamard transform is orthogonal: it changes what is rounded, not the product") {
  Quantization q = same({.format = format("e8m20"), .hadamard = true});
  const Region fine(q);
  // padded to 16 inside
  const Tensor x = leaf({5, 23}, 1);
  const Tensor w = leaf({23, 18}, 2);
  const Tensor dy = leaf({5, 18}, 3).detach();
  Tensor y = fine.forward([&] { return matmul(x, w); });
  fine.backward(y, dy);
  // With u = 2^-24: a transform is a matrix product of 16 terms with |H| of norm 4, so that its error is 64 u of a
  // row's norm, which the transform keeps; rounding adds 8 u; summing 32 products 32 u. By Cauchy and Schwarz the
  // product is off by no more than so much of |row| |column|: 2 (64 + 8) + 32, and what is left of second order.
  const auto check = [](const Tensor& got, const Tensor& left, const Tensor& right) {
    const Tensor a = left.to(DType::f64);
    const Tensor b = right.to(DType::f64);
    const Tensor bound = sqrt(matmul(sum(a * a, {1}, true), sum(b * b, {0}, true))) * (180 * 0x1p-24);
    CHECK(max(abs(got.detach().to(DType::f64) - matmul(a, b)) / bound).item() <= 1);
  };
  check(y, x.detach(), w.detach());
  check(x.grad(), dy, w.detach().t());
  check(w.grad(), x.detach().t(), dy);
  q = same({.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16}, .hadamard = true});
  const Region coarse(q);
  const Tensor turned = coarse.forward([&] { return matmul(x, w); });
  for (auto& [field, quantizer] : amp::kQuantizerFields)
    if (auto& one = q.*quantizer) one->hadamard = false;
  CHECK_FALSE(same_bits(turned, Region(q).forward([&] { return matmul(x, w); })));
  Quantization half = q;
  half.wgrad_x->hadamard = true;
  CHECK(message_of([&] { amp::check_valid(half); }) ==
        "quantization, wgrad: the Hadamard transform is of both operands, in one size, or of none");
  half.wgrad_dy->hadamard = 32;
  CHECK_THROWS_AS(amp::check_valid(half), Error);
  half.wgrad_dy->hadamard = 24;
  CHECK(message_of([&] { amp::check_valid(half); }).find("allowed are 16, 32, 64, 128 and 256") != std::string::npos);
}

TEST_CASE("a Hadamard transform of any size keeps the product, and spreads an outlier over its group") {
  for (const int size : kHadamardSizes) {
    CAPTURE(size);
    const Region fine(same({.format = format("e8m20"), .hadamard = size}));
    const Tensor x = random({4, 300}, 1);
    const Tensor w = random({5, 300}, 2);
    const Tensor y = fine.forward([&] { return linear(x, w); });
    const Tensor want = matmul(x.to(DType::f64), w.to(DType::f64).t());
    // As above, with sums of `size` terms in the transform, whose |H| has the norm sqrt(size).
    const Tensor bound = sqrt(matmul(sum(square(x), {1}, true), sum(square(w), {1}, true).t())).to(DType::f64) *
                         ((2 * (size * std::sqrt(size) + 8) + 600) * 0x1p-24);
    CHECK(max(abs(y.to(DType::f64) - want) / bound).item() <= 1);

    std::vector<bool> signs(static_cast<std::size_t>(size), true);
    const Tensor outlier = zeros({1, size});
    outlier.narrow(1, 0, 1).fill_(1);
    const Tensor spread = abs(hadamard(outlier, signs));
    CHECK(same_bits(spread, full({1, size}, 1 / std::sqrt(static_cast<double>(size)))));
  }
}

namespace {

// x without its mean over the samples, and the mean.
std::pair<Tensor, Tensor> centered(const Tensor& x) {
  const Tensor mean = x.to(DType::f32).mean({0}, true);
  return {(x - mean).detach(), mean.detach()};
}

}  // namespace

TEST_CASE("center: the mean over samples is subtracted before rounding and made up for, in all three products") {
  Quantization q = same({.format = format("e2m1"), .scaling = PowerBlocks{.block = 8}});
  q.forward_x->center = true;
  q.wgrad_x->center = true;
  q.dgrad_dy->center = true;
  q.wgrad_dy->center = true;
  const Region region(q);
  for (const bool as_matmul : {false, true}) {
    CAPTURE(as_matmul);
    const Tensor x = (random({24, 16}, 1) + 3.0).detach().set_requires_grad();
    const Tensor w = random({10, 16}, 2).set_requires_grad();
    const Tensor dy = (random({24, 10}, 3) - 2.0).detach();
    const Tensor y = region.forward([&] { return as_matmul ? matmul(x, w.t()) : linear(x, w); });
    region.backward(y, dy);
    AmaxHistory none;
    const auto [xc, x_mean] = centered(x);
    const auto [dyc, dy_mean] = centered(dy);
    const auto f64 = [](const Tensor& t) { return t.detach().to(DType::f64); };
    const auto product = [&](const Tensor& a, const std::optional<Quantizer>& qa, const Tensor& b,
                             const std::optional<Quantizer>& qb) {
      Quantizer left = *qa;
      Quantizer right = *qb;
      left.center = false;
      right.center = false;
      return matmul(f64(fake_quantize(a.detach(), left, {.axis = -1})),
                    f64(fake_quantize(b.detach(), right, {.axis = -2})));
    };
    const auto close = [&](const Tensor& got, const Tensor& want) {
      CHECK(max(abs(f64(got) - want)).item() <= 1e-4 * max(abs(want)).item());
    };
    close(y, product(xc, q.forward_x, w.t(), q.forward_w) + matmul(f64(x_mean), f64(w).t()));
    close(x.grad(), product(dyc, q.dgrad_dy, w, q.dgrad_w) + matmul(f64(dy_mean), f64(w)));
    close(w.grad(), product(dyc.t(), q.wgrad_dy, xc, q.wgrad_x) + 24.0 * matmul(f64(dy_mean).t(), f64(x_mean)));
  }
}

namespace {

// Means of x and dy, which differ by channel, in units of what tells samples apart.
Tensor with_mean(const Tensor& t, double mean) {
  const Tensor channels = arange(0, static_cast<double>(t.size(1)), 1, {.dtype = DType::f32}).reshape({1, -1, 1, 1});
  return (t + mean * (1.0 + channels)).detach();
}
// The sum of the magnitudes that a centered operand has in its two parts.
Tensor magnitude(const Tensor& t) { return abs(t) + abs(t.mean({0, 2, 3}, true)); }

// [y, dx, dw] of a convolution.
std::vector<Tensor> conv_step(const Quantization& q, const Conv& v, const Tensor& x, const Tensor& w, const Tensor& dy,
                              bool transposed = false) {
  const Region region(q);
  const Tensor a = x.detach().set_requires_grad();
  const Tensor b = w.detach().set_requires_grad();
  const Tensor y = region.forward([&] {
    if (!transposed) return conv2d(a, b, {}, v.attrs);
    ConvAttrs attrs = v.attrs;
    attrs.size = {v.h, v.w};
    return conv2d_backward_input(a, b, attrs);
  });
  region.backward(y, dy);
  return {y.detach(), a.grad(), b.grad()};
}

Quantization all_centered(const Quantizer& by) {
  Quantization q = same(by);
  q.forward_x->center = true;
  q.wgrad_x->center = true;
  q.dgrad_dy->center = true;
  q.wgrad_dy->center = true;
  return q;
}

}  // namespace

TEST_CASE("center: the products of convolutions are exact if nothing is rounded, whatever their geometry") {
  const Quantization none = all_centered({.format = format("e8m23")});
  for (const Conv& v : kConvs)
    for (const bool transposed : {false, true}) {
      CAPTURE(v.attrs.groups);
      CAPTURE(v.kh);
      CAPTURE(transposed);
      const Shape images[2] = {{v.n, v.c, v.h, v.w}, {v.n, v.o, v.out(0), v.out(1)}};
      const Tensor x = with_mean(random(images[transposed], 1), 3);
      const Tensor dy = with_mean(random(images[!transposed], 3), -2);
      const Tensor w = random({v.o, v.c / v.attrs.groups, v.kh, v.kw}, 2);
      const auto f64 = [](const Tensor& t) { return t.to(DType::f64); };
      const std::vector<Tensor> got = conv_step(none, v, x, w, dy, transposed);
      const std::vector<Tensor> want = conv_step({}, v, f64(x), f64(w), f64(dy), transposed);
      const std::vector<Tensor> sizes =
          conv_step({}, v, f64(magnitude(x)), f64(abs(w)), f64(magnitude(dy)), transposed);
      // Each of both parts is a sum of at most `terms` products; a mean's own error cancels.
      const std::int64_t terms = std::max(v.n * v.out(0) * v.out(1), std::max(v.c, v.o) * v.kh * v.kw);
      for (std::size_t i = 0; i < 3; ++i) CHECK(error(got[i], {want[i], 2.0 * sizes[i]}, terms) <= 1);
    }
}

TEST_CASE("center: a convolution rounds what tells samples apart, not their mean") {
  const Quantizer narrow{.format = format("e2m1"), .scaling = PowerBlocks{.block = 8}};
  for (const Conv& v : kConvs) {
    CAPTURE(v.attrs.groups);
    CAPTURE(v.kh);
    if (v.n * v.out(0) * v.out(1) < 16) continue;  // so few numbers do not average out
    const Tensor x = with_mean(random({v.n, v.c, v.h, v.w}, 1), 3);
    const Tensor dy = with_mean(random({v.n, v.o, v.out(0), v.out(1)}, 3), 2);
    const Tensor w = random({v.o, v.c / v.attrs.groups, v.kh, v.kw}, 2);
    Quantization q = all_centered(narrow);
    q.forward_w = std::nullopt;
    q.dgrad_w = std::nullopt;
    const std::vector<Tensor> exactly = conv_step({}, v, x, w, dy);
    const std::vector<Tensor> with = conv_step(q, v, x, w, dy);
    for (auto* of : {&q.forward_x, &q.wgrad_x, &q.dgrad_dy, &q.wgrad_dy}) (*of)->center = false;
    const std::vector<Tensor> without = conv_step(q, v, x, w, dy);
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(3 * norm(with[i] - exactly[i]).item() < norm(without[i] - exactly[i]).item());
    }
  }
}

TEST_CASE("center: the other operand may have been saved as codes, whose scale counts in both parts") {
  Quantization q = same({.format = format("e4m3fn"), .scaling = TensorScale{}});
  q.dgrad_dy->center = true;
  q.wgrad_dy->center = true;
  Tensor dw[2][2];
  for (const bool codes : {false, true}) {
    q.save_codes = codes;
    const Region region(q);
    const Tensor x = leaf({6, 8}, 1);
    const Tensor w = leaf({4, 8}, 2);
    region.backward(region.forward([&] { return linear(x, w); }), random({6, 4}, 3) + 2.0);
    dw[0][codes] = w.grad();
    const Conv& v = kConvs[0];
    dw[1][codes] = conv_step(q, v, random({v.n, v.c, v.h, v.w}, 1), random({v.o, v.c, v.kh, v.kw}, 2),
                             with_mean(random({v.n, v.o, v.out(0), v.out(1)}, 3), 2))[2];
  }
  // The mean's part takes x before and after it was rounded to 4 significant bits.
  for (const auto& [from_x, from_codes] : dw) CHECK(absmax(from_codes - from_x) <= 0x1p-4 * absmax(from_x));
}

TEST_CASE("center: no samples have no mean, and their gradients are 0") {
  default_generator().manual_seed(1);
  struct Layer : nn::Module {
    nn::Linear& fc = register_module("fc", nn::Linear(32, 8));
    Tensor forward(const Tensor& x) override { return fc(x); }
  };
  const auto layer = std::make_shared<Layer>();
  amp::RecipeRun run(amp::recipe("mxfp4-centered"), *layer, optim::SGDOptions{.lr = 0.1});
  run.backward(run.forward([&] { return (*layer)(zeros({0, 32})).sum(); }));
  for (const float g : layer->fc.weight.grad().to_vector<float>()) CHECK(g == 0);
}

TEST_CASE("center: what it is not for") {
  Quantization q = same({.format = format("e2m1"), .scaling = TensorScale{}});
  q.forward_w->center = true;
  CHECK(message_of([&] { amp::check_valid(q); }).find("weights have no samples") != std::string::npos);
  q = same({.format = format("e2m1"), .scaling = TensorScale{}});
  q.forward_x->center = true;
  CHECK(message_of([&] {
          quantize(ones({2, 2}), *q.forward_x);
        }).find("center belongs to a product") != std::string::npos);
}

namespace {

// x rounded as `smooth` says: channel by channel, each times a power of two, in a tensor with one scale.
Tensor smoothed(const Tensor& x, const Quantizer& q, int channel) {
  const Tensor columns = x.detach().transpose(channel, -1).reshape({-1, x.size(channel)});
  const double most = q.format.max();
  std::vector<float> scales;
  for (std::int64_t c = 0; c < columns.size(1); ++c) {
    const double amax = absmax(columns.narrow(1, c, 1));
    scales.push_back(amax == 0 ? 1.0F : static_cast<float>(std::exp2(std::floor(std::log2(most / amax)))));
  }
  const Tensor by = from_data(scales, {1, columns.size(1)});
  const Tensor back = fake_quantize(columns * by, q) / by;
  return back.reshape(x.transpose(channel, -1).sizes()).transpose(channel, -1);
}

// Channels of very different sizes, one of zeros.
Tensor uneven(const Shape& sizes, std::uint64_t seed, int channel) {
  const Tensor x = random(sizes, seed);
  for (std::int64_t c = 0; c < sizes[channel]; ++c)
    x.narrow(channel, c, 1).mul_(c == 3 ? 0.0 : std::exp2(static_cast<double>(3 * c % 40)));
  return x;
}

}  // namespace

TEST_CASE("smooth: each channel of x has a power of two, in forward and wgrad, and the product is made up for") {
  const Quantizer narrow{.format = format("e4m3fn"), .overflow = Overflow::saturate, .scaling = TensorScale{}};
  Quantization q = same(narrow);
  q.smooth = true;
  const Region region(q);
  const auto f64 = [](const Tensor& t) { return t.detach().to(DType::f64); };
  const auto close = [&](const Tensor& got, const Tensor& a, const Tensor& b) {
    const Tensor bound = matmul(abs(f64(a)), abs(f64(b))) * 0x1p-18 + 0x1p-140;
    CHECK(max(abs(f64(got) - matmul(f64(a), f64(b))) / bound).item() <= 1);
  };
  for (const bool as_matmul : {false, true}) {
    CAPTURE(as_matmul);
    const Tensor x = uneven({24, 16}, 1, 1).set_requires_grad();
    const Tensor w = random({10, 16}, 2).set_requires_grad();
    const Tensor dy = random({24, 10}, 3);
    const Tensor y = region.forward([&] { return as_matmul ? matmul(x, w.t()) : linear(x, w); });
    region.backward(y, dy);
    const Tensor rounded_x = smoothed(x, narrow, 1);
    close(y, rounded_x, fake_quantize(w.detach(), narrow).t());
    close(x.grad(), fake_quantize(dy, narrow), fake_quantize(w.detach(), narrow));
    close(w.grad(), fake_quantize(dy, narrow).t(), rounded_x);
    // Without it small channels are rounded to 0.
    const Tensor off = rounded_x - x.detach();
    for (std::int64_t c = 0; c < 16; ++c)
      CHECK(norm(off.narrow(1, c, 1)).item() <= 0x1p-4 * norm(x.detach().narrow(1, c, 1)).item());
    CHECK(absmax(fake_quantize(x.detach(), narrow).narrow(1, 0, 1)) == 0);
  }
}

TEST_CASE("smooth: the channels of a convolution") {
  const Quantizer narrow{.format = format("e4m3fn"), .overflow = Overflow::saturate, .scaling = TensorScale{}};
  Quantization q = {.forward_x = narrow, .wgrad_x = narrow};
  q.smooth = true;
  const Conv& v = kConvs[0];
  const Tensor x = uneven({v.n, v.c, v.h, v.w}, 1, 1);
  const Tensor w = random({v.o, v.c / v.attrs.groups, v.kh, v.kw}, 2);
  const Tensor dy = random({v.n, v.o, v.out(0), v.out(1)}, 3);
  const std::vector<Tensor> got = conv_step(q, v, x, w, dy);
  const std::vector<Tensor> want = conv_step({}, v, smoothed(x, narrow, 1), w, dy);
  for (std::size_t i = 0; i < 3; ++i) CHECK(max(abs(got[i] - want[i])).item() <= 1e-5 * max(abs(want[i])).item());
  q.forward_x->scaling = RowScale{};
  CHECK(message_of([&] { conv_step(q, v, x, w, dy); }).find("smooth: a convolution rounds windows") !=
        std::string::npos);
}

TEST_CASE("smooth: a delayed scale meets a channel that has grown") {
  for (const bool smooth : {false, true}) {
    Quantization q = *amp::recipe("fp8-smooth").quantization;
    CHECK(q.smooth);
    q.smooth = smooth;
    const Region region(q);
    const Tensor w = ones({1, 4}).set_requires_grad();
    const Tensor x = random({8, 4}, 1);
    region.backward(region.forward([&] { return linear(x, w); }), ones({8, 1}));
    x.narrow(1, 2, 1).mul_(1024.0);
    const Tensor y = region.forward([&] { return linear(x, w); }).detach();
    const Tensor exact = x.sum({1}, true);
    const double error = norm(y - exact).item() / norm(exact).item();
    CAPTURE(error);
    CHECK((error < 0.05) == smooth);
    CHECK((error > 0.9) != smooth);
  }
}

TEST_CASE("smooth: files, and what it is not for") {
  const amp::Recipe r = amp::recipe_from_json(R"({"name": "r", "base": "mxfp8", "quantization": {"smooth": true}})");
  CHECK(r.quantization->smooth);
  CHECK(amp::recipe_from_json(amp::to_json(r)).quantization == r.quantization);
  CHECK(amp::to_json(amp::recipe("mxfp8")).find("smooth") == std::string::npos);
  Quantization q = *r.quantization;
  q.requantize = true;
  CHECK(message_of([&] { amp::check_valid(q); }).find("without requantize") != std::string::npos);
  q.requantize = false;
  q.wgrad_x->hadamard = true;
  q.wgrad_dy->hadamard = true;
  CHECK(message_of([&] { amp::check_valid(q); }).find("an x that is not transformed") != std::string::npos);
}

TEST_CASE("smooth: no samples, and channels whose scale is 1") {
  const Quantizer whole{.format = format("e4m3fn"), .overflow = Overflow::saturate, .scaling = TensorScale{}};
  Quantization q = same(whole);
  q.smooth = true;
  const Region region(q);
  for (const std::int64_t samples : {0, 3}) {
    CAPTURE(samples);
    const Tensor w = random({2, 4}, 1).set_requires_grad();
    const Tensor x = full({samples, 4}, 448.0);
    const Tensor y = region.forward([&] { return linear(x, w); });
    region.backward(y, ones({samples, 2}));
    CHECK(y.sizes() == Shape{samples, 2});
    const Tensor dw = full({2, 4}, 448.0 * static_cast<double>(samples));
    CHECK(max(abs(w.grad() - dw)).item() <= 1e-3);
  }
}
