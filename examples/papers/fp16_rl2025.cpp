// Defeating the Training-Inference Mismatch via FP16 (Qi et al. 2025, arXiv 2510.26788).
//
// In reinforcement learning one engine samples and another one trains: the weights are the same, the rounding is not.
// f16 has 8 times bf16's precision: log-probabilities differ 8 times less, and the KL divergence is 64 times smaller.
// Here a small GPT is rewarded for right sums of two numbers. The sampler computes all in 16 bits with a cache of keys
// and values, the learner under autocast. A cache in 4 bits shows a mismatch far beyond bf16's.
#include <gradual/data/text.h>
#include <gradual/lab/generate.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "FP16 in reinforcement learning 2025: f16 removes most of the mismatch of sampler and learner in bf16.\n"
    "  fp16_rl2025\n  options: --seeds N  --steps N\n";

constexpr long kProblems = 32;  // of a step
constexpr long kDraws = 8;      // of each problem
constexpr long kPrompt = 4;     // tokens, "3+4="
constexpr long kAnswer = 2;     // "70": the last digit first
constexpr double kTruncation = 2;
constexpr lab::GptOptions kShape{.vocabulary = 12, .context = 5, .width = 32};

struct Way {
  const char* name;
  const char* learner;
  const char* sampler;
  const char* cache = nullptr;  // the format of the sampler's keys and values; null: as they are
  bool weights = false;         // importance weights p_learner / p_sampler of a token, at most kTruncation
};
enum : std::size_t { kBf16 = 1, kF16 = 3 };  // of kWays
constexpr Way kWays[] = {{"f32", "fp32", "fp32"},
                         {"bf16", "amp-bf16", "bf16-pure"},
                         {"bf16, weights", "amp-bf16", "bf16-pure", nullptr, true},
                         {"f16", "amp-fp16", "fp16-pure"},
                         {"bf16, cache e2m1", "amp-bf16", "bf16-pure", "e2m1"},
                         {"the same, weights", "amp-bf16", "bf16-pure", "e2m1", true}};

// Over the seeds; w is p_learner / p_sampler of a token that the sampler drew.
struct Outcome {
  std::vector<double> kl = {};  // KL(sampler || learner) of a token for each seed: the mean of w - 1 - log w
  double largest = 0;           // |log w|
  double effective = 0;         // draws of whole answers that count, of one: the mean over steps and seeds
  double first = 0;             // reward, the share of right answers, of the first tenth of the steps
  double last = 0;              // of the last tenth
  long collapsed = 0;           // runs whose last tenth has less than half of the best tenth's reward
};

// A model that is right now and then.
StateDict pretrained(const data::Dataset& all, std::uint64_t seed) {
  default_generator() = Generator(seed);
  lab::Gpt model(kShape);
  amp::RecipeRun run(amp::recipe("fp32"), model, optim::AdamOptions{.lr = 3e-3});
  for (int step = 0; step < 60; ++step)
    run.step([&] { return cross_entropy(flatten(model(all.inputs), 0, 1), flatten(all.targets, 0, 1)); });
  return run.master_state_dict();
}

// Of the answers, [B, kAnswer].
Tensor log_probabilities(lab::Gpt& model, const Tensor& tokens) {
  const Tensor logits = model(tokens.narrow(1, 0, kShape.context)).narrow(1, kPrompt - 1, kAnswer);
  return gather(log_softmax(logits, -1), 2, unsqueeze(tokens.narrow(1, kPrompt, kAnswer), -1)).squeeze(-1);
}

void note_rewards(Outcome& out, const std::vector<double>& rewards, double share) {
  const auto steps = static_cast<std::int64_t>(rewards.size());
  const Tensor tenths = mean(from_data(rewards, {10, steps / 10}), {1});
  out.first += share * tenths.select(0, 0).item();
  out.last += share * tenths.select(0, 9).item();
  out.collapsed += tenths.select(0, 9).item() < tenths.max().item() / 2;
}

