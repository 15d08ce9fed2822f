// Why did a run fail? The training loop is run again, observed, and put to trials.
#include <gradual/gradual.h>
#include <gradual/inspect/explain.h>

#include <cstdio>
#include <string>

using namespace gradual;

namespace {

struct Net : nn::Module {
  nn::Linear& hidden = register_module("hidden", nn::Linear(64, 48));
  nn::Linear& last = register_module("last", nn::Linear(48, 10));
  Tensor forward(const Tensor& x) override { return last(relu(hidden(flatten(x, 1)))); }
};

// The loop of lesson 8, with two changes: the recipe is c.recipe(), and the step is c.step().
void train(inspect::Collector& c, double lr) {
  const data::Dataset digits = data::digits();
  Net net;
  amp::RecipeRun run(c.recipe(), net, optim::AdamOptions{.lr = lr});
  for (int step = 0; step < 40; ++step) {
    const std::int64_t first = 64 * (step % 20);
    const Tensor x = digits.inputs.narrow(0, first, 64).contiguous();
    const Tensor y = digits.targets.narrow(0, first, 64).contiguous();
    if (!c.step(run, [&] { return cross_entropy(net(x), y); })) return;
  }
}

// A line of at most 100 columns for each piece.
void print(const std::string& text) {
  const std::size_t end = text.size() > 100 ? text.rfind(' ', 100) : text.size();
  std::printf("%s\n", text.substr(0, end).c_str());
  if (end < text.size()) print("    " + text.substr(end + 1));
}

void why(const char* recipe, double lr) {
  manual_seed(0);
  const auto loop = [&](inspect::Collector& c) { train(c, lr); };
  const inspect::Explained e = inspect::explain(amp::recipe(recipe), loop, {.trials = 2});
  std::printf("%s, learning rate %g: %s\n", recipe, lr, e.fails ? "fails" : "does not fail");
  if (e.fp32_fails) std::printf("  fp32 fails too\n");
  if (e.step >= 0) std::printf("  its loss is not finite from step %ld on\n", static_cast<long>(e.step));
  if (e.findings.empty()) return;
  const inspect::Finding& first = e.findings[0];
  print("  " + first.sentence);
  for (const inspect::Cure& cure : first.cures) print("  cure: " + cure.remedy);
}

}  // namespace

int main() {
  for (const char* recipe : {"amp-bf16", "fp16-pure", "fp16-static:1048576"}) {
    why(recipe, 2e-3);
    std::printf("\n");
  }
  why("amp-bf16", 3);
}
