// Your own model in the precision lab.
//
// Write a Module and pass lab::compare a function that makes one. The lab trains it once under each recipe, on the same
// batches in the same order, and the table shows the effect of each precision. With a folder, it writes results.json,
// curves.csv and report.html (open it in a browser) there.
#include <gradual/data/digits.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>

#include "example.h"

using namespace gradual;

namespace {

// A residual network: each block adds to its input. Replace it by yours.
struct Block : nn::Module {
  nn::LayerNorm& norm = register_module("norm", nn::LayerNorm(96));
  nn::Linear& up = register_module("up", nn::Linear(96, 192));
  nn::Linear& down = register_module("down", nn::Linear(192, 96));
  Tensor forward(const Tensor& x) override { return x + down(gelu(up(norm(x)))); }
};

struct Net : nn::Module {
  nn::Linear& stem = register_module("stem", nn::Linear(64, 96));
  Block& block1 = register_module("block1", Block());
  Block& block2 = register_module("block2", Block());
  nn::Linear& head = register_module("head", nn::Linear(96, 10));
  Tensor forward(const Tensor& x) override { return head(block2(block1(stem(flatten(x, 1))))); }
};

constexpr const char* kUsage =
    "Your own model in the precision lab.\n  your_model [--epochs N] [--recipe NAME, in addition to fp32] [--out "
    "DIR]\n";

void body(example::Arguments& arguments) {
  lab::Options options{.model_name = "residual", .epochs = static_cast<int>(arguments.number("--epochs", 8))};
  const std::string only = arguments.text("--recipe", "");
  const std::string out = arguments.text("--out", "");
  arguments.done();
  options.device = example::device();
  options.progress = [](const lab::Progress& p) {
    if (p.finished)
      std::printf("%-12s done: loss %.4f, test accuracy %.4f\n", p.recipe.name.c_str(), p.loss, p.accuracy);
  };

  std::vector<amp::Recipe> recipes{amp::recipe("fp32")};
  if (!only.empty() && amp::recipe(only).name != "fp32") recipes.push_back(amp::recipe(only));
  if (only.empty())
    for (const char* name : {"amp-bf16", "fp16-master", "fp16-pure"}) recipes.push_back(amp::recipe(name));

  const data::Split digits = data::split(data::digits(), 1437);
  const std::vector<lab::Result> results =
      lab::compare([] { return std::make_shared<Net>(); }, digits, recipes, out, options);
  std::printf("\n%s\n", lab::table(results, {.wide = false}).c_str());
  example::claim(results[0].status == lab::Status::ok && results[0].test_accuracy > 0.8,
                 "in fp32 the model learns the digits");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
