// Emulated splits against a model without one, against products written out by hand, and within the bounds of a step.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/split.h>
#include <gradual/lab/split_sum.h>
#include <gradual/lab/tolerance.h>
#include <gradual/lab/twin.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace gradual;

namespace {

constexpr lab::SplitKind kKinds[] = {lab::SplitKind::columns, lab::SplitKind::rows, lab::SplitKind::heads,
                                     lab::SplitKind::sequence, lab::SplitKind::samples};

// No sum of forward is taken apart.
bool is_exact(lab::SplitKind kind) { return kind != lab::SplitKind::rows && kind != lab::SplitKind::heads; }

// 128 classes, 8 heads and 8 tokens: all that parts divide.
std::shared_ptr<nn::Module> gpt() {
  return lab::make_gpt({.vocabulary = 16, .context = 8, .outputs = 128, .width = 64, .heads = 8});
}

struct Numbers {
  Tensor logits;
  std::vector<Tensor> gradients;
};

// Of a GPT whose sums are f64, so that their order does not matter: those of the last of some forward and backward
// passes of the same parameters.
Numbers numbers(const amp::Recipe& recipe, const std::optional<lab::Split>& split, int passes = 1,
                lab::SplitWatcher* watcher = nullptr) {
  default_generator().manual_seed(3);
  const std::shared_ptr<nn::Module> model = gpt();
  std::vector<std::int64_t> drawn;
  for (std::int64_t i = 0; i < 64; ++i) drawn.push_back(7 * i % 16);
  const Tensor tokens = from_data(drawn, {8, 8});
  amp::RecipeRun run(recipe, *model, optim::AdamWOptions{});
  const AccumulatorScope exact(accumulator("f64"));
  std::optional<lab::SplitScope> scope;
  if (split) scope.emplace(*split, *model, watcher);
  Numbers n;
  for (int i = 0; i < passes; ++i) {
    model->zero_grad();
    const Tensor loss = run.forward([&] {
      n.logits = (*model)(tokens);
      return cross_entropy(n.logits.reshape({64, 128}), reshape(tokens, {64}));
    });
    run.backward(loss);
  }
  for (const auto& [name, parameter] : model->named_parameters()) n.gradients.push_back(parameter.grad().clone());
  n.logits = n.logits.detach();
  return n;
}

double distance(const Tensor& a, const Tensor& b) { return max(abs(a.to(DType::f64) - b.to(DType::f64))).item(); }
double largest_distance(const Numbers& a, const Numbers& b) {
  double all = 0;
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    const double one = distance(a.gradients[i], b.gradients[i]) / max(abs(a.gradients[i])).item();
    if (std::isnan(one)) return one;  // std::max passes over it
    all = std::max(all, one);
  }
  return all;
}

// x [4, 6] W^T, W [8, 6].
struct OneLayer {
  Tensor x = randn({4, 6});
  nn::Linear layer = nn::Linear(6, 8);
};

bool has_range_of_tensor(const amp::Recipe& recipe) {
  if (!recipe.quantization) return false;
  return std::ranges::any_of(amp::kQuantizerFields, [&](const amp::QuantizerField& field) {
    const std::optional<Quantizer>& q = (*recipe.quantization).*field.quantizer;
    return q && is_any<TensorRange>(q->scaling);
  });
}

lab::StudyOptions early() { return {.step = 2, .batch = 8, .epochs = 1}; }

// Counts what it is told.
struct Counts final : lab::SplitWatcher {
  void begins() override { ++ops; }
  void ends(const OpCall&, const gradual::Outputs&) override {}
  void backward_begins() override { ++backward; }
  void backward_gives(const lab::SplitGradient&) override { ++gradients; }

  int ops = 0;
  int backward = 0;
  int gradients = 0;
};

