// Models people have, under precision recipes: a residual network, a vision transformer, an LSTM, a variational
// autoencoder and a small diffusion model learn the digits. Each is a header of its own next to this file.
#include <gradual/data/data_loader.h>
#include <gradual/data/digits.h>
#include <gradual/gradual.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../example.h"
#include "resnet20.h"
#include "row_reader.h"
#include "unet.h"
#include "vae.h"
#include "vit.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "A model under precision recipes, on the digits.\n"
    "  models [resnet20|vit|lstm|vae|unet, all of them]\n"
    "  options: --recipes A,B,..  --epochs N (8)\n";

constexpr std::int64_t kLatent = 16;

// A model and what it minimises. The loss of a test batch draws the same noise for every recipe.
struct Training {
  std::shared_ptr<nn::Module> model;
  std::function<Tensor(const data::Batch&)> loss;
  bool classifies = false;
};

template <class M> Training classifier(std::shared_ptr<M> model) {
  return {model, [model](const data::Batch& b) { return cross_entropy((*model)(b.inputs), b.targets); }, true};
}

Training make(const std::string& name) {
  if (name == "resnet20") return classifier(std::make_shared<models::ResNet20>(1, 10));
  if (name == "vit") return classifier(std::make_shared<models::Vit>());
  if (name == "lstm") return classifier(std::make_shared<models::RowReader>(8, 64, 10));
  const auto noise = [](const Tensor& like) { return randn(like.sizes()).to(like.device()); };
  if (name == "vae") {
    const auto model = std::make_shared<models::Vae>(64, 128, kLatent);
    return {model, [=](const data::Batch& b) {
              const Tensor pixels = clamp(flatten(b.inputs, 1) * 0.3760 + 0.3053, 0, 1);
              return model->loss(pixels, noise(pixels.narrow(1, 0, kLatent)));
            }};
  }
  if (name == "unet") {
    const auto model = std::make_shared<models::UNet>(1);
    return {model, [=](const data::Batch& b) {
              const Tensor t = (rand(b.size()) * models::UNet::kSteps).to(DType::i64).to(b.inputs.device());
              return model->loss(b.inputs, noise(b.inputs), t);
            }};
  }
  throw example::UsageError("no model '" + name + "'; there are resnet20, vit, lstm, vae and unet");
}

struct Outcome {
  // of the test images; accuracy in percent
  double loss = 0;
  double accuracy = 0;
};

Outcome train(const std::string& name, const data::Split& digits, const std::string& recipe, long epochs) {
  default_generator() = Generator(0);
  const Training t = make(name);
  t.model->to(example::device());
  amp::RecipeRun run(amp::recipe(recipe), *t.model, optim::AdamWOptions{.lr = 2e-3});
  data::DataLoader loader(digits.train, {.batch = 64, .shuffle = true, .drop_last = true, .device = example::device()});
  for (long epoch = 0; epoch < epochs; ++epoch)
    for (const data::Batch& b : loader) run.step([&] { return t.loss(b); });
  t.model->eval();
  default_generator() = Generator(1);
  const data::Batch test{digits.test.inputs.to(example::device()), digits.test.targets.to(example::device())};
  Outcome out;
  out.loss = run.evaluate([&] { return t.loss(test); }).item();
  if (t.classifies) {
    const Tensor logits = run.evaluate([&] { return (*t.model)(test.inputs); });
    out.accuracy = 100 * eq(argmax(logits, 1), test.targets).to(DType::f32).mean().item();
  }
  return out;
}

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> out(1);
  for (const char c : list)
    if (c == ',') out.emplace_back();
    else out.back() += c;
  return out;
}

void body(example::Arguments& arguments) {
  const long epochs = arguments.number("--epochs", 8);
  const std::vector<std::string> recipes =
      words(arguments.text("--recipes", "fp32,amp-bf16,amp-fp16,fp8-current,mxfp8"));
  const std::string only = arguments.word("");
  arguments.done();
  const data::Split digits = data::split(data::digits(), 1437);
  for (const std::string& name : only.empty() ? words("resnet20,vit,lstm,vae,unet") : words(only)) {
    Outcome first;
    std::printf("%s, %ld parameters\n", name.c_str(), [&] {
      long count = 0;
      for (const Tensor& p : make(name).model->parameters()) count += static_cast<long>(p.numel());
      return count;
    }());
    for (const std::string& recipe : recipes) {
      const Outcome out = train(name, digits, recipe, epochs);
      if (recipe == recipes.front()) first = out;
      std::printf("  %-12s test loss %8.4f", recipe.c_str(), out.loss);
      if (out.accuracy > 0) std::printf(", accuracy %5.1f%%", out.accuracy);
      std::printf("\n");
      // The 95% interval of a difference between two accuracies on the test images; 0 for losses alone.
      const double share = first.accuracy / 100;
      const double images = static_cast<double>(digits.test.size());
      const double interval = 196 * std::sqrt(2 * share * (1 - share) / images);
      if (recipe != recipes.front())
        example::claim(out.accuracy >= first.accuracy - interval && out.loss < first.loss * 1.1 + 0.15,
                       (recipe + " learns as " + recipes.front() + " does").c_str());
    }
  }
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
