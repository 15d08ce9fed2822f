// Each layer against numbers worked out by hand or against plain ops.
#include "helpers.h"

using namespace nn_test;

namespace {

Tensor row(const std::vector<double>& v, const Shape& sizes) { return from_data(v, sizes); }

// Sums in double over every dim but the second.
struct Statistics {
  std::vector<double> mean, biased, unbiased;
};
Statistics statistics(const Tensor& x) {
  const std::int64_t channels = x.size(1);
  const std::int64_t inner = x.numel() / x.size(0) / channels;
  const double n = static_cast<double>(x.numel() / channels);
  const std::vector<double> v = values(x);
  Statistics s;
  for (std::int64_t c = 0; c < channels; ++c) {
    double sum = 0;
    double squares = 0;
    const auto each = [&](auto&& f) {
      for (std::int64_t b = 0; b < x.size(0); ++b)
        for (std::int64_t i = 0; i < inner; ++i) f(v[static_cast<std::size_t>((b * channels + c) * inner + i)]);
    };
    each([&](double a) { sum += a; });
    const double mean = sum / n;
    each([&](double a) { squares += (a - mean) * (a - mean); });
    s.mean.push_back(mean);
    s.biased.push_back(squares / n);
    s.unbiased.push_back(squares / (n - 1));
  }
  return s;
}

}  // namespace

TEST_CASE("Linear by hand") {
  nn::Linear layer(2, 3);
  assign(layer.weight, row({1, 2, 3, 4, 5, 6}, {3, 2}));
  assign(layer.bias, row({10, 20, 30}, {3}));
  const Tensor y = layer(row({1, -1, 2, 0.5}, {2, 2}));
  CHECK(values(y) == std::vector<double>{9, 19, 29, 13, 28, 43});
  sum(y).backward();
  CHECK(values(layer.weight.grad()) == std::vector<double>{3, -0.5, 3, -0.5, 3, -0.5});
  CHECK(values(layer.bias.grad()) == std::vector<double>{2, 2, 2});

  nn::Linear bare(4, 2, {.bias = false});
  bare.to(DType::f64);
  CHECK_FALSE(bare.bias.defined());
  CHECK(bare.parameters().size() == 1);
  CHECK(bare(ones({3, 5, 4}, {.dtype = DType::f64})).sizes() == Shape{3, 5, 2});
}

TEST_CASE("Conv2d by hand, and with every option against the op") {
  nn::Conv2d box(1, 1, 2, {.bias = false});
  assign(box.weight, ones({1, 1, 2, 2}));
  CHECK(values(box(row({1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 1, 3, 3}))) == std::vector<double>{12, 16, 24, 28});

  nn::Conv2d layer(4, 6, {3, 2}, {.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2});
  CHECK(layer.weight.sizes() == Shape{6, 2, 3, 2});
  const Tensor x = noise({2, 4, 7, 6});
  const Tensor y = layer(x);
  CHECK(y.sizes() == Shape{2, 6, 4, 8});
  const Conv2dOptions attrs{.stride = {2, 1}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 2};
  CHECK(same_bits(y, conv2d(x, layer.weight, layer.bias, attrs)));
  CHECK(contains(message_of([] { nn::Conv2d(3, 4, 1, {.groups = 2}); }), "2 groups do not divide 3 input"));
}

TEST_CASE("a layer with a size below one is an Error that names the size") {
  CHECK(message_of([] { nn::Linear(-1, 2); }) == "Linear: in is -1; it must be at least 1");
  CHECK(contains(message_of([] { nn::Linear(2, 0); }), "Linear: out is 0"));
  CHECK(contains(message_of([] { nn::Conv2d(0, 2, 3); }), "Conv2d: in is 0"));
  CHECK(contains(message_of([] { nn::Conv2d(1, 2, {3, 0}); }), "Conv2d: kernel width is 0"));
  CHECK(contains(message_of([] { nn::Embedding(-3, 2); }), "Embedding: entries is -3"));
  CHECK(contains(message_of([] { nn::BatchNorm2d(-2); }), "BatchNorm: channels is -2"));
  CHECK(contains(message_of([] { nn::BatchNorm2d(0, {.affine = false}); }), "BatchNorm: channels is 0"));
  CHECK(contains(message_of([] { nn::LayerNorm(Shape{4, -3}); }), "LayerNorm: a normalized size is -3"));
  CHECK(contains(message_of([] { nn::MultiheadAttention(-8, 2); }), "MultiheadAttention: embed_dim is -8"));
}