// Digits as [.., 8, 8] to 64 features, and on to 10 classes.
struct Repeated : nn::Module {
  nn::Linear& fc = register_module("fc", nn::Linear(64, 64));
  nn::Linear& mid = register_module("mid", nn::Linear(64, 64));
  nn::Conv2d& conv = register_module("conv", nn::Conv2d(1, 1, 3, {.padding = 1}));
  nn::LayerNorm& norm = register_module("norm", nn::LayerNorm(64));
  nn::Linear& head = register_module("head", nn::Linear(64, 10));
  Tensor scale = register_parameter("scale", ones({64}));
  Tensor square = register_parameter("square", randn({64, 64}) * 0.1);
  Tensor rows = register_parameter("rows", randn({8, 8}) * 0.1);
};
// All layers twice; products outside of modules, of which one is of more than a matrix.
struct TwiceNet final : Repeated {
  Tensor forward(const Tensor& x) override {
    const std::int64_t n = x.size(0);
    const Tensor images = conv(relu(conv(x.reshape({n, 1, 8, 8}))));
    const Tensor products = matmul(matmul(images.reshape({n, 8, 8}), rows), rows).reshape({n, 64});
    Tensor h = fc(products);
    h = mid(norm(relu(mid(norm(h))))) * scale;
    return head(matmul(relu(matmul(h, square)), square));
  }
};
// The split ops' first inputs need no gradient, and other ops follow them in backward.
struct BranchNet final : Repeated {
  Tensor forward(const Tensor& x) override {
    const Tensor features = x.reshape({x.size(0), 64});
    return head(relu(mid(relu(features * scale))) + fc(features));
  }
};

// How many tensors were compared; each of them is within what is likely.
int check_compared(const lab::Tolerances& t) {
  int compared = 0;
  for (const lab::Tolerated& one : t.tensors) {
    CAPTURE(one.name);
    if (!one.split) continue;
    ++compared;
    CHECK(one.worst <= 1);
    CHECK(one.worst_probably <= 1);
  }
  return compared;
}

}  // namespace

TEST_CASE("splits: a single part has the bits of the model without a split") {
  for (const char* recipe : {"fp32", "amp-bf16", "fp8-current"}) {
    const Numbers whole = numbers(amp::recipe(recipe), std::nullopt);
    for (const lab::SplitKind kind : kKinds) {
      CAPTURE(std::string(recipe));
      CAPTURE(to_string(kind));
      const Numbers one =
          numbers(amp::recipe(recipe), lab::Split{.kind = kind, .exchange = amp::exchange_from_name("bf16")});
      CHECK(distance(one.logits, whole.logits) == 0);
      CHECK(largest_distance(whole, one) == 0);
    }
  }
}

TEST_CASE("splits: columns with agreed scales and f64 sums have the bits of the model in forward") {
  for (const char* recipe : {"fp32", "amp-bf16", "fp8-current", "fp8-delayed", "mxfp8", "nvfp4"}) {
    const Numbers whole = numbers(amp::recipe(recipe), std::nullopt);
    for (const int parts : {2, 4, 8}) {
      if (std::string(recipe) == "nvfp4" && parts == 8) continue;  // 8 rows of a weight are no whole tile of 16
      for (const lab::SplitKind kind : {lab::SplitKind::columns, lab::SplitKind::sequence, lab::SplitKind::samples}) {
        CAPTURE(std::string(recipe));
        CAPTURE(parts);
        CAPTURE(to_string(kind));
        const Numbers split = numbers(amp::recipe(recipe), lab::Split{.kind = kind, .parts = parts});
        CHECK(distance(split.logits, whole.logits) == 0);
      }
    }
  }
}

TEST_CASE("splits: agreed scales are those of the whole tensor, own ones those of a part") {
  OneLayer one;
  one.x.narrow(1, 0, 1).mul_(100);  // the amax of the first half
  one.layer.weight.detach().narrow(1, 5, 1).mul_(100);
  const amp::Recipe recipe = amp::recipe("fp8-current");
  const NoGrad off;
  const AccumulatorScope exact(accumulator("f64"));
  const auto in_parts = [&](lab::SplitScales scales) {
    const lab::SplitScope scope({.kind = lab::SplitKind::rows, .parts = 2, .scales = scales}, one.layer);
    const amp::RecipeRun run(recipe, one.layer, optim::SGDOptions{.lr = 0.1});
    return run.evaluate([&] { return one.layer(one.x); });
  };
  const auto rounded = [](const Tensor& t, const std::optional<Quantizer>& q) { return fake_quantize(t, *q); };
  const auto half = [](const Tensor& t, int i) { return t.narrow(1, 3 * i, 3).contiguous(); };
  const Tensor& w = one.layer.weight;
  const amp::Quantization& q = *recipe.quantization;
  const Tensor agreed = matmul(rounded(one.x, q.forward_x), rounded(w, q.forward_w).transpose(0, 1)) + one.layer.bias;
  Tensor own = one.layer.bias;
  for (int i = 0; i < 2; ++i)
    own = own + matmul(rounded(half(one.x, i), q.forward_x), rounded(half(w, i), q.forward_w).transpose(0, 1));
  const double allowed = 1e-6 * max(abs(own)).item();
  CHECK(distance(in_parts(lab::SplitScales::agreed), agreed) <= allowed);
  CHECK(distance(in_parts(lab::SplitScales::own), own) <= allowed);
  CHECK(distance(own, agreed) > 100 * allowed);
}

