// Sampling with a cache, against the probabilities that the whole sequence gives.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/generate.h>
#include <gradual/lab/twin.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

using namespace gradual;

namespace {

constexpr lab::GptOptions kOptions{.vocabulary = 11, .context = 12, .width = 32, .heads = 4, .layers = 2};
constexpr std::int64_t kPrompt = 4;
constexpr std::int64_t kDrawn = 8;

// Each block has 8 sums in a row, and the model two more; a sum of at most 4 * width terms is within (terms + 1) u of
// its magnitudes, near 1, in any order, and both ways of computing have such an error. The head's weights are enlarged
// by kSpread.
constexpr double kSpread = 20;
double bound(DType dtype) {
  const double u = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
  return 2 * (8.0 * kOptions.layers + 2) * (4.0 * kOptions.width + 1) * u * kSpread;
}

std::unique_ptr<lab::Gpt> gpt(DType dtype = DType::f32) {
  manual_seed(1);
  auto model = std::make_unique<lab::Gpt>(kOptions);
  model->tokens.weight.detach().mul_(50);
  model->head.weight.detach().mul_(kSpread);
  model->to(dtype);
  model->eval();
  return model;
}

Tensor prompts(std::int64_t sequences) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < sequences * kPrompt; ++i) tokens.push_back((7 * i + i / kPrompt) % kOptions.vocabulary);
  return from_data(tokens, {sequences, kPrompt});
}

// Of the drawn tokens, from a forward of all tokens at once: f64 [B, drawn].
Tensor at_once(lab::Gpt& model, const Tensor& tokens) {
  const NoGrad off;
  const std::int64_t read = tokens.size(1) - 1;
  const Tensor logs = log_softmax(model(tokens.narrow(1, 0, read)).to(DType::f64), -1);
  const Tensor next = unsqueeze(tokens.narrow(1, 1, read), -1);
  return gather(logs, 2, next).squeeze(-1).narrow(1, kPrompt - 1, read - kPrompt + 1);
}

double furthest(const Tensor& a, const Tensor& b) { return abs(a - b).max().item(); }

}  // namespace

TEST_CASE("generation: the cache's log-probabilities are those of the whole sequence, up to the order of sums") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const auto model = gpt(dtype);
    Generator generator(3);
    const lab::Generated drawn = lab::generate(*model, prompts(16), {.count = kDrawn}, generator);
    CHECK(drawn.tokens.sizes() == Shape{16, kPrompt + kDrawn});
    CHECK(drawn.log_probabilities.sizes() == Shape{16, kDrawn});
    CHECK(furthest(drawn.tokens.narrow(1, 0, kPrompt).to(DType::f32), prompts(16).to(DType::f32)) == 0);
    const Tensor whole = at_once(*model, drawn.tokens);
    CHECK(whole.min().item() < -1);  // the draws are no mere certainties
    CHECK(furthest(drawn.log_probabilities, whole) <= bound(dtype));
  }
}

TEST_CASE("generation: fewer tokens are the first of more, and a seed gives the same tokens again") {
  const auto model = gpt();
  const auto of = [&](std::int64_t count, std::uint64_t seed) {
    Generator generator(seed);
    return lab::generate(*model, prompts(8), {.count = count}, generator);
  };
  const lab::Generated more = of(kDrawn, 3);
  const lab::Generated fewer = of(3, 3);
  CHECK(fewer.tokens.to_vector<std::int64_t>() ==
        more.tokens.narrow(1, 0, kPrompt + 3).contiguous().to_vector<std::int64_t>());
  CHECK(furthest(fewer.log_probabilities, more.log_probabilities.narrow(1, 0, 3)) == 0);
  CHECK(of(kDrawn, 3).tokens.to_vector<std::int64_t>() == more.tokens.to_vector<std::int64_t>());
  CHECK(of(kDrawn, 4).tokens.to_vector<std::int64_t>() != more.tokens.to_vector<std::int64_t>());
}

TEST_CASE("generation: draws are as frequent as their probabilities, which the temperature sharpens") {
  const auto model = gpt();
  const std::int64_t sequences = 4000;
  const Tensor one = prompts(1);
  const Tensor same = cat(std::vector<Tensor>(static_cast<std::size_t>(sequences), one), 0);
  for (const double temperature : {0.5, 1.0, 2.0}) {
    Generator generator(5);
    const lab::Generated drawn = lab::generate(*model, same, {.temperature = temperature}, generator);
    const NoGrad off;
    const Tensor p = softmax((*model)(one).select(1, -1).to(DType::f64) / temperature, -1);
    std::vector<double> counts(static_cast<std::size_t>(kOptions.vocabulary));
    const Tensor last = drawn.tokens.select(1, -1).contiguous();
    for (const std::int64_t token : last.to_vector<std::int64_t>()) counts[static_cast<std::size_t>(token)] += 1;
    double chi_square = 0;
    const std::vector<double> expected = p.reshape({-1}).to_vector<double>();
    for (std::size_t c = 0; c < counts.size(); ++c) {
      const double mean = static_cast<double>(sequences) * expected[c];
      chi_square += (counts[c] - mean) * (counts[c] - mean) / mean;
    }
    CHECK(chi_square < 29.6);  // of 10 degrees of freedom, exceeded once in 1000
    const auto first = static_cast<std::size_t>(drawn.tokens.select(1, -1).to_vector<std::int64_t>()[0]);
    CHECK(std::exp(drawn.log_probabilities.to_vector<double>()[0]) == doctest::Approx(expected[first]).epsilon(1e-4));
  }
  const lab::Generated greedy = lab::generate(*model, one, {.temperature = 0});
  const NoGrad off;
  CHECK(greedy.tokens.select(1, -1).to_vector<std::int64_t>()[0] ==
        argmax((*model)(one).select(1, -1), -1).to_vector<std::int64_t>()[0]);
}