TEST_CASE("BatchNorm normalises, and moves its running statistics by the formula") {
  for (const Shape& sizes : {Shape{6, 3}, Shape{4, 3, 5}, Shape{2, 3, 4, 4}}) {
    CAPTURE(to_string(sizes));
    std::shared_ptr<nn::BatchNorm> bn;
    if (sizes.size() == 4) bn = std::make_shared<nn::BatchNorm2d>(3);
    else bn = std::make_shared<nn::BatchNorm1d>(3);
    std::vector<double> mean(3, 0);
    std::vector<double> var(3, 1);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = noise(sizes, static_cast<std::uint64_t>(step)) * 2 + 0.5;
      const Statistics s = statistics(x);
      const Tensor y = (*bn)(x);
      const Statistics normalised = statistics(y);
      for (std::size_t c = 0; c < 3; ++c) {
        CHECK(std::abs(normalised.mean[c]) < 1e-6);
        CHECK(normalised.biased[c] == doctest::Approx(s.biased[c] / (s.biased[c] + 1e-5)).epsilon(1e-5));
        mean[c] = 0.9 * mean[c] + 0.1 * s.mean[c];
        var[c] = 0.9 * var[c] + 0.1 * s.unbiased[c];
        CHECK(values(bn->running_mean)[c] == doctest::Approx(mean[c]).epsilon(1e-5));
        CHECK(values(bn->running_var)[c] == doctest::Approx(var[c]).epsilon(1e-5));
      }
    }
    CHECK(bn->num_batches_tracked.item() == 3);
    CHECK_FALSE(bn->running_mean.requires_grad());

    // Eval uses them and leaves them.
    bn->eval();
    const Tensor x = noise(sizes, 9);
    Shape channel = Shape::filled(sizes.size(), 1);
    channel[1] = 3;
    const Tensor expected = (x - bn->running_mean.reshape(channel)) / sqrt(bn->running_var.reshape(channel) + 1e-5);
    const StateDict before = bn->state_dict();
    const Tensor kept = before.tensor("running_var").clone();
    CHECK(distance((*bn)(x), expected) < 1e-6);
    CHECK(same_bits(bn->running_var, kept));
    CHECK(bn->num_batches_tracked.item() == 3);
  }
}