TEST_CASE("splits: a second pass is the model's second pass: scales, histories and rounded results are of the whole") {
  for (const char* name : {"fp8-current", "fp8-delayed", "eco-fp8", "msamp-o2", "pure:e5m10"}) {
    const amp::Recipe recipe = amp::recipe(name);
    const Numbers whole = numbers(recipe, std::nullopt, 2);
    for (const lab::SplitKind kind : kKinds) {
      CAPTURE(std::string(name));
      CAPTURE(to_string(kind));
      const Numbers split = numbers(recipe, lab::Split{.kind = kind, .parts = 4}, 2);
      CHECK(distance(split.logits, whole.logits) <= (is_exact(kind) ? 0 : 0.05) * max(abs(whole.logits)).item());
      CHECK(largest_distance(whole, split) < 0.2);
    }
  }
  for (const lab::SplitKind kind : kKinds)
    CHECK_THROWS_WITH_AS(numbers(amp::recipe("fp8-smooth"), lab::Split{.kind = kind, .parts = 4}),
                         doctest::Contains("smooth: parts of an operand agree on an amax, not on scales of channels"),
                         Error);
}

TEST_CASE("splits: gradients are those of the model, up to the sums that the split takes apart") {
  // FP8: one sum on the other side of a rounding boundary moves what comes after it.
  const std::pair<const char*, double> cases[] = {{"fp32", 1e-5}, {"fp8-current", 0.2}};
  for (const auto& [recipe, allowed] : cases) {
    const amp::Recipe used = amp::recipe(recipe);
    const Numbers whole = numbers(used, std::nullopt);
    for (const lab::SplitKind kind : kKinds)
      for (const int parts : {2, 8}) {
        CAPTURE(std::string(recipe));
        CAPTURE(to_string(kind));
        CAPTURE(parts);
        const double apart = largest_distance(whole, numbers(used, lab::Split{.kind = kind, .parts = parts}));
        CHECK(apart < allowed);
      }
  }
}

TEST_CASE("splits: every recipe runs in parts") {
  for (const std::string& name : amp::recipe_names())
    for (const lab::SplitKind kind : kKinds) {
      CAPTURE(name);
      CAPTURE(to_string(kind));
      const amp::Recipe recipe = amp::recipe(name);
      if (recipe.quantization && recipe.quantization->smooth) continue;  // an Error, as the case above says
      lab::Split split{.kind = kind, .parts = 4};
      if (recipe.quantization && amp::learns_scales(*recipe.quantization)) {
        CHECK_THROWS_WITH_AS(numbers(recipe, split), doctest::Contains("learned scale"), Error);
        continue;
      }
      if (recipe.quantization && recipe.quantization->outliers) {
        CHECK_THROWS_WITH_AS(numbers(recipe, split), doctest::Contains("do not agree on channels"), Error);
        continue;
      }
      if (name == "mxfp4-attention-hadamard") {
        CHECK_THROWS_WITH_AS(numbers(recipe, split), doctest::Contains("do not divide the head size 8"), Error);
        continue;
      }
      if (has_range_of_tensor(recipe)) {
        CHECK_THROWS_WITH_AS(numbers(recipe, split), doctest::Contains("not on a range with a zero point"), Error);
        split.scales = lab::SplitScales::own;
      }
      CHECK(std::isfinite(max(abs(numbers(recipe, split).logits)).item()));
    }
}

TEST_CASE("splits: partial sums of rows are rounded to the exchange's format") {
  OneLayer one;
  const auto part = [&](int i) {
    return matmul(one.x.narrow(1, 3 * i, 3), one.layer.weight.narrow(1, 3 * i, 3).transpose(0, 1));
  };
  const auto to_bf16 = [](const Tensor& t) { return t.to(DType::bf16).to(DType::f32); };
  const auto split_as = [&](const char* exchange) {
    const lab::SplitScope scope(
        {.kind = lab::SplitKind::rows, .parts = 2, .exchange = amp::exchange_from_name(exchange)}, one.layer);
    return one.layer(one.x);
  };
  const NoGrad off;
  const Tensor& bias = one.layer.bias;
  CHECK(distance(split_as("f32"), part(0) + part(1) + bias) == 0);
  CHECK(distance(split_as("bf16"), to_bf16(to_bf16(part(0)) + to_bf16(part(1))) + bias) == 0);
  CHECK(distance(split_as("bf16/ring"), to_bf16(to_bf16(part(0)) + part(1)) + bias) == 0);
  CHECK(distance(split_as("bf16/tree"), to_bf16(part(0) + to_bf16(part(1))) + bias) == 0);
  CHECK(distance(split_as("bf16/f32-result"), to_bf16(part(0)) + to_bf16(part(1)) + bias) == 0);
}

