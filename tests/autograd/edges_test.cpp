// Gradients at the edges: f8 operands, zero bases, empty sizes, steps past the end.
#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;

TEST_CASE("gradients of contractions with f8 operands") {
  const Tensor x = randn({3, 4}).set_requires_grad();
  const Tensor w = randn({4, 2}).set_requires_grad();
  const Tensor x8 = x.to(DType::f8e4m3fn);
  const Tensor w8 = w.to(DType::f8e4m3fn);
  const Tensor y = matmul(x8, w8);
  CHECK(y.dtype() == DType::f32);
  sum(y + matmul(x8, w8)).backward();  // x8 is used twice: its gradients meet in f8
  // dx = 2 * 1 w8^T, rounded to f8 on its way through the cast.
  const Tensor row = sum(w8.to(DType::f32), {1});
  for (int i = 0; i < 4; ++i) {
    const double expected = 2 * row[i].item();
    CHECK(x.grad()[0][i].item() == doctest::Approx(expected).epsilon(0.13));
  }
}

TEST_CASE("pow of the number 0 has gradient 0, not NaN") {
  const Tensor b = leaf({0.5, 2});
  sum(pow(0.0, b)).backward();
  CHECK(values(b.grad()) == Values{0, 0});
}

TEST_CASE("the slopes of angles and inverse functions whose squares leave the range") {
  const auto slope = [](Tensor (*f)(const Operand&, const Operand&), double a, double b, DType d) {
    const Tensor x = leaf({a}, {1}, d);
    const Tensor y = leaf({b}, {1}, d);
    f(x, y).backward();
    return Values{x.grad().item(), y.grad().item()};
  };
  CHECK(slope(atan2, 0, 0x1p100, DType::f32) == Values{0x1p-100, 0});
  CHECK(slope(atan2, 0x1p-100, 0x1p-100, DType::f32) == Values{0x1p99, -0x1p99});
  CHECK(slope(atan2, 512, 0, DType::f16) == Values{0, -0x1p-9});
  CHECK(slope(atan2, INFINITY, 1, DType::f32) == Values{0, 0});
  CHECK(slope(atan2, 1, -INFINITY, DType::f32) == Values{0, 0});
  CHECK(slope(atan2, 0x1p-130, 0, DType::f32)[0] == 0);
  CHECK(slope(atan2, 0x1p-17, 0, DType::f16)[0] == 0);
  const Tensor x = leaf({0x1p10}, {1}, DType::f16);
  asinh(x).backward();
  CHECK(x.grad().item() == 0x1p-10);
  const Tensor y = leaf({3, 4});
  sum(atan2(y, 4)).backward();
  CHECK(y.grad()[0].item() == doctest::Approx(4.0 / 25));
  CHECK(y.grad()[1].item() == doctest::Approx(4.0 / 32));
  y.zero_grad();
  sum(atan2(3, y)).backward();
  CHECK(y.grad()[1].item() == doctest::Approx(-3.0 / 25));
}

// As PyTorch 2.15 has them: where the slope is infinite (p below 1 at x = 0) it is given as 0.
TEST_CASE("norms of zeros and infinities have no NaN in their gradients") {
  const auto gradient = [](double p, const Values& at) {
    const Tensor x = leaf(at);
    norm(x, p).backward();
    return values(x.grad());
  };
  CHECK(gradient(0, {0, INFINITY, -2}) == Values{0, 0, 0});
  CHECK(gradient(0.5, {4, 0, -4}) == Values{2, 0, -2});  // (2 + 2)^2 = 16, (16 / 4)^(1/2) = 2
  CHECK(gradient(0.5, {0, 0}) == Values{0, 0});
  CHECK(gradient(-1, {0, 1, 3}) == Values{0, 0, 0});  // the norm is 0, whatever the others are
  CHECK(gradient(-1, {2, -2}) == Values{0.25, -0.25});
  CHECK(gradient(3, {0, 0}) == Values{0, 0});
}

TEST_CASE("the variance of fewer numbers than its correction has a gradient that is not finite either") {
  const Tensor x = leaf({1, 3});
  const Tensor v = var(x, {0}, false, 3);
  v.backward();
  CHECK(v.item() == INFINITY);
  CHECK(values(x.grad()) == Values{-INFINITY, INFINITY});
}