TEST_CASE("generation: a temperature may be as small as a number can be") {
  const auto model = gpt();
  const lab::Generated drawn = lab::generate(*model, prompts(4), {.count = 2, .temperature = 1e-310});
  const lab::Generated greedy = lab::generate(*model, prompts(4), {.count = 2, .temperature = 0});
  CHECK(drawn.tokens.to_vector<std::int64_t>() == greedy.tokens.to_vector<std::int64_t>());
  CHECK(drawn.log_probabilities.max().item() == 0);
  CHECK(drawn.log_probabilities.min().item() == 0);
}

TEST_CASE("generation: an 8-bit cache moves log-probabilities, and fewer bits move them more") {
  const auto model = gpt();
  const auto moved_by = [&](const char* format) {
    Generator generator(3);
    const lab::GenerateOptions how{.count = kDrawn, .cache = nn::cache_quantizer(format)};
    const lab::Generated drawn = lab::generate(*model, prompts(16), how, generator);
    return furthest(drawn.log_probabilities, at_once(*model, drawn.tokens));
  };
  CHECK(moved_by("fp32") <= bound(DType::f32));
  const double by_fp16 = moved_by("fp16");
  const double by_e4m3 = moved_by("e4m3fn");
  CHECK(by_e4m3 > 10 * by_fp16);
  CHECK(by_e4m3 > bound(DType::f32));
  CHECK(moved_by("e2m1") > by_e4m3);
}

TEST_CASE("generation: a recipe computes the model, and its rounding shows") {
  const auto model = gpt();
  const amp::RecipeRun run(amp::recipe("amp-bf16"), *model, optim::SGDOptions{.lr = 0.1});
  Generator generator(3);
  const lab::Generated drawn = lab::generate(run, *model, prompts(16), {.count = kDrawn}, generator);
  const double moved = furthest(drawn.log_probabilities, at_once(*model, drawn.tokens));
  CHECK(moved > bound(DType::f32));
  CHECK(moved < 1);
}

TEST_CASE("generation: wrong prompts, counts and caches are Errors") {
  const auto model = gpt();
  const auto fails = [&](const Tensor& given, const lab::GenerateOptions& how, const char* says) {
    CHECK_THROWS_WITH_AS(lab::generate(*model, given, how), doctest::Contains(says), Error);
  };
  fails(zeros({2, 3}), {}, "prompts f32 [2, 3]");
  fails(prompts(2).reshape({-1}), {}, "prompts i64 [8]");
  fails(prompts(2).narrow(1, 0, 0), {}, "at least one token");
  fails(prompts(2), {.count = 0}, "0 tokens to draw");
  fails(prompts(2), {.temperature = -1}, "a temperature of -1");
  fails(prompts(2), {.count = 10}, "10 tokens after prompts of 4 need a context of 13, the model's is 12");
  CHECK(lab::generate(*model, prompts(2), {.count = 9}).tokens.size(1) == 13);

  const NoGrad off;
  nn::KeyValueCaches caches = model->empty_caches();
  (*model)(cat({prompts(2), prompts(2)}, 1), caches);
  CHECK_THROWS_WITH_AS((*model)(cat({prompts(2), prompts(2)}, 1), caches),
                       doctest::Contains("a sequence of 16 tokens, the context is 12"), Error);
  CHECK_THROWS_WITH_AS((*model)(prompts(3), caches), doctest::Contains("KeyValueCache: keys"), Error);
  caches.pop_back();
  CHECK_THROWS_WITH_AS((*model)(prompts(2), caches), doctest::Contains("1 caches; allowed are 2"), Error);
  model->head.weight.detach().fill_(INFINITY);
  fails(prompts(2), {}, "the model's logits are not finite");
}

TEST_CASE("twins: the format of the sampler's cache is a difference of its own") {
  const lab::LabData data = lab::data_for("addition");
  const lab::MakeModel make = lab::model_for("gpt", data.load(0).train);
  lab::TwinOptions options{.study = {.step = 3, .epochs = 1}, .samples = 64, .layers = false};
  const auto kl = [&](const char* format) {
    options.cache = nn::cache_quantizer(format);
    return lab::twin(make, data, amp::recipe("fp32"), amp::recipe("fp32"), options).all.mean_kl();
  };
  const double by_fp32 = kl("fp32");
  const double by_e4m3 = kl("e4m3fn");
  CHECK(std::abs(by_fp32) < 1e-12);
  CHECK(by_e4m3 > 1e-9);
  CHECK(kl("e2m1") > by_e4m3);
  options.cache = nn::cache_quantizer("e4m3fn");
  const lab::Twins named = lab::twin(make, data, amp::recipe("fp32"), amp::recipe("fp32"), options);
  CHECK(to_string(named).find("the sampler's cache: e4m3fn") != std::string::npos);
  const lab::LabData digits = lab::data_for("digits");
  CHECK_THROWS_WITH_AS(
      lab::twin([] { return lab::make_mlp(64, 10); }, digits, amp::recipe("fp32"), amp::recipe("fp32"), options),
      doctest::Contains("has no cache of keys and values"), Error);
}