// Policy gradient; the baseline is the mean reward of a problem's draws. `share` of the seed in means over seeds.
void train(Outcome& out, const Way& way, const data::Dataset& all, std::uint64_t seed, long steps, double share) {
  const StateDict start = pretrained(all, seed);
  default_generator() = Generator(seed);
  lab::Gpt learner(kShape);
  lab::Gpt sampler(kShape);
  learner.load_state_dict(start);
  sampler.eval();
  amp::RecipeRun training(amp::recipe(way.learner), learner, optim::AdamOptions{.lr = 1e-3}, {.clip_norm = 1});
  amp::RecipeRun sampling(amp::recipe(way.sampler), sampler, optim::SGDOptions{});
  lab::GenerateOptions how{.count = kAnswer};
  if (way.cache) how.cache = nn::cache_quantizer(way.cache);
  double kl = 0;
  std::vector<double> rewards;
  for (long step = 0; step < steps; ++step) {
    const Tensor chosen = (rand({kProblems, 1}) * static_cast<double>(all.size())).to(DType::i64);
    const data::Batch b = data::take(all, chosen.expand({kProblems, kDraws}).contiguous().to_vector<std::int64_t>());
    sampler.load_state_dict(training.master_state_dict());
    const lab::Generated drawn = lab::generate(sampling, sampler, b.inputs.narrow(1, 0, kPrompt), how);
    const Tensor right = eq(drawn.tokens.narrow(1, kPrompt, kAnswer), b.targets.narrow(1, kPrompt - 1, kAnswer));
    const Tensor reward = gradual::all(right, {1}).to(DType::f32).reshape({kProblems, kDraws});
    const Tensor advantage = (reward - mean(reward, {1}, true)).reshape({-1, 1});
    Tensor log_weight;
    training.step([&] {
      const Tensor logs = log_probabilities(learner, drawn.tokens);
      log_weight = logs.detach().to(DType::f64) - drawn.log_probabilities;
      if (!way.weights) return -(advantage * logs).mean();
      return -(advantage * clamp(exp(log_weight), 0, kTruncation).to(DType::f32) * logs).mean();
    });
    kl += (exp(log_weight) - 1.0 - log_weight).mean().item();
    out.largest = std::max(out.largest, absmax(log_weight));
    const Tensor of_answer = exp(sum(log_weight, {1}));
    out.effective += share * (square(of_answer.mean()) / square(of_answer).mean()).item() / static_cast<double>(steps);
    rewards.push_back(reward.mean().item());
  }
  out.kl.push_back(kl / static_cast<double>(steps));
  note_rewards(out, rewards, share);
}

void body(example::Arguments& arguments) {
  const long seeds = arguments.number("--seeds", 5);
  const long steps = arguments.number("--steps", 150);
  arguments.done();
  if (steps % 10 != 0) throw example::UsageError("--steps takes a multiple of 10");
  set_num_threads(1);  // ops this small take microseconds
  const data::Dataset all = data::addition(1).problems;
  std::printf("%ld seeds, %ld steps of %ld answers\n", seeds, steps, kProblems * kDraws);
  std::printf("sampler and learner  KL of a token  largest |log w|  effective draws  reward: first, last  collapsed\n");
  Outcome of[std::size(kWays)];
  for (std::size_t way = 0; way < std::size(kWays); ++way) {
    Outcome& o = of[way];
    for (long seed = 1; seed <= seeds; ++seed)
      train(o, kWays[way], all, static_cast<std::uint64_t>(seed), steps, 1.0 / static_cast<double>(seeds));
    std::printf("%-20s %14.1e %16.3f %15.3f%% %14.3f %5.3f %8ld/%ld\n", kWays[way].name,
                std::accumulate(o.kl.begin(), o.kl.end(), 0.0) / static_cast<double>(seeds), o.largest,
                100 * o.effective, o.first, o.last, o.collapsed, seeds);
  }
  std::printf(
      "\nThe paper (abstract): bf16's rounding breaks the consistency of training and inference, f16 restores it, and\n"
      "training is stable. Language models, one of 14 billion parameters; here 26,400, and answers of 2 tokens.\n\n");
  const auto thirtieth = [](double f16, double bf16) { return f16 < bf16 / 30; };
  example::claim(std::equal(of[kF16].kl.begin(), of[kF16].kl.end(), of[kBf16].kl.begin(), thirtieth),
                 "f16 has less than a thirtieth of bf16's divergence, with every seed");
  example::claim(of[kBf16].collapsed + of[kF16].collapsed == 0, "at this size neither of them collapses");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
