// The exercises of the tutorial (docs/tutorial): the answers of docs/teaching.md that are numbers, computed.
#include <doctest/doctest.h>
#include <gradual/core/quantize/bits_per_number.h>
#include <gradual/gradual.h>
#include <gradual/inspect/explain.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "support/source_dir.h"

using namespace gradual;

namespace {

double in(DType dtype, double x) { return full({1}, x, dtype).item(); }
double in(const char* name, double x) {
  return fake_quantize(full({1}, x, DType::f64), {.format = format(name)}).item();
}
double gap_above(const char* name, double x) {
  double power = 1;
  while (in(name, x + power) > x) power /= 2;
  return 2 * power;
}

// The largest number to which a sum of ones grows.
double counts_to(DType dtype, double step, int additions) {
  const Tensor total = zeros({1}, dtype);
  for (int i = 0; i < additions; ++i) total.add_(full({1}, step, dtype));
  return total.item();
}

struct SmallNet : nn::Module {
  nn::Linear& hidden = register_module("hidden", nn::Linear(64, 48));
  nn::Linear& last = register_module("last", nn::Linear(48, 10));
  Tensor forward(const Tensor& x) override { return last(relu(hidden(flatten(x, 1)))); }
};

// The network of lesson 3 at its input.
struct Lesson3 {
  Tensor hidden_weight = tensor({{1, 2}, {-1, 1}}).set_requires_grad();
  Tensor hidden_bias = tensor({0.5, 0}).set_requires_grad();
  Tensor out_weight = tensor({{2, 3}}).set_requires_grad();
  Tensor out_bias = tensor({1}).set_requires_grad();
  void backward(const Tensor& x, double target) const {
    const Tensor y = linear(relu(linear(x, hidden_weight, hidden_bias)), out_weight, out_bias);
    square(y - target).mean().backward();
  }
};

// The running mean of lesson 9.
double running_mean(DType dtype, double momentum, double batch_mean, int steps) {
  Tensor running = zeros({1}, dtype);
  const Tensor mean = full({1}, batch_mean, dtype);
  for (int i = 0; i < steps; ++i) running = running + (mean - running) * momentum;
  return running.item();
}

// The loop of lesson 11.
inspect::Explained explained(const amp::Recipe& recipe) {
  manual_seed(0);
  return inspect::explain(recipe,
                          [](inspect::Collector& c) {
                            const data::Dataset digits = data::digits();
                            SmallNet net;
                            amp::RecipeRun run(c.recipe(), net, optim::AdamOptions{.lr = 2e-3});
                            for (std::int64_t step = 0; step < 40; ++step) {
                              const Tensor x = digits.inputs.narrow(0, 64 * (step % 20), 64).contiguous();
                              const Tensor y = digits.targets.narrow(0, 64 * (step % 20), 64).contiguous();
                              if (!c.step(run, [&] { return cross_entropy(net(x), y); })) return;
                            }
                          },
                          {.trials = 2});
}

// The accuracy, in percent, of the network of lesson 8.
double accuracy(const amp::Recipe& recipe) {
  struct Net : nn::Module {
    nn::Linear& hidden = register_module("hidden", nn::Linear(64, 64));
    nn::Linear& last = register_module("last", nn::Linear(64, 10));
    Tensor forward(const Tensor& x) override { return last(relu(hidden(flatten(x, 1)))); }
  };
  manual_seed(1);
  Net net;
  amp::RecipeRun run(recipe, net, optim::AdamWOptions{.lr = 2e-3});
  const data::Split digits = data::split(data::digits(), 1437);
  data::DataLoader loader(digits.train, {.batch = 64, .shuffle = true});
  for (int epoch = 0; epoch < 5; ++epoch)
    for (const data::Batch& batch : loader) run.step([&] { return cross_entropy(net(batch.inputs), batch.targets); });
  const Tensor guess = run.evaluate([&] { return net(digits.test.inputs); }).argmax(1);
  return 100 * (guess == digits.test.targets).mean().item();
}
amp::Recipe everywhere(const Quantizer& q) {
  amp::Recipe recipe{.name = "exercise"};
  recipe.quantization = amp::Quantization{q, q, q, q, q, q};
  return recipe;
}

}  // namespace

TEST_CASE("exercises of lesson 1: a gap of fp16, and the first whole number that bf16 lacks") {
  CHECK(gap_above("fp16", 1000) == 0.5);
  int n = 1;
  while (in(DType::bf16, n) == n) ++n;
  CHECK(n == 257);
}

TEST_CASE("exercises of lesson 2: counting, an order of a sum, a square that is 0") {
  CHECK(counts_to(DType::f16, 1, 5000) == 2048);
  CHECK(counts_to(DType::bf16, 1, 5000) == 256);
  CHECK(counts_to(DType::bf16, 2, 5000) == 512);  // exercise 1 for the keyboard
  const Tensor one = full({1}, 1, DType::f16);
  const Tensor tiny = full({1}, 0x1p-11, DType::f16);
  CHECK(((one + tiny) + tiny).item() == 1);
  CHECK(((tiny + tiny) + one).item() == 1 + 0x1p-10);
  CHECK(square(full({1}, 1e-5, DType::f16)).item() == 0);
  CHECK(square(full({1}, 0.00017, DType::f16)).item() == 0);
  CHECK(square(full({1}, 0.00018, DType::f16)).item() == 0x1p-24);
}