// A sigmoid that has saturated gives these: the loss is clamped there, and PyTorch's gradient through the sigmoid is 0
// as well.
TEST_CASE("binary cross entropy of the probabilities 0 and 1 has a finite gradient") {
  for (DType d : {DType::f64, DType::f32, DType::f16}) {
    const Tensor p = leaf({0, 1, 0, 1, -0.0, 0.5}, {6}, d);
    const Tensor y = from_data(Values{0, 1, 1, 0, 0.5, 1}, {6}, {.dtype = d});
    const Tensor loss = bce_loss(p, y, Reduction::none);
    CHECK(values(loss).at(0) == 0);
    CHECK(values(loss).at(1) == 0);
    CHECK(values(loss).at(2) == 100);
    CHECK(values(loss).at(3) == 100);
    CHECK(values(loss).at(4) == 50);
    sum(loss).backward();
    CHECK(values(p.grad()) == Values{1, -1, 0, 0, 0.5, -2});

    const Tensor x = leaf({800, -800}, {2}, d);
    bce_loss(sigmoid(x), from_data(Values{1, 0}, {2}, {.dtype = d})).backward();
    CHECK(values(x.grad()) == Values{0, 0});
  }
}

// log(1 + exp(-x)) and 1 / (1 + exp(x)), by mpmath.
TEST_CASE("binary cross entropy of sure logits keeps its digits") {
  struct Case {
    DType dtype;
    double x, loss, slope, tolerance;
  };
  for (const Case& c : {Case{DType::f32, 17, 4.1399376330897474e-8, 4.1399375473943306e-8, 1e-6},
                        {DType::f64, 42, 5.7495222642935598e-19, 5.7495222642935598e-19, 1e-14}}) {
    const Tensor x = leaf({-c.x, c.x}, {2}, c.dtype);
    const Tensor loss = bce_with_logits_loss(x, from_data(Values{0, 1}, {2}, {.dtype = c.dtype}), Reduction::none);
    for (double v : values(loss)) CHECK(v == doctest::Approx(c.loss).epsilon(c.tolerance).scale(0));
    sum(loss).backward();
    CHECK(values(x.grad())[0] == doctest::Approx(c.slope).epsilon(c.tolerance).scale(0));
    CHECK(values(x.grad())[1] == doctest::Approx(-c.slope).epsilon(c.tolerance).scale(0));
  }
  const Tensor x = leaf({0, -0.0});  // the corner of max(x, 0)
  sum(bce_with_logits_loss(x, numbers({0.25, 0.25}), Reduction::none)).backward();
  CHECK(values(x.grad()) == Values{0.25, 0.25});
}

TEST_CASE("cross entropy: rows that are ignored have gradients of 0 whatever they hold, recorded or not") {
  for (const Reduction by : {Reduction::none, Reduction::mean, Reduction::sum})
    for (const bool one_counts : {false, true}) {
      const Tensor x = leaf({1, 2, INFINITY, NAN}, {2, 2});
      const Tensor classes = from_data(std::vector<std::int64_t>{one_counts ? 0 : -100, -100}, {2});
      const Tensor loss = cross_entropy(x, classes, {.reduction = by});
      const Tensor dy = ones(loss.sizes(), {.dtype = DType::f64});
      const auto gradient = [&](bool create_graph) {
        return autograd::grad({loss}, {x}, {dy}, {.retain_graph = true, .create_graph = create_graph})[0];
      };
      const Values want = values(gradient(false));
      const Tensor recorded = gradient(true);
      const Values second = values(autograd::grad({recorded}, {x}, {numbers({1, 0, 1, 0}).reshape({2, 2})})[0]);
      const double p = 1 / (1 + std::exp(1));
      const double first[] = {p - 1, 1 - p, 0, 0};
      for (std::size_t i = 0; i < 4; ++i) {
        const double slope = i == 0 ? p * (1 - p) : i == 1 ? p * (p - 1) : 0;
        CHECK(want[i] == doctest::Approx(one_counts ? first[i] : 0));
        CHECK(values(recorded)[i] == doctest::Approx(want[i]));
        CHECK(second[i] == doctest::Approx(one_counts ? slope : 0));
      }
    }
}

