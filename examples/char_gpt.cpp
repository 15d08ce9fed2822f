// A small transformer, trained in mixed precision: it learns to add, or to write.
//
// The model is a small GPT-2: token and position embeddings, causal pre-norm blocks, a norm, a linear head. Without
// arguments it learns sums of two-digit numbers as text ("12+34=640": the answer's digits are reversed, so that each
// carry is known when it is needed) and is tested on sums that it never saw. With --text it learns the characters of a
// file and then writes text. The recipe decides the precision; the loop is the same for all.
#include <gradual/data/data_loader.h>
#include <gradual/data/text.h>
#include <gradual/gradual.h>

#include <algorithm>

#include "example.h"

using namespace gradual;

namespace {

struct Gpt : nn::Module {
  Gpt(std::int64_t vocabulary, std::int64_t context, std::int64_t width, std::int64_t layers)
      : tokens(register_module("tokens", nn::Embedding(vocabulary, width))),
        positions(register_module("positions", nn::Embedding(context, width))),
        norm(register_module("norm", nn::LayerNorm(width))),
        head(register_module("head", nn::Linear(width, vocabulary, {.bias = false}))) {
    for (std::int64_t i = 0; i < layers; ++i) blocks.push_back(nn::TransformerBlock(width, 4, {.causal = true}));
    nn::init::normal_(tokens.weight, 0, 0.02);
    nn::init::normal_(positions.weight, 0, 0.02);
  }
  Tensor forward(const Tensor& x) override {  // i64 [B, T] -> logits [B, T, vocabulary]
    const Tensor place = arange(0, static_cast<double>(x.size(1)), 1, {.dtype = DType::i64, .device = x.device()});
    return head(norm(blocks(tokens(x) + positions(place))));
  }
  nn::Embedding& tokens;
  nn::Embedding& positions;
  nn::Sequential& blocks = register_module("blocks", nn::Sequential());
  nn::LayerNorm& norm;
  nn::Linear& head;
};

// Cross entropy over all positions; targets of -100 (the question) are ignored.
Tensor loss_of(Gpt& model, const data::Batch& b) {
  const Tensor logits = model(b.inputs.to(example::device()));
  return cross_entropy(flatten(logits, 0, 1), flatten(b.targets.to(example::device()), 0, 1));
}

// Appends `count` characters to `text`: the most likely ones, or with a temperature drawn by probability.
std::string complete(amp::RecipeRun& run, const data::Vocabulary& vocabulary, std::string text, int count,
                     std::int64_t context, double temperature, Generator& generator) {
  for (int i = 0; i < count; ++i) {
    const auto length = std::min<std::size_t>(text.size(), static_cast<std::size_t>(context));
    const Tensor window = unsqueeze(vocabulary.encode(text.substr(text.size() - length)), 0).to(example::device());
    const Tensor logits =
        run.evaluate([&] { return run.model()(window); }).select(1, -1).to(DType::f32).to(Device::cpu());
    Tensor scores = logits;
    if (temperature > 0) {  // the largest of logits plus Gumbel noise is a draw from their softmax
      const Tensor u = clamp(rand(logits.sizes(), {}, generator), 1e-7, 1 - 1e-7);
      scores = logits / temperature - log(-log(u));
    }
    text += vocabulary.decode(argmax(scores, 1));
  }
  return text;
}

struct Task {
  data::Vocabulary vocabulary;
  data::Dataset train, test;
  std::int64_t context;
};

void train(amp::RecipeRun& run, Gpt& model, const Task& task, std::int64_t batch, std::int64_t steps) {
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
double ask(amp::RecipeRun& run, const Task& task, const data::Addition& addition, std::int64_t questions) {
  Generator unused;
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < questions; ++i) {
    const std::string problem = task.vocabulary.decode(task.test.inputs.select(0, i)).substr(0, 6);
    const std::int64_t a = std::stoll(problem.substr(0, 2));
    const std::int64_t b = std::stoll(problem.substr(3, 2));
    const std::string answer = complete(run, task.vocabulary, problem, 3, task.context, 0, unused).substr(6);
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
  Gpt model(task.vocabulary.size(), task.context, width, layers);
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
    const double share = ask(run, task, addition, 200);
    if (steps >= 600 && width >= 64 && layers >= 2)
      example::claim(share > 0.8, "it learned to add: more than 80 percent are right");
  } else {
    Generator generator(seed);
    const std::string start = task.vocabulary.decode(task.test.inputs.select(0, 0));
    std::printf("%s\n", complete(run, task.vocabulary, start, 400, task.context, 0.8, generator).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