TEST_CASE("BatchNorm moves its running statistics in one op with the bits of composed ones") {
  struct Seen final : Observer {
    std::vector<OpId> ops;
    void after(const OpCall& call, const Outputs&, const CallRecord& record) override {
      if (record.context.cause->kind == CauseKind::statistics) ops.push_back(call.op);
    }
  };
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const DType of_input : {DType::f64, DType::f32, DType::bf16}) {
      CAPTURE(to_string(dtype));
      CAPTURE(to_string(of_input));
      const double m = 0.3;
      const double eps = 1e-4;
      nn::BatchNorm2d bn(67, {.eps = eps, .momentum = m, .affine = false});
      bn.to(dtype);
      for (int step = 0; step < 3; ++step) {
        Tensor x = noise({3, 67, 2, 5}, static_cast<std::uint64_t>(step)).to(of_input);
        x.narrow(1, 3, 1).fill_(0.5);  // a channel without variance
        const BatchNormResult batch = batch_norm(x, {}, {}, {}, {}, true, eps);
        const Tensor mean = bn.running_mean.clone();
        const Tensor var = bn.running_var.clone();
        const Tensor biased = clamp(reciprocal(square(batch.invstd)) - eps, 0, INFINITY);
        mean.mul_(1 - m).add_(batch.mean.to(dtype), m);
        var.mul_(1 - m).add_(biased.to(dtype), m * 30 / 29);
        const std::uint32_t versions[] = {bn.running_mean.version(), bn.running_var.version(),
                                          bn.num_batches_tracked.version()};
        x.set_requires_grad();
        Seen seen;
        {
          const ObserverScope scope(seen);
          bn(x);
        }
        CHECK(seen.ops == std::vector<OpId>{OpId::batch_norm_update_});
        CHECK(same_bits(bn.running_mean, mean));
        CHECK(same_bits(bn.running_var, var));
        CHECK(bn.num_batches_tracked.item() == step + 1);
        CHECK(bn.running_mean.version() == versions[0] + 1);
        CHECK(bn.running_var.version() == versions[1] + 1);
        CHECK(bn.num_batches_tracked.version() == versions[2] + 1);
        CHECK_FALSE(bn.running_var.requires_grad());
      }
    }
  }
}

TEST_CASE("BatchNorm's options") {
  nn::BatchNorm1d bare(3, {.affine = false, .track_running_stats = false});
  CHECK(bare.parameters().empty());
  CHECK(bare.named_buffers().empty());
  const Tensor x = noise({8, 3});
  const Tensor train = bare(x);
  bare.eval();
  CHECK(same_bits(train, bare(x)));  // the batch's statistics in eval too

  nn::BatchNorm1d slow(3, {.momentum = 1});
  slow(x);
  for (std::size_t c = 0; c < 3; ++c)
    CHECK(values(slow.running_var)[c] == doctest::Approx(statistics(x).unbiased[c]).epsilon(1e-5));

  // Half input: parameters and statistics stay f32.
  nn::BatchNorm1d mixed(3);
  CHECK(mixed(x.to(DType::f16)).dtype() == DType::f16);
  CHECK(mixed.running_mean.dtype() == DType::f32);
  CHECK(contains(message_of([&] {
                   nn::BatchNorm2d layer(3);
                   layer(x);
                 }),
                 "allowed is [N, C, H, W]"));
  CHECK(contains(message_of([&] { mixed(noise({1, 3})); }), "more than one value per channel"));
  CHECK(mixed.num_batches_tracked.item() == 1);  // nothing half-written
}

TEST_CASE("gradients flow through a BatchNorm in training") {
  nn::BatchNorm1d bn(2);
  Tensor x = noise({6, 2});
  x.set_requires_grad();
  sum(bn(x)).backward();  // each channel sums to its bias: no gradient for x
  for (double g : values(x.grad())) CHECK(std::abs(g) < 1e-5);
  CHECK(values(bn.bias.grad()) == std::vector<double>{6, 6});
}

TEST_CASE("a checkpointed segment moves running statistics once and drops the same elements again") {
  const auto make = [] {
    manual_seed(1);
    return nn::Sequential{nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Dropout(0.5), nn::Linear(4, 2)};
  };
  nn::Sequential plain = make();
  nn::Sequential kept = make();
  Tensor x = noise({6, 3});
  x.set_requires_grad();
  manual_seed(2);
  sum(square(plain(x))).backward();
  const Tensor expected = x.grad();
  x.zero_grad();
  manual_seed(2);
  sum(square(checkpoint([&](const Tensor& t) { return kept(t); }, x))).backward();
  CHECK(same_bits(x.grad(), expected));
  const std::vector<Tensor> a = plain.parameters();
  const std::vector<Tensor> b = kept.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(same_bits(a[i].grad(), b[i].grad()));
  const StateDict before = plain.state_dict();
  const StateDict after = kept.state_dict();
  CHECK(after.tensor("1.num_batches_tracked").item() == 1);
  CHECK(same_bits(after.tensor("1.running_mean"), before.tensor("1.running_mean")));
  CHECK(same_bits(after.tensor("1.running_var"), before.tensor("1.running_var")));
}