// As in PyTorch since 2.5.
TEST_CASE("attention: a query that a mask keeps from every key gets zeros, and no gradient is NaN") {
  for (bool causal : {false, true}) {
    for (DType d : {DType::f64, DType::f32, DType::f16}) {
      const Tensor q = leaf({1, 2, 3, 4}, {2, 2}, d);
      const Tensor k = leaf({1, -1, 2, 0.5}, {2, 2}, d);
      const Tensor v = leaf({1, 2, 3, 4}, {2, 2}, d);
      // Query 0 sees nothing: neither key, or under the causal mask the one that it might have seen is padding.
      const std::vector<std::int64_t> may =
          causal ? std::vector<std::int64_t>{0, 1, 0, 1} : std::vector<std::int64_t>{0, 0, 0, 1};
      const Tensor chosen = from_data(may, {2, 2}).to(DType::bool_);
      const Tensor added = where(chosen, 0, full({2, 2}, -INFINITY, {.dtype = d})).set_requires_grad();
      for (const Tensor& mask : {chosen, added}) {
        for (const Tensor& t : {q, k, v}) t.set_grad({});
        const Tensor y = scaled_dot_product_attention(q, k, v, mask, {.causal = causal});
        CHECK(values(y) == Values{0, 0, 3, 4});
        y.backward(from_data(Values{5, 6, 7, 8}, {2, 2}, {.dtype = d}));
        CHECK(values(v.grad()) == Values{0, 0, 7, 8});
        CHECK(values(q.grad()) == Values{0, 0, 0, 0});
        CHECK(values(k.grad()) == Values{0, 0, 0, 0});
      }
      CHECK(values(added.grad()) == Values{0, 0, 0, 0});
    }
  }
}

TEST_CASE("attention: an added mask of -Inf in any shape that broadcasts, and one of NaN") {
  const Tensor q = ones({2, 3, 4});
  const Tensor k = ones({2, 5, 4});
  const Tensor v = ones({2, 5, 2});
  const auto sums = [&](const Tensor& mask, bool causal = false) {
    return values(sum(scaled_dot_product_attention(q, k, v, mask, {.causal = causal}), {0, 2}));
  };
  const double inf = INFINITY;
  CHECK(sums(full({}, -inf)) == Values{0, 0, 0});
  CHECK(sums(full({5}, -inf)) == Values{0, 0, 0});
  CHECK(sums(full({1, 5}, -inf), true) == Values{0, 0, 0});
  CHECK(sums(leaf({0, -inf, 0}, {3, 1})) == Values{4, 0, 4});
  CHECK(sums(leaf({0, -inf}, {2, 1, 1})) == Values{2, 2, 2});
  CHECK(sums(leaf({-inf, 0, 0, 0, 0}), true) == Values{0, 4, 4});
  CHECK(std::isnan(sums(leaf({-inf, -inf, -inf, -inf, NAN}))[0]));
}

namespace {

// Attention and its gradients with respect to q, k, v and mask, first and, where asked for, of the sum of their
// squares.
struct Attended {
  std::vector<Tensor> first, second;
  Attended(std::vector<Tensor> t, const Tensor& dy, const AttentionAttrs& attrs, bool twice) {
    for (Tensor& each : t) each = each.detach().set_requires_grad();
    first = {call_row(OpId::scaled_dot_product_attention, attrs, t[0], t[1], t[2], t[3])[0]};
    const std::vector<Tensor> grads = autograd::grad(first, t, {cast(dy, first[0].dtype())}, {.create_graph = twice});
    first.insert(first.end(), grads.begin(), grads.end());
    if (!twice) return;
    Tensor all = sum(square(grads[0]));
    for (std::size_t i = 1; i < 4; ++i) all = all + sum(square(grads[i]));
    second = autograd::grad({all}, t);
  }
};

// The last queries see nothing.
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kQueries = 5;
constexpr std::int64_t kKeys = 6;
constexpr std::int64_t kSeeing = 3;

Tensor seeing_rows(const Tensor& t) { return t.narrow(1, 0, kSeeing); }

// The rows of the blind queries are 0, and all else has the bits of `want`, in which these queries see.
void check_blind(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    const bool by_query = got[i].size(1) == kQueries;  // y, and the gradients of q and mask
    const Tensor rows = by_query ? seeing_rows(got[i]) : got[i];
    CHECK(values(rows) == values(by_query ? seeing_rows(want[i]) : want[i]));
    if (by_query) CHECK(values(got[i].narrow(1, kSeeing, 2)) == Values(2 * kHeads * got[i].size(2)));
  }
}