TEST_CASE("exercises of lesson 3: a target that is met, and a weight without effect") {
  Lesson3 met;
  met.backward(tensor({{1, -0.25}}), 3);
  for (const Tensor& p : {met.hidden_weight, met.hidden_bias, met.out_weight, met.out_bias})
    CHECK(abs(p.grad()).sum().item() == 0);
  Lesson3 cut;
  cut.backward(tensor({{1, -0.25}}), 2);
  CHECK(cut.out_weight.grad()[0][1].item() == 0);
  Lesson3 alive;
  alive.backward(tensor({{1, 1.5}}), 2);  // -x1 + x2 is positive
  CHECK(alive.out_weight.grad()[0][1].item() != 0);
}

TEST_CASE("exercises of lesson 4: the scales that save 2^-30, and a quotient in f16") {
  CHECK(in(DType::f16, std::ldexp(1.0, -30 + 5)) == 0);
  CHECK(in(DType::f16, std::ldexp(1.0, -30 + 6)) != 0);
  const Format f16 = format("fp16");
  CHECK(std::ldexp(1.0, -30 + 15) < f16.min_normal());
  CHECK(std::ldexp(1.0, -30 + 16) == f16.min_normal());
  const Tensor scaled = full({1}, std::ldexp(1.0, -30 + 16), DType::f16);
  CHECK((scaled / 0x1p16).item() == 0);
  CHECK((scaled.to(DType::f32) / 0x1p16).item() == std::ldexp(1.0, -30));
}

TEST_CASE("exercises of lesson 4b: the room above the histogram, and bf16 without a scale") {
  manual_seed(1);
  SmallNet net;
  net.to(DType::f64);
  const data::Dataset digits = data::digits();
  const Tensor x = digits.inputs.narrow(0, 0, 256).to(DType::f64);
  const Tensor y = digits.targets.narrow(0, 0, 256).contiguous();
  optim::Adam adam(net.parameters(), {.lr = 1e-2});
  for (int i = 0; i < 1000; ++i) {
    adam.zero_grad();
    cross_entropy(net(x), y).backward();
    adam.step();
  }
  double largest = 0;
  std::int64_t lost = 0;
  for (const Tensor& p : net.parameters())
    for (const double g : p.grad().to_vector<double>()) {
      largest = std::max(largest, std::fabs(g));
      if (g != 0 && in(DType::bf16, g) == 0) ++lost;
    }
  CHECK(std::ilogb(largest) == -17);
  CHECK(std::isfinite(in(DType::f16, largest * 0x1p32)));
  CHECK(std::isinf(in(DType::f16, largest * 0x1p33)));
  CHECK(lost == 0);
}

TEST_CASE("exercises of lesson 5: the smallest updates that change a weight of 1") {
  const auto changes = [](DType dtype, double update) { return (full({1}, 1, dtype) + update).item() != 1; };
  const double more = 1 + 0x1p-10;
  for (const auto& [dtype, down, up] : {std::tuple(DType::f16, 0x1p-12, 0x1p-11), {DType::bf16, 0x1p-9, 0x1p-8}}) {
    CHECK_FALSE(changes(dtype, -down));
    CHECK(changes(dtype, -down * more));
    CHECK_FALSE(changes(dtype, up));
    CHECK(changes(dtype, up * more));
  }
}

TEST_CASE("exercises of lesson 6: the variance by differences, and Adam's beta2 in bf16") {
  const auto variance = [](double a, double b) {
    const Tensor x = tensor({a, b}, options_of(DType::f16));
    return mean(square(x - mean(x))).item();
  };
  CHECK(variance(99, 101) == 1);
  CHECK(variance(299, 301) == 1);
  CHECK(std::isinf(variance(1, 1001)));
  CHECK(in(DType::bf16, 0.999) == 1);
}

TEST_CASE("exercises of lesson 7: an outlier in a block, and the price of a scale") {
  std::vector<double> values(64);
  for (int i = 0; i < 64; ++i) values[i] = i < 32 ? 0.0001 * (i + 1) : 100.0 * (i - 31);
  values[31] = 1;
  const Tensor x = from_data(values, {1, 64});
  const auto zeros_of = [&](const char* name) {
    const Tensor y = fake_quantize(x, {.format = format(name), .scaling = PowerBlocks{.block = 32}});
    return (y.narrow(1, 0, 31) == 0).sum().item();
  };
  CHECK(zeros_of("e4m3fn") == 0);
  CHECK(zeros_of("e2m1fn") == 31);
  const auto price = [](int block) {
    return bits_per_number({.format = format("e2m1fn"), .scaling = PowerBlocks{.block = block}}) - 4;
  };
  CHECK(price(16) == 0.5);
  CHECK(price(8) == 1);
}