TEST_CASE("LayerNorm and RMSNorm against their formulas") {
  const Tensor x = noise({4, 2, 6});
  nn::LayerNorm ln({2, 6});
  assign(ln.weight, noise({2, 6}, 2));
  assign(ln.bias, noise({2, 6}, 3));
  const Tensor centred = x - mean(x, {1, 2}, true);
  const Tensor normal = centred / sqrt(mean(square(centred), {1, 2}, true) + 1e-5);
  CHECK(distance(ln(x), normal * ln.weight + ln.bias) < 2e-6);

  nn::RMSNorm rms(6, {.eps = 1e-3});
  assign(rms.weight, noise({6}, 4));
  CHECK(distance(rms(x), x / sqrt(mean(square(x), {2}, true) + 1e-3) * rms.weight) < 2e-6);

  CHECK(nn::LayerNorm(6, {.bias = false}).parameters().size() == 1);
  CHECK(nn::LayerNorm(6, {.affine = false}).parameters().empty());
  CHECK(contains(message_of([&] { nn::LayerNorm(5)(x); }), "does not end in the normalised shape [5]"));
}

TEST_CASE("activations are the ops of their names") {
  const Tensor x = noise({3, 5}) * 3;
  CHECK(same_bits(nn::ReLU()(x), relu(x)));
  CHECK(same_bits(nn::LeakyReLU(0.2)(x), leaky_relu(x, 0.2)));
  CHECK(same_bits(nn::GELU()(x), gelu(x)));
  CHECK(same_bits(nn::GELU(Gelu::tanh)(x), gelu(x, Gelu::tanh)));
  CHECK(same_bits(nn::SiLU()(x), silu(x)));
  CHECK(same_bits(nn::Tanh()(x), tanh(x)));
  CHECK(same_bits(nn::Sigmoid()(x), sigmoid(x)));
  CHECK(same_bits(nn::Softplus()(x), softplus(x)));
  CHECK(same_bits(nn::Softmax(0)(x), softmax(x, 0)));
  CHECK(same_bits(nn::LogSoftmax(-1)(x), log_softmax(x, -1)));
  CHECK_FALSE(same_bits(nn::ReLU()(x), nn::GELU()(x)));
  CHECK(nn::Flatten()(noise({2, 3, 4})).sizes() == Shape{2, 12});
  CHECK(nn::Flatten(0, 1)(noise({2, 3, 4})).sizes() == Shape{6, 4});
}

