// Why does a recipe fail? Four tools on a model of thirty lines.
//
// The model learns digits. In pure FP16 it diverges at once. The ledger shows each op of the first step with the
// numbers that it made; the diagnosis names the cause and an edit of the recipe that cures it. In FP8 the model learns,
// with another loss than in FP32: the shadow runs the step once more in f64, and shows whose error moves the loss. None
// of the tools changes a bit of what it looks at.
#include <gradual/gradual.h>
#include <gradual/inspect/diagnosis.h>
#include <gradual/inspect/shadow.h>
#include <gradual/lab/narrow.h>

#include <bit>
#include <cmath>
#include <string>

#include "example.h"

using namespace gradual;

namespace {

// Lines of at most 80 columns; with --wide as long as they are.
bool& wide() {
  static bool chosen = false;
  return chosen;
}
void print(const std::string& text) { std::printf("%s", (wide() ? text : lab::narrowed(text)).c_str()); }

struct Net : nn::Module {
  nn::Linear& fc1 = register_module("fc1", nn::Linear(64, 48));
  nn::Linear& fc2 = register_module("fc2", nn::Linear(48, 48));
  nn::Linear& head = register_module("head", nn::Linear(48, 10));
  Tensor forward(const Tensor& x) override { return head(relu(fc2(relu(fc1(x.flatten(1)))))); }
};

// A model in training. Two of the same recipe have the same bits.
struct Training {
  data::Dataset digits = data::digits();
  Net net;
  amp::RecipeRun run;
  explicit Training(const amp::Recipe& recipe)
      : net((default_generator().manual_seed(0), Net())), run(recipe, on(net), optim::AdamWOptions{.lr = 2e-3}) {}
  static Net& on(Net& net) {
    net.to(example::device());
    return net;
  }
  double step(std::int64_t k) {
    const auto batch = [&](const Tensor& t) {
      return t.narrow(0, 64 * (k % 20), 64).contiguous().to(example::device());
    };
    const Tensor x = batch(digits.inputs);
    const Tensor y = batch(digits.targets);
    return run.step([&] { return cross_entropy(net(x), y); }).loss.item();
  }
  double train(std::int64_t from, std::int64_t to) {
    double loss = 0;
    for (std::int64_t k = from; k < to; ++k) loss = step(k);
    return loss;
  }
  std::vector<std::uint64_t> bits() const {
    std::vector<std::uint64_t> all;
    for (const Tensor& p : net.parameters())
      for (const double v : p.to_vector<double>()) all.push_back(std::bit_cast<std::uint64_t>(v));
    return all;
  }
};

void diagnose_fp16() {
  const amp::Recipe recipe = amp::recipe("fp16-pure");
  print("1. The ledger of the first step in " + recipe.name + ": one row per op, with what its results hold\n\n");
  Training training(recipe);
  inspect::Evidence evidence{.recipe = &recipe, .steps = 1};
  evidence.bad = inspect::ObservedStep{.step = 0, .ledger = inspect::Ledger(training.net), .nonfinite = true};
  {
    const ObserverScope scope(evidence.bad->ledger);
    training.step(0);
  }
  print(evidence.bad->ledger.to_string() + "\n");
  const double later = training.train(1, 40);
  std::printf("  loss after 40 steps: %g\n", std::isnan(later) ? std::fabs(later) : later);
  const inspect::LedgerRow* first = evidence.bad->ledger.first_nonfinite();
  example::claim(!std::isfinite(later), "it diverges");
  example::claim(first && first->op == "adam_step_", "the first row with NaN or Inf is an update of Adam");

  std::printf("\n2. The diagnosis of that evidence\n\n");
  const std::vector<inspect::Finding> findings = inspect::diagnose(evidence);
  example::claim(!findings.empty() && findings[0].cause == inspect::Cause::adam_eps,
                 "the cause is Adam's eps, which is 0 in f16");
  if (findings.empty() || findings[0].cures.empty()) return;
  const inspect::Cure& cure = findings[0].cures[0];
  print("  " + findings[0].sentence + "\n  cure: " + cure.remedy +
        "\n  as an edit of the recipe: " + inspect::edit(recipe, cure.recipe) + "\n");
  const double cured = Training(cure.recipe).train(0, 200);
  std::printf("  loss of the edited recipe after 200 steps: %.3f\n", cured);
  example::claim(cured < 0.5, "the edited recipe learns");
}

void shadow_of_fp8() {
  const amp::Recipe recipe = amp::recipe("fp8-current");
  std::printf("\n3. The shadow of a step in %s: every op once more in f64\n\n", recipe.name.c_str());
  Training alone(recipe);
  Training seen(recipe);
  alone.train(0, 40);
  seen.train(0, 40);
  inspect::Shadow shadow(seen.net, &seen.run.optimizer(), {.attribution = true});
  {
    const ObserverScope scope(shadow);
    seen.step(40);
  }
  alone.step(40);
  print(shadow.to_string() + "\n");
  example::claim(alone.bits() == seen.bits(), "the step has the same bits with the shadow and without");

  print("\n4. Whose error moves the loss\n\n" + to_string(shadow.attribution()));
  const inspect::Attribution a = shadow.attribution();
  example::claim(std::fabs(a.explained - a.difference()) < 0.05 * std::fabs(a.difference()),
                 "the ops' shares explain the difference to 5%");
  double by_operands = 0;
  for (const inspect::ShadowRow* row : a.rows)
    for (const inspect::ErrorPart& part : row->parts)
      if (part.source == inspect::ErrorSource::x || part.source == inspect::ErrorSource::w) by_operands += part.share;
  example::claim(std::fabs(by_operands - a.explained) < 0.01 * std::fabs(a.explained),
                 "nearly all of it is the rounding of operands, not of sums or results");
}

void body(example::Arguments& arguments) {
  wide() = arguments.flag("--wide");
  arguments.done();
  diagnose_fp16();
  shadow_of_fp8();
}

}  // namespace

int main(int argc, char** argv) {
  return example::run(argc, argv, body,
                      "Ledger, diagnosis, shadow and attribution on a small model.\n  why [arguments]\n"
                      "  --wide, lines as long as they are, not of 80 columns\n");
}