TEST_CASE("exercises of lesson 8: another bias, another split of the bits, stochastic gradients") {
  const Format shifted{.exponent_bits = 3, .mantissa_bits = 1, .bias = 6};
  CHECK(shifted.min_positive() == 0.015625);
  CHECK(shifted.max() == 3);
  CHECK(accuracy(everywhere({.format = shifted})) < 25);
  const Format digits_for_range{.exponent_bits = 2, .mantissa_bits = 2, .bias = 1};
  Quantizer blocks{.format = digits_for_range};
  blocks.scaling = PowerBlocks{.block = 32};
  CHECK(accuracy(everywhere(blocks)) > 92);
  amp::Recipe gradients = everywhere({.format = {.exponent_bits = 3, .mantissa_bits = 1, .bias = 3}});
  gradients.quantization->dgrad_dy->rounding = rounding_from_name("stochastic");
  gradients.quantization->wgrad_dy->rounding = rounding_from_name("stochastic");
  const double read = accuracy(gradients);
  CHECK(read > 50);
  CHECK(read < 80);
}

TEST_CASE("exercises of lesson 9: where a running mean stops, and the probabilities that e4m3fn keeps") {
  CHECK(running_mean(DType::bf16, 0.02, 100, 2000) == 88);
  const auto kept = [](int n) { return in("e4m3fn", 1.0 / n) > 0; };
  int n = 1;
  while (kept(n)) ++n;
  CHECK(n - 1 == 1023);
}

TEST_CASE("exercises of lesson 10: a padded vocabulary, and the memory of a large model") {
  const auto full_speed = [](std::int64_t n, DType dtype) {
    Profile profile;
    {
      const ObserverScope scope(profile);
      matmul(ones({16, 16}).to(dtype), ones({16, n}).to(dtype));
    }
    for (const Profile::Entry& e : profile.by_op())
      if (e.name == "matmul") return e.tensor_cores == "yes";
    return false;
  };
  const auto padded = [&](DType dtype) {
    std::int64_t n = 50257;
    while (!full_speed(n, dtype)) ++n;
    return n;
  };
  CHECK(padded(DType::f16) == 50264);
  CHECK(padded(DType::f8e4m3fn) == 50272);
  const auto bytes_each = [](const char* recipe) {
    nn::Linear layer(64, 64, {.bias = false});
    const std::int64_t outside = memory_stats()[Category::gradients].current;
    amp::RecipeRun run(amp::recipe(recipe), layer, optim::AdamOptions{});
    const auto loss = [&] { return square(layer(ones({8, 64}) * 0.01)).mean(); };
    for (int i = 0; i < 20; ++i) run.step(loss);
    run.backward(run.forward(loss));
    const MemoryStats m = memory_stats();
    std::int64_t all = m[Category::gradients].current - outside;
    for (const Category c : {Category::parameters, Category::masters, Category::optimizer}) all += m[c].current;
    return static_cast<double>(all) / (64 * 64);
  };
  CHECK(std::lround(bytes_each("amp-fp16") * 7) == 112);  // 10^9 bytes
  CHECK(std::lround(bytes_each("fp16-pure") * 7) == 56);
}

TEST_CASE("exercises of lesson 11: the cures train") {
  const inspect::Explained scaled = explained(amp::recipe("fp16-static:65536"));
  CHECK_FALSE(scaled.fails);
  CHECK(scaled.findings.empty());
  const inspect::Explained pure = explained(amp::recipe("fp16-pure"));
  REQUIRE_FALSE(pure.findings.empty());
  REQUIRE_FALSE(pure.findings[0].cures.empty());
  CHECK_FALSE(explained(pure.findings[0].cures[0].recipe).fails);
  CHECK_FALSE(explained(amp::recipe("fp16-master")).fails);
}

// A lesson without exercises, an exercise without an answer and a lesson without a test case above are found.
TEST_CASE("each lesson ends with two exercises or more, which have answers, and tests") {
  const auto read = [](const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  const std::string answers = read(source_dir() + "/docs/teaching.md");
  const std::string tests = read(source_dir() + "/tests/docs/exercises_test.cpp");
  int lessons = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/docs/tutorial")) {
    if (entry.path().extension() != ".md" || entry.path().filename() == "README.md") continue;
    ++lessons;
    const std::string page = read(entry.path().string());
    CAPTURE(entry.path().string());
    const std::string number = page.substr(2, page.find(". ") - 2);  // "# 4b. A histogram"
    const std::size_t exercises = page.find("\n## Exercises\n");
    REQUIRE(exercises != std::string::npos);
    CHECK(page.find("\n1. ", exercises) != std::string::npos);
    CHECK(page.find("\n2. ", exercises) != std::string::npos);
    const std::size_t answer = answers.find("**Lesson " + number + ".** (1)");
    REQUIRE(answer != std::string::npos);
    CHECK(answers.find("(2)", answer) < answers.find("\n\n", answer));
    CHECK(tests.find("TEST_CASE(\"exercises of lesson " + number + ":") != std::string::npos);
  }
  CHECK(lessons == 12);
}