TEST_CASE("splits: partial gradients of columns are rounded to the exchange's format") {
  OneLayer one;
  one.x.set_requires_grad();
  const Tensor dy = randn({4, 8});
  {
    const lab::SplitScope scope(
        {.kind = lab::SplitKind::columns, .parts = 2, .exchange = amp::exchange_from_name("bf16")}, one.layer);
    sum(one.layer(one.x) * dy).backward();
  }
  const NoGrad off;
  const auto to_bf16 = [](const Tensor& t) { return t.to(DType::bf16).to(DType::f32); };
  const auto part = [&](int i) {
    return to_bf16(matmul(dy.narrow(1, 4 * i, 4).contiguous(), one.layer.weight.narrow(0, 4 * i, 4).contiguous()));
  };
  CHECK(distance(one.x.grad(), to_bf16(part(0) + part(1))) == 0);
}

TEST_CASE("splits: a segment that backward computes again is split again, and counts once") {
  OneLayer one;
  const Tensor dy = randn({4, 8});
  const auto gradient = [&](bool checkpointed) {
    const Tensor x = one.x.detach().clone().set_requires_grad();
    const lab::SplitScope scope(
        {.kind = lab::SplitKind::columns, .parts = 2, .exchange = amp::exchange_from_name("bf16")}, one.layer);
    const auto layer = [&](const Tensor& t) { return one.layer(t); };
    sum((checkpointed ? checkpoint(layer, x) : layer(x)) * dy).backward();
    CHECK(scope.ops() == 1);
    return x.grad();
  };
  CHECK(distance(gradient(true), gradient(false)) == 0);
}

TEST_CASE("splits: a recipe that rounds each result rounds that of all parts, once") {
  OneLayer one;
  const amp::Recipe recipe = amp::recipe("pure:e5m10");
  const NoGrad off;
  const auto part = [&](int i) {
    return matmul(one.x.narrow(1, 3 * i, 3), one.layer.weight.narrow(1, 3 * i, 3).transpose(0, 1));
  };
  const Tensor whole = fake_quantize(part(0) + part(1) + one.layer.bias, *recipe.quantization->result);
  const amp::ResultScope results(recipe.quantization);
  const lab::SplitScope scope({.kind = lab::SplitKind::rows, .parts = 2}, one.layer);
  CHECK(distance(one.layer(one.x), whole) == 0);
}

TEST_CASE("splits: attention may be the model itself, and a product outside of modules is not attention's") {
  nn::MultiheadAttention attention(64, 8);
  const Tensor x = randn({2, 4, 64});
  const NoGrad off;
  const Tensor whole = attention(x);
  const lab::SplitScope scope({.kind = lab::SplitKind::heads, .parts = 2}, attention);
  CHECK(distance(attention(x), whole) < 1e-5);
  CHECK(scope.ops() == 3);
  matmul(x, ones({64, 64}));
  CHECK(scope.ops() == 3);
}

TEST_CASE("splits: partial sums in half are added in f32 and rounded once") {
  const auto bf16 = [](double v) { return tensor({v}).to(DType::bf16); };
  const std::vector<Tensor> parts = {bf16(256), bf16(1), bf16(1)};  // 257 is no bf16
  for (const char* exchange : {"f32", "mxfp8/f32-result"}) {
    const Tensor sum = lab::exchanged_sum(parts, amp::exchange_from_name(exchange));
    CHECK(sum.dtype() == DType::bf16);
    CHECK(sum.item() == 258);
  }
}

TEST_CASE("splits: gradients of copies are added when each has come, in whichever order and however often") {
  const Tensor t = tensor({1.0}).set_requires_grad();
  const std::vector<Tensor> copies = lab::copies_of(t, 2, {});
  const Tensor first = copies[0] * 2.0;
  const Tensor second = copies[1] * 3.0;
  first.backward({}, true);
  first.backward({}, true);
  CHECK(!t.grad().defined());
  second.backward({}, true);
  REQUIRE(t.grad().defined());
  CHECK(t.grad().item() == 5);
  (first + second).backward();
  CHECK(t.grad().item() == 10);
}

