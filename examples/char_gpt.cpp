// A small transformer, trained in mixed precision: it learns to add, or to write.
//
// The model is a small GPT-2 (lab/gpt.h): token and position embeddings, causal pre-norm blocks, a norm, a linear head.
// Without arguments it learns sums of two-digit numbers as text ("12+34=640": the answer's digits are reversed, so that
// each carry is known when it is needed) and is tested on sums that it never saw. With --text it learns the characters
// of a file and then writes text. The recipe decides the precision; the loop is the same for all.
#include <gradual/data/data_loader.h>
#include <gradual/data/text.h>
#include <gradual/gradual.h>
#include <gradual/lab/generate.h>

#include <algorithm>

#include "example.h"

using namespace gradual;

namespace {

// Cross entropy over all positions; targets of -100 (the question) are ignored.
Tensor loss_of(lab::Gpt& model, const data::Batch& b) {
  const Tensor logits = model(b.inputs.to(example::device()));
  return cross_entropy(flatten(logits, 0, 1), flatten(b.targets.to(example::device()), 0, 1));
}

// Appends `count` characters to `text`, a token at a time with caches of keys and values (lab/generate.h). The model
// knows positions up to its context only: when that is full, the last half of it is read again as a new prompt.
std::string continued(const amp::RecipeRun& run, lab::Gpt& model, const data::Vocabulary& vocabulary, std::string text,
                      std::int64_t count, Generator& generator) {
  const std::int64_t context = model.options().context;
  while (count > 0) {
    const std::int64_t known = std::min(std::ssize(text), std::max<std::int64_t>(1, context / 2));
    const std::string last = text.substr(text.size() - static_cast<std::size_t>(known));
    const lab::GenerateOptions options{.count = std::min(count, context - known + 1), .temperature = 0.8};
    const Tensor prompt = unsqueeze(vocabulary.encode(last), 0).to(example::device());
    const Tensor tokens = lab::generate(run, model, prompt, options, generator).tokens;
    text += vocabulary.decode(tokens.narrow(1, known, options.count).to(Device::cpu()));
    count -= options.count;
  }
  return text;
}

struct Task {
  data::Vocabulary vocabulary;
  data::Dataset train, test;
  std::int64_t context;
};

void train(amp::RecipeRun& run, lab::Gpt& model, const Task& task, std::int64_t batch, std::int64_t steps) {
  data::DataLoader loader(task.train, {.batch = batch, .shuffle = true, .drop_last = true});
  optim::Scheduler schedule(
      run.optimizer(), optim::chain(optim::linear_warmup(steps / 20 + 1), steps / 20 + 1, optim::cosine(steps, 0.05)));
  double first = 0;
  double last = 0;
  double sum = 0;
  std::int64_t counted = 0;
  std::int64_t skipped = 0;
  const std::int64_t every = std::max<std::int64_t>(1, steps / 20);
  data::Batch b;
  for (std::int64_t step = 1; step <= steps; ++step) {
    while (!loader.next(b)) {}
    const amp::RunStep result = run.step([&] { return loss_of(model, b); });
    schedule.step();
    skipped += result.result.skipped();
    sum += result.loss.item();
    ++counted;
    if (step % every != 0 && step != steps) continue;
    last = sum / static_cast<double>(counted);
    if (first == 0) first = last;
    std::printf("step %5lld  loss %.4f  scale %g  skipped %lld\n", static_cast<long long>(step), last, run.loss_scale(),
                static_cast<long long>(skipped));
    sum = 0;
    counted = 0;
  }
  std::printf("\n");
  if (last != first) example::claim(last < first, "the loss fell");
}

// Tests sums that were left out of training; returns the share of right answers.
double ask(const amp::RecipeRun& run, lab::Gpt& model, const Task& task, const data::Addition& addition,
           std::int64_t questions) {
  constexpr std::int64_t kPrompt = 6;  // "12+34="
  constexpr std::int64_t kAnswer = 3;
  const Tensor prompts = task.test.inputs.narrow(0, 0, questions).narrow(1, 0, kPrompt);
  const lab::GenerateOptions most_likely{.count = kAnswer, .temperature = 0};
  const Tensor tokens = lab::generate(run, model, prompts.to(example::device()), most_likely).tokens.to(Device::cpu());
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < questions; ++i) {
    const std::string line = task.vocabulary.decode(tokens.select(0, i));
    const std::string problem = line.substr(0, kPrompt);
    const std::string answer = line.substr(kPrompt);
    const std::int64_t a = std::stoll(problem.substr(0, 2));
    const std::int64_t b = std::stoll(problem.substr(3, 2));
    const bool ok = answer == addition.answer(a, b);
    right += ok;
    if (i < 8) {
      const std::string forwards(answer.rbegin(), answer.rend());
      std::printf("  %s%s   %s\n", problem.c_str(), forwards.c_str(), ok ? "right" : "wrong");
    }
  }
  std::printf("  %lld of %lld sums that it never saw are right\n", static_cast<long long>(right),
              static_cast<long long>(questions));
  return static_cast<double>(right) / static_cast<double>(questions);
}