TEST_CASE("pools by hand") {
  const Tensor x = row({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, {1, 1, 4, 4});
  CHECK(values(nn::MaxPool2d(2)(x)) == std::vector<double>{6, 8, 14, 16});
  CHECK(values(nn::AvgPool2d(2)(x)) == std::vector<double>{3.5, 5.5, 11.5, 13.5});
  CHECK(values(nn::MaxPool2d({.kernel = 3, .stride = 1})(x)) == std::vector<double>{11, 12, 15, 16});
  CHECK(nn::MaxPool2d({.kernel = 3, .stride = 2, .padding = 1})(x).sizes() == Shape{1, 1, 2, 2});
  CHECK(values(nn::AdaptiveAvgPool2d(1)(x)) == std::vector<double>{8.5});
  CHECK(nn::AdaptiveAvgPool2d(2, 1)(x).sizes() == Shape{1, 1, 2, 1});
}

TEST_CASE("Dropout zeroes in training only, scales what stays, and repeats with the generator") {
  const Tensor x = ones({100, 100});
  nn::Dropout first(0.25);
  nn::Dropout second(0.25);
  manual_seed(7);
  const Tensor y = first(x);
  double zeros = 0;
  for (double v : values(y)) {
    const bool kept = v == static_cast<double>(static_cast<float>(1 / 0.75));
    CHECK_MESSAGE((v == 0 || kept), v);
    zeros += v == 0;
  }
  CHECK(std::abs(zeros / 10000 - 0.25) < 5 * std::sqrt(0.25 * 0.75 / 10000));  // five standard deviations
  CHECK_FALSE(same_bits(y, first(x)));                                         // the next draw
  manual_seed(7);
  CHECK(same_bits(y, second(x)));

  first.eval();
  CHECK(first(x).is_same(x));
  CHECK(contains(message_of([] { nn::Dropout(1.5); }), "allowed are 0 to 1"));
}

TEST_CASE("Embedding looks rows up and gathers their gradients") {
  nn::Embedding table(4, 2);
  assign(table.weight, row({0, 1, 10, 11, 20, 21, 30, 31}, {4, 2}));
  const Tensor y = table(from_data(std::vector<std::int64_t>{3, 1, 3}, {3, 1}));
  CHECK(y.sizes() == Shape{3, 1, 2});
  CHECK(values(y) == std::vector<double>{30, 31, 10, 11, 30, 31});
  sum(y).backward();
  CHECK(values(table.weight.grad()) == std::vector<double>{0, 0, 1, 1, 0, 0, 2, 2});
}

TEST_CASE("Sequential runs in order and names by position") {
  nn::Sequential model(nn::Linear(3, 4), nn::ReLU(), std::make_shared<nn::Linear>(4, 2));
  CHECK(model.size() == 3);
  CHECK(model.named_parameters()[2].first == "2.weight");
  auto& first = dynamic_cast<nn::Linear&>(model[0]);
  auto& last = dynamic_cast<nn::Linear&>(model[2]);
  const Tensor x = noise({5, 3});
  CHECK(same_bits(model(x), last(relu(first(x)))));
  model.push_back(nn::Sigmoid());
  CHECK(same_bits(model(x), sigmoid(last(relu(first(x))))));
  CHECK(contains(message_of([&] { model[4]; }), "no module 4; there are 4"));
  nn::Sequential one{nn::ReLU()};
  nn::Sequential nested{nn::Sequential{nn::ReLU()}, nn::ReLU()};
  nn::Sequential none;
  CHECK(one.size() == 1);
  CHECK(nested.size() == 2);
  CHECK(nested[0].kind() == "Sequential");
  CHECK(none(x).is_same(x));
}

TEST_CASE("Sequential runs a layer and its ReLU as one op, with the same bits") {
  const auto make = [] {
    Generator generator(5);
    const GeneratorScope scope(generator);
    return nn::Sequential(nn::Conv2d(2, 4, 3), nn::BatchNorm2d(4), nn::ReLU(), nn::Flatten(), nn::Linear(64, 8),
                          nn::BatchNorm1d(8), nn::ReLU(), nn::Linear(8, 5), nn::ReLU(), nn::Linear(5, 3),
                          nn::Sigmoid());
  };
  nn::Sequential together = make();
  nn::Sequential apart = make();
  apart[1].set_hook([](nn::Module&) { return std::shared_ptr<void>(); });
  apart[6].register_forward_hook([](nn::Module&, const Tensor&, const Tensor&) {});
  apart[7].register_forward_hook([](nn::Module&, const Tensor&, const Tensor&) {});
  const Tensor x = noise({6, 2, 6, 6});
  for (const bool training : {true, true, false}) {
    together.train(training);
    apart.train(training);
    const Tensor a = together(x);
    const Tensor b = apart(x);
    CHECK(same_bits(a, b));
    CHECK(on_tape(a, "linear_relu"));
    CHECK_FALSE(on_tape(a, "relu"));
    CHECK_FALSE(on_tape(b, "linear_relu"));
    CHECK(on_tape(b, "relu"));
    for (nn::Sequential* model : {&together, &apart}) model->zero_grad();
    sum(square(a)).backward();
    sum(square(b)).backward();
    const auto mine = together.named_parameters();
    const auto theirs = apart.named_parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) CHECK(same_bits(mine[i].second.grad(), theirs[i].second.grad()));
    const auto buffers = together.named_buffers();
    const auto others = apart.named_buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) CHECK(same_bits(buffers[i].second, others[i].second));
  }
  const Tape tape = Tape::of(together(x));
  for (const auto& node : tape.nodes())
    if (node->op == OpId::linear_relu) CHECK(std::string(node->module) == "7");
}