TEST_CASE("splits: a layer of half weights has the history of its own site") {
  OneLayer one;
  one.layer.to(DType::bf16);
  const auto state = std::make_shared<amp::QuantizationState>(*amp::recipe("fp8-delayed").quantization);
  const lab::SplitScope scope({.kind = lab::SplitKind::rows, .parts = 2}, one.layer);
  amp::AutocastOptions options;
  amp::quantize_region(options, *amp::recipe("fp8-delayed").quantization, state);
  {
    const amp::Autocast region(options);
    one.layer(one.x.to(DType::bf16));
  }
  CHECK(state->state_dict().text("sites").find("#activations") == std::string::npos);
}

TEST_CASE("splits: a GPT of 4 layers in 1, 2, 4 and 8 parts is within the bound of tolerance") {
  const lab::LabData data = lab::data_for("addition");
  const std::int64_t length = data.load(0).train.inputs.size(1);
  REQUIRE(length % 8 == 0);
  const lab::MakeModel make = [&] {
    return lab::make_gpt({.vocabulary = 16, .context = length, .outputs = 16, .width = 64, .heads = 8, .layers = 4});
  };
  for (const char* recipe : {"fp32", "amp-bf16"}) {
    const amp::Recipe used = amp::recipe(recipe);
    const lab::Tolerances t = lab::tolerance(make, data, used, {.study = early(), .orders = 1});
    for (const lab::SplitKind kind : kKinds)
      for (const int parts : {1, 2, 4, 8}) {
        CAPTURE(std::string(recipe));
        CAPTURE(to_string(kind));
        CAPTURE(parts);
        const StateDict values = lab::values_under({.kind = kind, .parts = parts}, make, data, used, early());
        CHECK(values.size() > 100);
        // Also within what is likely: the bound of deep gradients is infinite.
        for (const lab::Exceeded& e : t.exceeded(values)) {
          CAPTURE(e.name);
          CHECK(e.worst <= 1);
          CHECK(!e.always);
        }
      }
  }
}

TEST_CASE("splits: a CNN in 1, 2 and 4 parts is within what is likely, with gradients of its activations") {
  const lab::LabData data = lab::data_for("digits");
  const lab::MakeModel make = lab::model_for("cnn", data.load(0).train);
  for (const char* recipe : {"fp32", "amp-bf16"}) {
    const amp::Recipe used = amp::recipe(recipe);
    const lab::Tolerances t = lab::tolerance(make, data, used, {.study = early(), .orders = 1});
    for (const lab::SplitKind kind : {lab::SplitKind::columns, lab::SplitKind::rows, lab::SplitKind::samples})
      for (const int parts : {1, 2, 4}) {
        CAPTURE(std::string(recipe));
        CAPTURE(to_string(kind));
        CAPTURE(parts);
        lab::Split split{.kind = kind, .parts = parts};
        if (kind == lab::SplitKind::rows) split.except = {"0"};                   // of one input channel
        if (kind == lab::SplitKind::columns && parts == 4) split.except = {"9"};  // of 10 outputs
        const StateDict values = lab::values_under(split, make, data, used, early());
        CHECK(values.contains("4.conv2d"));
        CHECK(values.contains("backward:4.conv2d_backward_input"));
        CHECK(values.contains("backward:5.batch_norm_backward"));
        CHECK(values.contains("grad:4.weight"));
        for (const lab::Exceeded& e : t.exceeded(values)) {
          CAPTURE(e.name);
          CHECK(e.worst <= 1);
          CHECK(!e.always);
        }
      }
  }
}

TEST_CASE(
    "splits: a convolution without one of its parts, or with one twice, leaves the bound; a data-parallel one too") {
  default_generator().manual_seed(9);
  const Tensor x = randn({4, 8, 6, 6});
  const Tensor dy = randn({4, 16, 6, 6});
  const Tensor w = randn({16, 8, 3, 3});
  const Conv2dOptions options{.padding = 1};
  ConvAttrs of_weight{options};
  of_weight.size = 3;
  const nn::Linear none(1, 1);
  lab::RecordedOps ops(none);
  {
    const ObserverScope scope(ops);
    conv2d(x, w, {}, options);
    conv2d_backward_weight(dy, x, of_weight);
  }
  const lab::Tolerances t = lab::tolerance_of(ops, {.orders = 1});
  const auto exceeded = [&](const char* name, const Tensor& value) {
    StateDict values;
    values.set(name, value);
    const std::vector<lab::Exceeded> found = t.exceeded(values);
    return found.empty() ? 0 : found.front().always ? 2 : 1;
  };
  const auto channels = [&](int part) {
    return conv2d(x.narrow(1, 2 * part, 2).contiguous(), w.narrow(1, 2 * part, 2).contiguous(), {}, options);
  };
  const Tensor of_three = channels(0) + channels(1) + channels(2);
  CHECK(exceeded("conv2d", of_three + channels(3)) == 0);
  CHECK(exceeded("conv2d", of_three) == 2);
  CHECK(exceeded("conv2d", of_three + channels(3) + channels(3)) == 2);
  const auto samples = [&](int rank) {
    return conv2d_backward_weight(dy.narrow(0, rank, 1).contiguous(), x.narrow(0, rank, 1).contiguous(), of_weight);
  };
  const Tensor of_ranks = samples(0) + samples(1) + samples(2);
  CHECK(exceeded("conv2d_backward_weight", of_ranks + samples(3)) == 0);
  CHECK(exceeded("conv2d_backward_weight", of_ranks) == 2);
  CHECK(exceeded("conv2d_backward_weight", of_ranks + samples(3) + samples(3)) == 2);
}

