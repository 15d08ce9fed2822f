// Drawn trees of additions: each term once, in all kinds of trees; and ops that add up so, against f64.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/ordered_op.h>
#include <gradual/lab/ordered_sum.h>
#include <gradual/lab/recorded_ops.h>
#include <gradual/lab/step_replay.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

using namespace gradual;
using lab::OrderedSum;
using lab::TreeKind;

namespace {

constexpr TreeKind kTrees[] = {TreeKind::one_by_one, TreeKind::blocks, TreeKind::pairwise, TreeKind::random};

// The steps by hand, of numbers whose sums are exact: which terms a sum has, and of how many additions the longest way
// of a term to the result is.
struct Walked {
  std::vector<int> times;
  std::size_t longest = 0;
};
Walked walk(const OrderedSum& sum, std::size_t terms) {
  Walked w{.times = std::vector<int>(terms)};
  std::vector<std::size_t> depths;
  for (const OrderedSum::Step& step : sum.steps()) {
    if (step.action == OrderedSum::Action::join) {
      const std::size_t top = depths.back();
      depths.pop_back();
      depths.back() = std::max(depths.back(), top) + 1;
      continue;
    }
    ++w.times[static_cast<std::size_t>(step.term)];
    if (step.action == OrderedSum::Action::begin) depths.push_back(0);
    else ++depths.back();
  }
  REQUIRE(depths.size() == 1);
  w.longest = depths.front();
  return w;
}

// The last op of this name in `run`, with exact results and those of some drawn orders.
void check_near_f64(const char* name, const std::function<void()>& run) {
  CAPTURE(std::string(name));
  const nn::Linear none(1, 1);
  lab::RecordedOps ops(none);
  {
    const ObserverScope scope(ops);
    run();
  }
  const auto last = std::find_if(ops.all().rbegin(), ops.all().rend(),
                                 [&](const lab::RecordedOp& one) { return to_string(one.op) == name; });
  REQUIRE(last != ops.all().rend());
  const lab::RecordedOp& op = *last;
  lab::RecordedNumbers numbers;
  for (const lab::RecordedOp& one : ops.all()) {
    numbers.start(one);
    for (std::size_t k = 0; k < kMaxOutputs; ++k)
      if (one.given[k].defined()) numbers.write(one.outputs[k], one.given[k]);
    if (&one == &op) break;
  }
  std::vector<Tensor> inputs;
  for (const lab::RecordedTensor& t : op.inputs) inputs.push_back(numbers.read(t));
  std::mt19937_64 random(5);
  bool orders_differ = false;
  Tensor first;
  for (int order = 0; order < 20; ++order) {
    const auto out = lab::run_unrounded(op, inputs, {random});
    REQUIRE(out);
    for (std::size_t k = 0; k < kMaxOutputs; ++k) {
      if (!op.outputs[k].defined()) continue;
      const Tensor& y = (*out)[static_cast<int>(k)];
      REQUIRE(y.sizes() == op.outputs[k].sizes);
      const double size = std::max(1.0, max(abs(op.given[k])).item());
      CHECK(max(abs(sub(y, op.given[k]))).item() <= 1e-5 * size);
    }
    const Tensor y = contiguous((*out)[0]);
    if (!first.defined()) first = y;
    orders_differ = orders_differ || y.to_vector<double>() != first.to_vector<double>();
  }
  CHECK(orders_differ);
}

Tensor with_gradient(const Tensor& t) { return t.clone().set_requires_grad(); }

}  // namespace