TEST_CASE("Sequential runs a Linear and its GELU as one op, with the same bits") {
  for (const Gelu form : {Gelu::exact, Gelu::tanh}) {
    const auto make = [form] {
      Generator generator(5);
      const GeneratorScope scope(generator);
      return nn::Sequential(nn::Linear(6, 8), nn::GELU(form), nn::Linear(8, 3));
    };
    nn::Sequential together = make();
    nn::Sequential apart = make();
    apart[1].register_forward_hook([](nn::Module&, const Tensor&, const Tensor&) {});
    const Tensor x = noise({6, 6});
    const Tensor a = together(x);
    const Tensor b = apart(x);
    CHECK(same_bits(a, b));
    CHECK(on_tape(a, "linear_gelu"));
    CHECK_FALSE(on_tape(b, "linear_gelu"));
    sum(square(a)).backward();
    sum(square(b)).backward();
    const auto mine = together.named_parameters();
    const auto theirs = apart.named_parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) CHECK(same_bits(mine[i].second.grad(), theirs[i].second.grad()));
  }
}

TEST_CASE("an observer sees the fused op that runs; under UnfusedScope, and in a derived layer, relu runs apart") {
  struct Doubled : nn::Linear {
    using Linear::Linear;
    Tensor forward(const Tensor& x) override { return linear(x, weight, bias) * 2; }
  };
  nn::Sequential model(nn::Linear(3, 4), nn::ReLU());
  nn::Sequential derived(Doubled(3, 4), nn::ReLU());
  const Tensor x = noise({5, 3});
  const auto seen = [&] {
    Profile profile;
    const ObserverScope scope(profile);
    CHECK(same_bits(model(x), model(x)));
    return profile.table();
  };
  CHECK(contains(seen(), "linear_relu"));
  const Tensor fused = model(x);
  {
    const UnfusedScope scope;
    CHECK_FALSE(contains(seen(), "linear_relu"));
    CHECK(contains(seen(), "relu"));
    CHECK(same_bits(model(x), fused));
  }
  const Tensor twice = linear(x, derived.parameters()[0], derived.parameters()[1]) * 2;
  CHECK(same_bits(derived(x), relu(twice)));
}

TEST_CASE("losses are the ops of their names") {
  const Tensor x = noise({4, 3});
  const Tensor y = noise({4, 3}, 2);
  const Tensor p = sigmoid(x);
  const Tensor q = sigmoid(y);
  const Tensor classes = from_data(std::vector<std::int64_t>{0, 2, 1, 2}, {4});
  CHECK(same_bits(nn::CrossEntropyLoss()(x, classes), cross_entropy(x, classes)));
  CHECK(same_bits(nn::CrossEntropyLoss({.label_smoothing = 0.1})(x, classes),
                  cross_entropy(x, classes, {.label_smoothing = 0.1})));
  CHECK(same_bits(nn::MSELoss()(x, y), mse_loss(x, y)));
  CHECK(same_bits(nn::MSELoss(Reduction::sum)(x, y), mse_loss(x, y, Reduction::sum)));
  CHECK(same_bits(nn::L1Loss()(x, y), l1_loss(x, y)));
  CHECK(same_bits(nn::BCELoss()(p, q), bce_loss(p, q)));
  CHECK(same_bits(nn::BCEWithLogitsLoss()(x, q), bce_with_logits_loss(x, q)));
}
