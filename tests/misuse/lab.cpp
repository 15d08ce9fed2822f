#include <gradual/lab/lab.h>
#include <gradual/lab/models.h>
#include <gradual/lab/tasks.h>

#include <cmath>
#include <limits>

#include "misuse.h"

using namespace gradual;
using namespace gradual::lab;

namespace test {
namespace {

data::Dataset samples(std::int64_t n) {
  return {.inputs = rand({n, 4}), .targets = zeros({n}, DType::i64), .classes = 2, .name = "zeros"};
}
const MakeModel kModel = [] { return make_mlp(4, 2); };
Options quick(Options o = {}) {
  o.epochs = 1;
  return o;
}
std::vector<Result> train(const MakeModel& model, const data::Split& split, const Options& options = quick(),
                          const std::vector<amp::Recipe>& recipes = {amp::recipe("fp32")}) {
  return compare(model, split, recipes, "", options);
}
std::vector<Result> train(const Options& options) { return train(kModel, {samples(8), samples(4)}, options); }

}  // namespace

Misuses lab_misuses() {
  return {
      {"a null function that makes the model",
       [] {
         train(nullptr, {samples(8), samples(4)});
       },
       "lab: the function that makes the model is null"},
      {"a null model",
       [] {
         train([] { return std::shared_ptr<nn::Module>(); }, {samples(8), samples(4)});
       },
       "lab: the model is null"},
      {"a null model checked",
       [] { check([] { return std::shared_ptr<nn::Module>(); }, {amp::recipe("fp32")}, "", {}); },
       "lab: the model is null"},
      {"a model without parameters",
       [] {
         train([] { return std::make_shared<nn::ReLU>(); }, {samples(8), samples(4)});
       },
       "RecipeRun: the model ReLU has no parameters to train"},
      {"a model for other data",
       [] {
         train([] { return make_mlp(5, 2); }, {samples(8), samples(4)});
       },
       "linear_relu: [8, 4] f32 x [128, 5] f32 x [128] f32: the input's last size must be the weight's"},
      {"a task without test data",
       [] {
         train(kModel, {samples(8), samples(0)});
       },
       "lab: the data 'zeros' have no test samples, which the accuracy is of"},
      {"a task with an undefined test",
       [] {
         train(kModel, {samples(8), data::Dataset()});
       },
       "dataset: it has no inputs or targets; it was not filled"},
      {"a task without training data",
       [] {
         train(kModel, {samples(0), samples(4)});
       },
       "lab: the data 'zeros' have no training samples"},
      {"a task with an undefined training", [] { train(kModel, data::Split()); },
       "dataset: it has no inputs or targets; it was not filled"},
      {"a null function that loads the data",
       [] { compare(kModel, LabData("none", nullptr), {amp::recipe("fp32")}, "", quick()); },
       "LabData: the function that loads the data is null"},
      {"no recipe",
       [] {
         train(kModel, {samples(8), samples(4)}, quick(), {});
       },
       "lab: no recipe was given"},
      {"a recipe twice",
       [] {
         train(kModel, {samples(8), samples(4)}, quick(), {amp::recipe("fp32"), amp::recipe("fp32")});
       },
       "lab: the recipe fp32 is listed twice"},
      {"a recipe that contradicts itself",
       [] {
         train(kModel, {samples(8), samples(4)}, quick(), {amp::Recipe{.name = "a", .dtype = DType::f16}});
       },
       "recipe 'a': mode full computes in f32, not f16; autocast, half and pure take f16 and bf16"},
      {"no epoch", [] { train(Options{.epochs = 0}); }, "lab: epochs is 0; it must be at least 1"},
      {"batches of 0", [] { train(quick({.batch = 0})); }, "lab: batch is 0; it must be at least 1"},
      {"a negative lr", [] { train(quick({.lr = -1})); },
       "lab: lr is -1.000000; it must be positive, or 0 for the usual one"},
      {"lr NaN", [] { train(quick({.lr = NAN})); }, "lab: lr is nan; it must be positive, or 0 for the usual one"},
      {"lr Inf", [] { train(quick({.lr = std::numeric_limits<double>::infinity()})); },
       "optimizer: lr inf is out of range; it must be at least 0 and finite"},
      {"an optimizer of no name", [] { train(quick({.optimizer = "adamax"})); },
       "lab: no optimizer 'adamax'; allowed are adamw, adam and sgd"},
      {"no seed", [] { train(quick({.seeds = 0})); }, "lab: seeds is 0; it must be at least 1"},
      {"no margin", [] { train(quick({.margin = 0})); }, "lab: margin is 0; it must be positive"},
      {"a loss margin below 0", [] { train(quick({.loss_margin = -1})); },
       "lab: loss_margin is -1; it must be positive"},
      {"until less than no seed", [] { train(quick({.until = -1})); }, "lab: until is -1; it must be at least 0"},
      {"sampling every 0 steps", [] { train(quick({.sample_every = 0})); },
       "lab: sample_every is 0; it must be at least 1"},
      {"a GPU that is not there", [] { train(quick({.device = Device::cuda(9)})); }, "no device cuda:9"},
      {"a trace in a folder that is not there", [] { train(quick({.trace = "/no/trace"})); },
       "cannot write \"/no/trace\": no file can be made in its folder: No such file or directory"},
      {"results in a folder that cannot be made",
       [] {
         compare(kModel, data::Split{samples(8), samples(4)}, {amp::recipe("fp32")}, "/proc/none", quick());
       },
       "cannot make the folder /proc/none/checkpoints: No such file or directory"},
      {"data of no name", [] { data_for("imagenet"); },
       "no data 'imagenet'; allowed are digits, addition, mnist:DIR, cifar10:DIR, text:FILE, npy:INPUTS,TARGETS and "
       "safetensors:FILE"},
      {"MNIST that is not there", [] { data_for("mnist:/no").load(0); },
       "mnist: neither \"/no/train-images-idx3-ubyte\" nor \"/no/train-images-idx3-ubyte.gz\" is there"},
      {"a text that is not there", [] { data_for("text:/no").load(0); },
       "cannot read \"/no\": No such file or directory"},
      {"a context for digits", [] { data_for("digits", 8); },
       "data 'digits' have no context option (8 was given); text:FILE has"},
      {"a negative context", [] { data_for("text:/no", -8).load(0); },
       "cannot read \"/no\": No such file or directory"},
      {"a model of no name", [] { model_for("resnet", samples(4)); }, "no model 'resnet'; allowed are mlp, cnn, gpt"},
      {"a cnn for rows", [] { model_for("cnn", samples(4))(); },
       "model cnn reads images [N, C, H, W], the data are [4, 4]"},
      {"results of no JSON", [] { results_from_json("{", "results.json"); },
       "results.json is not a file of the lab: [json.exception.parse_error.101] parse error at line 1,"},
      {"results of another program", [] { results_from_json("{}", "results.json"); },
       "results.json is not a file of the lab: it has no runs"},
      {"results of the wrong type", [] { results_from_json(R"({"runs": [7]})", "results.json"); },
       "results.json: runs[0] is 7; an object is expected"},
  };
}

}  // namespace test