TEST_CASE("splits: parts of a quantised convolution agree on the scale of a tensor, or have their own") {
  default_generator().manual_seed(10);
  nn::Conv2d layer(4, 6, 3, {.padding = 1});
  const Tensor x = randn({2, 4, 5, 5});
  x.narrow(1, 3, 1).mul_(100);  // the amax of the second part
  const NoGrad off;
  const AccumulatorScope exact(accumulator("f64"));
  const auto computed = [&](const char* recipe, const std::optional<lab::SplitScales>& scales) {
    std::optional<lab::SplitScope> scope;
    if (scales) scope.emplace(lab::Split{.kind = lab::SplitKind::rows, .parts = 2, .scales = *scales}, layer);
    const amp::RecipeRun run(amp::recipe(recipe), layer, optim::SGDOptions{.lr = 0.1});
    return run.evaluate([&] { return layer(x); });
  };
  const Tensor whole = computed("fp8-current", std::nullopt);
  const double allowed = 1e-6 * max(abs(whole)).item();
  CHECK(distance(computed("fp8-current", lab::SplitScales::agreed), whole) <= allowed);
  CHECK(distance(computed("fp8-current", lab::SplitScales::own), whole) > 10 * allowed);
  CHECK_THROWS_WITH_AS(computed("nvfp4", lab::SplitScales::agreed), doctest::Contains("parts of a convolution agree"),
                       Error);
}

TEST_CASE("splits: tolerance shows the split, and an exchange in bf16 leaves the bound of f32") {
  const lab::LabData data = lab::data_for("digits");
  const lab::MakeModel make = lab::model_for("mlp", data.load(0).train);
  lab::Split split{.kind = lab::SplitKind::rows, .parts = 4};
  const auto tolerances = [&] {
    return lab::tolerance(make, data, amp::recipe("fp32"), {.study = early(), .orders = 1, .split = split});
  };
  const lab::Tolerances f32 = tolerances();
  int compared = 0;
  for (const lab::Tolerated& one : f32.tensors) {
    CAPTURE(one.name);
    CHECK(one.worst <= 1);
    compared += one.split ? 1 : 0;
    if (one.kind != lab::ToleratedKind::gradient) CHECK(one.split.has_value());
  }
  CHECK(compared == 30);  // with 11 gradients of activations and of products
  CHECK(lab::to_string(f32).find("split: rows=4; scales agreed; exchange f32\n") != std::string::npos);
  CHECK(lab::to_string(f32).find("and the split are within the bound") != std::string::npos);
  CHECK(lab::to_json(f32).find("\"split\"") != std::string::npos);
  split.exchange = amp::exchange_from_name("bf16");
  const std::string text = lab::to_string(tolerances());
  CHECK(text.find("tensors are outside of the bound (!)\n") != std::string::npos);
  CHECK(text.find("  in a sampled order, in this program's own step or under the split\n") != std::string::npos);
}

TEST_CASE("splits: gradients of layers that are used twice are compared each with its own") {
  const lab::LabData data = lab::data_for("digits");
  const lab::MakeModel make = [] { return std::make_shared<TwiceNet>(); };
  lab::StudyOptions study = early();
  for (const int accumulate : {1, 2})
    for (const lab::SplitKind kind : {lab::SplitKind::samples, lab::SplitKind::rows}) {
      CAPTURE(accumulate);
      CAPTURE(to_string(kind));
      study.training.accumulate = accumulate;
      const lab::Split split{.kind = kind, .parts = 2, .except = {"conv"}};
      const lab::Tolerances t =
          lab::tolerance(make, data, amp::recipe("fp32"), {.study = study, .orders = 1, .split = split});
      const int compared = check_compared(t);
      // But gradients of a matrix by which more than a matrix is multiplied.
      CHECK(compared == static_cast<int>(t.tensors.size()) - 2 * accumulate);
    }
}