// The first rows of each tensor are the wanted ones.
void check_close(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const Values a = values(got[i].narrow(1, 0, want[i].size(1)));
    const Values b = values(want[i]);
    for (std::size_t j = 0; j < a.size(); ++j) CHECK(a[j] == doctest::Approx(b[j]).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("attention: whole rows of -Inf under dropout, autocast and create_graph are 0 and leave the others alone") {
  Generator g(3);
  const TensorOptions f64{.dtype = DType::f64};
  const Tensor q = randn({kHeads, kQueries, 4}, f64, g);
  const Tensor k = randn({kHeads, kKeys, 4}, f64, g);
  const Tensor v = randn({kHeads, kKeys, 3}, f64, g);
  const Tensor dy = randn({kHeads, kQueries, 3}, f64, g);
  const auto head = [](const Tensor& t) { return t.narrow(0, 0, 1); };
  for (const bool causal : {false, true})
    for (const double dropout : {0.0, 0.4})
      for (const bool twice : {false, true})
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
          CAPTURE(causal);
          CAPTURE(dropout);
          CAPTURE(twice);
          CAPTURE(to_string(dtype));
          // Under the causal mask what a blind query may not see anyway is a number. A key hidden from all but one.
          Tensor open = randn({kHeads, kQueries, kKeys}, f64, g);
          for (std::int64_t h = 0; h < kHeads; ++h) open[h].narrow(0, 1, kSeeing - 1).narrow(1, 1, 1).fill_(-INFINITY);
          const Tensor mask = open.clone();
          for (std::int64_t i = kSeeing; i < kQueries; ++i)
            mask.narrow(1, i, 1).narrow(2, 0, causal ? i + 1 : kKeys).fill_(-INFINITY);
          const Tensor none = cat({seeing_rows(dy), zeros_like(dy.narrow(1, kSeeing, 2))}, 1);
          const AttentionAttrs attrs{{.causal = causal, .dropout = dropout}, {5, 1}};
          const bool narrow = is_half(dtype);
          amp::AutocastOptions options;
          options.enabled = narrow;
          if (narrow) options.dtype = dtype;
          const amp::Autocast scope(options);
          const DType given = narrow ? DType::f32 : dtype;
          const auto attend = [&](std::vector<Tensor> t, const Tensor& upstream) {
            for (Tensor& each : t) each = each.to(given);
            return Attended(t, upstream, attrs, twice);
          };
          const Attended blind = attend({q, k, v, mask}, dy);
          // The same where those rows see and nobody asks for them: equal bits.
          const Attended same = attend({q, k, v, open}, none);
          CHECK(blind.first[0].dtype() == dtype);
          CHECK(blind.first.size() == 5);
          CHECK(blind.second.size() == (twice ? 4 : 0));
          check_blind(blind.first, same.first);
          check_blind(blind.second, same.second);
          // The same without those rows, of the first head, whose numbers dropout draws are the same.
          if (dtype != DType::f64) continue;
          const Attended one = attend({head(q), head(k), head(v), head(mask)}, head(dy));
          const Attended alone =
              attend({seeing_rows(head(q)), head(k), head(v), seeing_rows(head(mask))}, seeing_rows(head(dy)));
          check_close(one.first, alone.first);
          check_close(one.second, alone.second);
        }
}

// As in PyTorch, and whatever computes relu: its gradient is 0 where y is 0, and what arrives where y is NaN.
TEST_CASE("relu passes a gradient on where its result is NaN") {
  for (const DType d : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const auto numbers_of = [&](const Values& v) { return from_data(v, {4, 1}, {.dtype = d, .requires_grad = true}); };
    const Tensor one = full({1, 1}, 1, {.dtype = d});
    const Tensor none = zeros({1});
    const Tensor var = ones({1});
    using Form = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&);
    for (const Form form : std::initializer_list<Form>{
             [](const Tensor& x, const Tensor&, const Tensor&, const Tensor&) { return relu(x); },
             [](const Tensor& x, const Tensor& w, const Tensor&, const Tensor&) { return linear_relu(x, w); },
             [](const Tensor& x, const Tensor&, const Tensor& mean, const Tensor& v) {
               return batch_norm(x, {}, {}, mean, v, false, 0, true).y;
             }}) {
      for (const bool create_graph : {false, true}) {
        const Tensor x = numbers_of({NAN, -NAN, -2, 2});
        const Tensor dy = numbers_of({3, 4, 5, 6});
        const Tensor dx = autograd::grad({form(x, one, none, var)}, {x}, {dy}, {.create_graph = create_graph})[0];
        CHECK(values(dx) == Values{3, 4, 0, 6});
      }
    }
  }
}

TEST_CASE("slice steps past the end") {
  const Tensor x = leaf({1, 2, 3, 4, 5});
  const Tensor y = slice(x, 0, {0, 5, INT64_MAX});
  CHECK(values(y) == Values{1});
  sum(y).backward();
  CHECK(values(x.grad()) == Values{1, 0, 0, 0, 0});
}

TEST_CASE("linear without outputs or inputs has a backward") {
  for (const Shape& sizes : {Shape{0, 4}, Shape{5, 0}}) {
    const Tensor x = zeros({2, 3, sizes[1]}, {.requires_grad = true});
    const Tensor w = zeros(sizes, {.requires_grad = true});
    sum(linear(x, w)).backward();
    CHECK(x.grad().sizes() == x.sizes());
    CHECK(w.grad().sizes() == sizes);
  }
}