TEST_CASE("ordered sums: a drawn tree has each term once, and the length of its kind") {
  std::mt19937_64 random(1);
  for (const TreeKind tree : kTrees)
    for (const int parts : {0, 1, 2, 8})
      for (const std::size_t terms : {1, 2, 3, 7, 64, 1000})
        for (int draw = 0; draw < 5; ++draw) {
          CAPTURE(parts);
          CAPTURE(terms);
          const OrderedSum sum(static_cast<std::int64_t>(terms), {.parts = parts, .tree = tree}, random);
          const Walked w = walk(sum, terms);
          CHECK(std::ranges::all_of(w.times, [](int n) { return n == 1; }));
          if (parts == 1 && tree == TreeKind::one_by_one) CHECK(w.longest == terms - 1);
          if (parts == 1 && tree == TreeKind::pairwise)
            CHECK(w.longest == static_cast<std::size_t>(std::ceil(std::log2(static_cast<double>(terms)))));
        }
}

TEST_CASE("ordered sums: no sampled order draws the numbers of the simulations") {
  std::mt19937_64 simulations(lab::StepReplay::kSeed);
  const std::uint64_t first = simulations();
  for (int order = 0; order < 1000; ++order) {
    std::mt19937_64 random(lab::seed_of_order(order));
    CHECK(random() != first);
  }
}

TEST_CASE("ordered sums: a quarter has the terms' own order, or none") {
  std::mt19937_64 random(8);
  const auto count_own = [&](bool own_order) {
    int own = 0;
    for (int draw = 0; draw < 1000; ++draw) {
      const OrderedSum sum(64, {.parts = 1, .tree = TreeKind::one_by_one, .own_order = own_order}, random);
      own += std::ranges::is_sorted(sum.steps(), {}, &OrderedSum::Step::term) ? 1 : 0;
    }
    return own;
  };
  CHECK(count_own(true) > 200);
  CHECK(count_own(true) < 300);
  CHECK(count_own(false) == 0);
  CHECK_THROWS_WITH_AS(OrderedSum(0, {}, random), doctest::Contains("0 terms"), Error);
}

TEST_CASE("ordered sums: one by one is a loop over the terms, and errs more than in pairs") {
  std::mt19937_64 random(2);
  default_generator().manual_seed(4);
  const Tensor terms = rand({4096, 3});
  const Tensor exact = sum(cast(terms, DType::f64), {0}, true);
  const OrderedSum in_turn(4096, {.parts = 1, .tree = TreeKind::one_by_one}, random);
  std::vector<float> by_hand(3);
  for (const OrderedSum::Step& step : in_turn.steps())
    for (std::size_t j = 0; j < 3; ++j) by_hand[j] += terms.data<float>()[static_cast<std::size_t>(step.term) * 3 + j];
  CHECK(in_turn.total(terms).to_vector<float>() == by_hand);
  const OrderedSum in_pairs(4096, {.parts = 1, .tree = TreeKind::pairwise}, random);
  const auto error = [&](const OrderedSum& s) { return max(abs(sub(cast(s.total(terms), DType::f64), exact))).item(); };
  CHECK(error(in_turn) > 4 * error(in_pairs));
}

TEST_CASE("ordered sums: tiles of a product have the sums of the whole") {
  std::mt19937_64 random(3);
  default_generator().manual_seed(5);
  const Tensor a = randn({70, 33});
  const Tensor b = randn({33, 5000});
  const OrderedSum order(33, {.tree = TreeKind::random}, random);
  const Tensor all = order.product(a, b);
  const Tensor one = order.product(a.narrow(0, 69, 1), b.narrow(1, 4999, 1));
  CHECK(one.item() == all.select(0, 69).select(0, 4999).item());
  CHECK(max(abs(sub(cast(all, DType::f64), matmul(cast(a, DType::f64), cast(b, DType::f64))))).item() < 1e-4);
}