TEST_CASE("splits: the end of an op's backward is known where its first input needs no gradient") {
  const lab::LabData data = lab::data_for("digits");
  const lab::MakeModel make = [] { return std::make_shared<BranchNet>(); };
  const lab::Split split{.kind = lab::SplitKind::samples, .parts = 2};
  const lab::Tolerances t =
      lab::tolerance(make, data, amp::recipe("fp32"), {.study = early(), .orders = 1, .split = split});
  CHECK(check_compared(t) == static_cast<int>(t.tensors.size()));
}

TEST_CASE("splits: a tensor of other sizes than the step's is an Error that names it") {
  int made = 0;
  const lab::MakeModel make = [&] {
    ++made;
    const std::int64_t width = made == 1 ? 16 : 8;
    return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(64, width), nn::Linear(width, 10));
  };
  const lab::ToleranceOptions options{
      .study = early(), .orders = 1, .split = lab::Split{.kind = lab::SplitKind::rows, .parts = 2}};
  CHECK_THROWS_WITH_AS(lab::tolerance(make, lab::data_for("digits"), amp::recipe("fp32"), options),
                       doctest::Contains("tolerance: '1.linear' is [8, 8], in the step [8, 16]"), Error);
}

TEST_CASE("splits: a watcher changes no bit, and is told of no backward after the split has ended") {
  for (const char* recipe : {"fp32", "amp-bf16", "fp8-delayed", "mxfp8"})
    for (const lab::SplitKind kind : kKinds) {
      CAPTURE(std::string(recipe));
      CAPTURE(to_string(kind));
      Counts counts;
      const lab::Split split{.kind = kind, .parts = 2};
      const Numbers watched = numbers(amp::recipe(recipe), split, 2, &counts);
      const Numbers alone = numbers(amp::recipe(recipe), split, 2);
      CHECK(distance(watched.logits, alone.logits) == 0);
      CHECK(largest_distance(watched, alone) == 0);
      CHECK(counts.ops > 0);
      CHECK(counts.backward == counts.ops);
      CHECK(counts.gradients > counts.ops);
    }
  OneLayer one;
  Tensor loss;
  {
    Counts counts;
    const lab::SplitScope scope({.kind = lab::SplitKind::rows, .parts = 2}, one.layer, &counts);
    loss = sum(one.layer(one.x));
  }
  loss.backward();
  CHECK(one.layer.weight.grad().defined());
}

TEST_CASE("splits: the sampler of twins may be split, also with the layers' contributions") {
  const lab::LabData data = lab::data_for("digits");
  const lab::MakeModel make = lab::model_for("mlp", data.load(0).train);
  const amp::Recipe fp32 = amp::recipe("fp32");
  lab::TwinOptions options{.study = {.step = 10, .epochs = 1}, .samples = 64};
  options.split = lab::Split{.kind = lab::SplitKind::rows, .parts = 2};
  const lab::Twins sums = lab::twin(make, data, fp32, fp32, options);
  options.split->exchange = amp::exchange_from_name("bf16");
  const lab::Twins bf16 = lab::twin(make, data, fp32, fp32, options);
  CHECK(sums.all.largest < 1e-5);
  CHECK(bf16.all.largest > 1e-4);
  CHECK(lab::to_string(bf16).find("split of the sampler: rows=2; scales agreed; exchange bf16, gather") !=
        std::string::npos);
  double moved = 0;
  for (const auto& layer : bf16.layers) moved += std::abs(layer.a - layer.b);
  CHECK(moved > 1e-6);
}

TEST_CASE("splits: a region of autocast within the model runs below the split") {
  OneLayer one;
  const lab::Split rows{.kind = lab::SplitKind::rows, .parts = 2};
  const NoGrad off;
  const lab::SplitScope scope(rows, one.layer);
  const amp::Autocast region({.dtype = DType::bf16});
  CHECK(one.layer(one.x).dtype() == DType::bf16);
  CHECK(scope.ops() == 1);
  const amp::Autocast none({.enabled = false});
  CHECK(one.layer(one.x).dtype() == DType::f32);
  CHECK(scope.ops() == 2);
}