constexpr const char* kUsage =
    "A small transformer, trained in mixed precision: it learns to add, or to write.\n"
    "  char_gpt                                  # addition under amp-bf16, ten seconds or so\n"
    "  char_gpt --recipe fp16-master             # or fp32, amp-fp16, bf16-pure, ..: compare the losses\n"
    "  char_gpt --text FILE --steps 2000         # any text of some length\n"
    "  options: --recipe NAME  --text FILE  --steps N  --width N  --layers N  --batch N  --context N (of --text)\n"
    "           --seed N  --threads N (1)\n";

void body(example::Arguments& arguments) {
  const std::string file = arguments.text("--text", "");
  const std::string recipe = arguments.text("--recipe", "amp-bf16");
  const std::int64_t steps = arguments.number("--steps", 600);
  const std::int64_t most = arguments.number("--batch", file.empty() ? 128 : 32);
  const std::int64_t width = arguments.number("--width", 64);
  const std::int64_t layers = arguments.number("--layers", 2);
  if (file.empty() && arguments.has("--context")) throw example::UsageError("--context is for --text");
  const std::int64_t context = arguments.number("--context", 64);
  const auto seed = static_cast<std::uint64_t>(arguments.number("--seed", 1));
  // Ops this small take microseconds: a second thread gains little, and on a busy machine it delays the step.
  set_num_threads(static_cast<int>(arguments.number("--threads", 1)));
  arguments.done();
  if (width % 4 != 0) throw std::runtime_error("--width must be a multiple of 4, the heads of attention");

  const data::Addition addition = data::addition(2);
  const auto load = [&]() -> Task {
    if (file.empty()) {
      const data::Split split = data::split(addition.problems, 9000);
      return {addition.vocabulary, split.train, split.test, split.train.inputs.size(1)};
    }
    const data::TextDataset text = data::read_text(file, {.context = context});
    return {text.vocabulary, text.train, text.test, context};
  };
  const Task task = load();
  const std::int64_t batch = std::min(most, task.train.size());

  manual_seed(seed);
  lab::Gpt model({.vocabulary = task.vocabulary.size(), .context = task.context, .width = width, .layers = layers});
  model.to(example::device());
  amp::RecipeRun run(amp::recipe(recipe), model,
                     [](auto groups, auto& precision) {
                       return std::make_unique<optim::AdamW>(std::move(groups),
                                                             optim::AdamWOptions{.lr = 3e-3, .precision = precision});
                     },
                     {.clip_norm = 1});
  std::printf("%s under %s, %lld steps of %lld sequences of %lld characters\n\n",
              file.empty() ? "two-digit addition" : file.c_str(), recipe.c_str(), static_cast<long long>(steps),
              static_cast<long long>(batch), static_cast<long long>(task.context));
  train(run, model, task, batch, steps);

  model.eval();
  if (file.empty()) {
    const double share = ask(run, model, task, addition, 200);
    if (steps >= 600 && width >= 64 && layers >= 2)
      example::claim(share > 0.8, "it learned to add: more than 80 percent are right");
  } else {
    Generator generator(seed);
    const std::string start = task.vocabulary.decode(task.test.inputs.select(0, 0));
    std::printf("%s\n", continued(run, model, task.vocabulary, start, 400, generator).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