TEST_CASE("ordered sums: ops that add up in drawn orders compute what their f64 does") {
  default_generator().manual_seed(6);
  const Tensor x = randn({6, 40});
  const Tensor images = randn({3, 5, 9, 8});
  const Tensor w = randn({4, 5, 3, 2});
  const Conv2dOptions conv{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}};
  const NoGrad off;
  check_near_f64("matmul", [&] { matmul(x, randn({40, 7})); });
  check_near_f64("matmul", [&] { matmul(randn({2, 1, 4, 30}), randn({3, 30, 5})); });
  check_near_f64("matmul", [&] { matmul(x, randn({40})); });
  check_near_f64("matmul", [&] { matmul(randn({40}), randn({40, 7})); });
  check_near_f64("matmul", [&] { matmul(randn({40}), randn({40})); });
  check_near_f64("matmul", [&] { matmul(randn({2, 5, 4, 40}), randn({40})); });
  check_near_f64("matmul", [&] { matmul(randn({40}), randn({2, 3, 40, 5})); });
  check_near_f64("linear", [&] { linear(x, randn({7, 40}), randn({7})); });
  check_near_f64("conv2d", [&] { conv2d(images, w, randn({4}), conv); });
  const Conv2dOptions in_groups{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 3};
  check_near_f64("conv2d", [&] { conv2d(randn({3, 6, 9, 8}), randn({9, 2, 3, 2}), randn({9}), in_groups); });
  check_near_f64("conv2d", [&] { conv2d(randn({3, 6, 9, 8}), randn({9, 2, 3, 2}), {}, in_groups); });
  check_near_f64("sum", [&] { sum(images, {0, 2}); });
  check_near_f64("mean", [&] { mean(images, {1, 3}, true); });
  check_near_f64("norm", [&] { norm(images, 2, {0, 2}); });
  check_near_f64("norm", [&] { norm(x); });
  check_near_f64("softmax", [&] { softmax(x, -1); });
  check_near_f64("log_softmax", [&] { log_softmax(x, -1); });
  check_near_f64("cross_entropy", [&] {
    cross_entropy(x, from_data(std::vector<std::int64_t>{1, 7, 3, 0, 9, 39}, {6}));
  });
  check_near_f64("layer_norm", [&] { layer_norm(x, 1, randn({40}), randn({40})); });
  check_near_f64("rms_norm", [&] { rms_norm(x, 1, randn({40})); });
}

TEST_CASE("ordered sums: gradients that add up in drawn orders are those of f64") {
  default_generator().manual_seed(7);
  const Tensor images = randn({3, 6, 9, 8});
  for (const int groups : {1, 2}) {
    CAPTURE(groups);
    const Conv2dOptions conv{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = groups};
    ConvAttrs of_input{conv};
    of_input.size = {9, 8};
    ConvAttrs of_weight{conv};
    of_weight.size = {3, 2};
    const Tensor w = randn({4, 6 / groups, 3, 2});
    const Tensor dy = ones_like(conv2d(images, w, {}, conv)) * randn({1, 4, 1, 1});
    check_near_f64("conv2d_backward_input", [&] { conv2d_backward_input(dy, w, of_input); });
    check_near_f64("conv2d_backward_weight", [&] { conv2d_backward_weight(dy, images, of_weight); });
  }
  const auto backward_of = [](const Tensor& y, const Tensor& g) { sum(y * g).backward(); };
  const Tensor g = randn({6, 40});
  check_near_f64("layer_norm_backward", [&] {
    backward_of(layer_norm(with_gradient(randn({6, 40})), 1, with_gradient(randn({40})), with_gradient(randn({40}))),
                g);
  });
  check_near_f64("rms_norm_backward", [&] {
    backward_of(rms_norm(with_gradient(randn({6, 40})), 1, with_gradient(randn({40}))), g);
  });
  check_near_f64("softmax_backward", [&] { backward_of(softmax(with_gradient(randn({6, 40})), -1), g); });
  check_near_f64("batch_norm_backward", [&] {
    nn::BatchNorm2d norm(6);
    sum(norm(with_gradient(images)) * images).backward();
  });
  check_near_f64("index_add", [&] {
    const Tensor rows = with_gradient(randn({4, 40}));
    const std::vector<std::int64_t> indices{2, 0, 2, 3, 2, 0};
    sum(index_select(rows, 0, from_data(indices, {6})) * g).backward();
  });
  check_near_f64("log_softmax_backward", [&] { backward_of(log_softmax(with_gradient(randn({6, 40})), -1), g); });
}