TEST_CASE("splits: what they cannot do is an Error that names it") {
  const auto with = [](const lab::Split& split, nn::Module& model, const Tensor& x) {
    const lab::SplitScope scope(split, model);
    model(x);
    scope.check_used();
  };
  nn::Sequential model(nn::Linear(6, 9), nn::ReLU(), nn::Linear(9, 4));
  const Tensor x = randn({4, 6});
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::columns, .parts = 2}, model, x),
                       doctest::Contains("layer '0' (linear): 9 output features are not a multiple of 2"), Error);
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::rows, .parts = 2}, model, x),
                       doctest::Contains("layer '2' (linear): 9 input features are not a multiple of 2"), Error);
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::sequence, .parts = 2}, model, x),
                       doctest::Contains("an input [4, 6] has no tokens"), Error);
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::heads, .parts = 2}, model, x),
                       doctest::Contains("no nn::MultiheadAttention"), Error);
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::rows, .parts = 2, .except = {"1", "7"}}, model, x),
                       doctest::Contains("no module '7'"), Error);
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::rows, .parts = 2, .except = {"0", "2"}}, model, x),
                       doctest::Contains("no op of the model was split"), Error);
  CHECK_NOTHROW(with({.kind = lab::SplitKind::rows, .parts = 3, .except = {"2"}}, model, x));
  nn::Conv2d grouped(4, 8, 3, {.groups = 2});
  for (const lab::SplitKind kind : {lab::SplitKind::columns, lab::SplitKind::rows})
    CHECK_THROWS_WITH_AS(with({.kind = kind, .parts = 2}, grouped, randn({2, 4, 5, 5})),
                         doctest::Contains("(conv2d): it has 2 groups of channels"), Error);
  CHECK_NOTHROW(with({.kind = lab::SplitKind::samples, .parts = 2}, grouped, randn({2, 4, 5, 5})));
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::samples, .parts = 3}, model, x),
                       doctest::Contains("4 samples are not a multiple of 3"), Error);
  nn::MultiheadAttention attention(64, 4);
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::heads, .parts = 8}, attention, randn({2, 8, 64})),
                       doctest::Contains("(scaled_dot_product_attention): 4 heads are not a multiple of 8"), Error);
  nn::MultiheadAttention dropping(64, 4, {.dropout = 0.5});
  CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::heads, .parts = 2}, dropping, randn({2, 8, 64})),
                       doctest::Contains("dropout of attention is not emulated"), Error);
  {
    const lab::SplitScope outer({.kind = lab::SplitKind::rows, .parts = 2}, model);
    CHECK_THROWS_WITH_AS(with({.kind = lab::SplitKind::columns, .parts = 2}, model, x),
                         doctest::Contains("another split is in force"), Error);
  }
  CHECK_THROWS_WITH_AS(lab::split_from_name("rwos=2"), doctest::Contains("columns, rows, heads, sequence, samples"),
                       Error);
  for (const char* text : {"rows", "rows=", "rows=0", "rows=2x"})
    CHECK_THROWS_WITH_AS(lab::split_from_name(text), doctest::Contains("rows=N with N of at least 1"), Error);
  CHECK_THROWS_WITH_AS(lab::split_scales_from_name("mine"), doctest::Contains("agreed, own"), Error);
  const lab::Split own{.kind = lab::SplitKind::rows, .parts = 2, .scales = lab::SplitScales::own};
  CHECK_THROWS_WITH_AS(lab::check_valid(own, amp::recipe("fp8-delayed").quantization),
                       doctest::Contains("parts have no histories"), Error);
  amp::Quantization inside;
  inside.attention = amp::recipe("fp8-attention-delayed").quantization->attention;
  CHECK_THROWS_WITH_AS(lab::check_valid(own, inside), doctest::Contains("parts have no histories"), Error);
  const auto exchanging = [](const char* exchange) {
    return lab::Split{.kind = lab::SplitKind::rows, .parts = 2, .exchange = amp::exchange_from_name(exchange)};
  };
  for (const char* exchange : {"e4m3", "bf16/stochastic", "sign", "bf16/feedback", "bf16/after"})
    CHECK_THROWS_WITH_AS(lab::check_valid(exchanging(exchange), {}), doctest::Contains("the exchange of a split"),
                         Error);
  lab::Split drawn{.kind = lab::SplitKind::rows, .parts = 2};
  drawn.exchange.quantizer = Quantizer{.format = format("e2m1"), .scaling = Nvfp4Blocks{.rule = CodedRule::stochastic}};
  CHECK_THROWS_WITH_AS(lab::check_valid(drawn, {}), doctest::Contains("random rounding is not emulated"), Error);
}
