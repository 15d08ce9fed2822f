// Losses, metrics and trainings by name, and the tasks that are no classification.
#include <doctest/doctest.h>
#include <gradual/lab/built_in_tasks.h>
#include <gradual/lab/folder.h>
#include <gradual/lab/objective.h>
#include <gradual/lab/study.h>
#include <gradual/lab/training.h>
#include <gradual/lab/verdict.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "comparison.h"
#include "support/bf16.h"

namespace gradual::test {
namespace {

Tensor numbers(const std::vector<double>& values, const Shape& sizes) {
  return from_data(values, sizes, {.dtype = DType::f32});
}
Tensor classes(const std::vector<std::int64_t>& values, const Shape& sizes) { return from_data(values, sizes); }

// The test loss, metric and samples that batches of two samples give.
lab::Result evaluated(const lab::Loss& loss, const lab::Metric& metric, const Tensor& outputs, const Tensor& targets) {
  const lab::LabData data(data::Split{{outputs, targets, 0, "d"}, {outputs, targets, 0, "d"}});
  const lab::Objective objective = lab::objective_of(data, loss, metric);
  lab::Evaluation evaluation(objective, outputs.size(0), true);
  for (std::int64_t at = 0; at < outputs.size(0); at += 2) {
    const std::int64_t size = std::min<std::int64_t>(2, outputs.size(0) - at);
    const data::Batch batch{outputs.narrow(0, at, size), targets.narrow(0, at, size)};
    evaluation.add({{batch.inputs}, batch.targets}, batch);
  }
  lab::Result r;
  evaluation.write(r);
  return r;
}
double value(const lab::Loss& loss, const lab::Metric& metric, const Tensor& outputs, const Tensor& targets) {
  return lab::metric_of(evaluated(loss, metric, outputs, targets));
}
double mean_score(const lab::Result& r) {
  double score = 0;
  double counted = 0;
  for (std::size_t i = 0; i < r.samples.size(); ++i) {
    score += r.samples.score[i];
    counted += r.samples.counted[i];
  }
  return score / counted;
}

lab::MakeModel mlp_of(std::int64_t inputs, std::int64_t outputs) {
  return [=] { return lab::make_mlp(inputs, outputs); };
}
data::Split few(data::Dataset all, std::int64_t count) {
  all.inputs = all.inputs.narrow(0, 0, count);
  all.targets = all.targets.narrow(0, 0, count);
  return data::split(all, count * 4 / 5, 0);
}
// Losses of a short training of a regression.
std::vector<double> losses(const lab::Options& options, const char* recipe = "fp32") {
  static const data::Split split = few(lab::teacher_and_student(), 100);
  lab::Options o = options;
  o.epochs = 2;
  o.batch = 20;
  return lab::compare(mlp_of(16, 4), split, recipes({recipe}), "", o)[0].curve.loss;
}

}  // namespace

TEST_CASE("metrics of numbers: mse, rmse, mae, r2, and their samples have the metric as mean") {
  const Tensor x = numbers({1, 2, 3, 5}, {4, 1});
  const Tensor y = numbers({1, 3, 3, 2}, {4, 1});
  CHECK(value("mse", "mse", x, y) == doctest::Approx(2.5));
  CHECK(value("mse", "rmse", x, y) == doctest::Approx(std::sqrt(2.5)));
  CHECK(value("l1", {}, x, y) == doctest::Approx(1.0));
  CHECK(value("mse", "r2", x, y) == doctest::Approx(1 - 10 / 2.75));
  CHECK(evaluated("mse", {}, x, y).test_loss == doctest::Approx(2.5));
  CHECK(evaluated("huber", {}, x, y).test_loss == doctest::Approx((0.5 + 2.5) / 4));
  CHECK(std::isnan(evaluated("mse", {}, x, y).test_accuracy));
  for (const char* metric : {"mse", "rmse", "mae", "r2", "loss"}) {
    const lab::Result r = evaluated("mse", metric, x, y);
    CHECK(r.samples.size() == 4);
    CHECK(mean_score(r) == doctest::Approx(r.test_metric).epsilon(1e-6));
  }
}

TEST_CASE("metrics of classes: accuracy, top5, perplexity, bits and f1") {
  const Tensor x = numbers({2, 0, 0, 0, 3, 0, 1, 0, 0, 0, 0, 4}, {4, 3});
  const Tensor y = classes({0, 1, 2, 2}, {4});
  CHECK(value("cross_entropy", {}, x, y) == 0.75);
  const lab::Result perplexity = evaluated("cross_entropy", "perplexity", x, y);
  CHECK(perplexity.test_metric == doctest::Approx(std::exp(perplexity.test_loss)));
  CHECK(perplexity.test_accuracy == 0.75);
  CHECK(mean_score(perplexity) == doctest::Approx(perplexity.test_metric).epsilon(1e-6));
  CHECK(value("cross_entropy", "bits", x, y) == doctest::Approx(perplexity.test_loss / std::log(2.0)));
  // Class 0: one right, one too many. Class 1: right. Class 2: one right, one missed.
  CHECK(value("cross_entropy", "f1", x, y) == doctest::Approx((2.0 / 3 + 1 + 2.0 / 3) / 3));
  const Tensor wide = numbers({6, 5, 4, 3, 2, 1, 6, 5, 4, 3, 2, 1}, {2, 6});
  CHECK(value("cross_entropy", "top5", wide, classes({4, 5}, {2})) == 0.5);
  const Tensor sequence = numbers({1, 0, 0, 1, 0, 1, 1, 0}, {2, 2, 2});
  CHECK(value("cross_entropy", {}, sequence, classes({0, 1, -100, 1}, {2, 2})) == doctest::Approx(2.0 / 3));
}

TEST_CASE("metrics of logits of one class: accuracy and f1 of their signs") {
  const Tensor x = numbers({3, -1, 2, -2}, {4, 1});
  const Tensor y = numbers({1, 1, 0, 0}, {4, 1});
  CHECK(value("bce", {}, x, y) == 0.5);
  CHECK(evaluated("bce", {}, x, y).test_accuracy == 0.5);
  CHECK(value("bce", "f1", x, y) == doctest::Approx(0.5));
  CHECK(evaluated("bce", "f1", x, y).samples.empty());
}

TEST_CASE("targets fit outputs that are flat; other shapes are named") {
  const Tensor x = numbers({1, 2, 3, 4}, {2, 2});
  CHECK(value("mse", {}, x, numbers({1, 2, 3, 4}, {2, 1, 2})) == 0);
  CHECK(value("mse", {}, numbers({1, 2}, {2, 1}), numbers({1, 2}, {2})) == 0);
  CHECK(message([&] {
          value("mse", {}, x, numbers({1, 2, 3}, {3}));
        }) ==
        "loss mse: outputs [2, 2] and targets [2]; allowed are equal shapes, or [N, ..] beside all of it in one row");
  CHECK(message([&] { value("cross_entropy", {}, x, x); }) ==
        "loss cross_entropy compares with class numbers; the targets are f32 [2, 2]");
}

TEST_CASE("a loss and a metric of the user") {
  const lab::Loss cubes("cubes", [](const Tensor& x, const Tensor& y) { return mean(abs(pow(x - y, 3))); });
  const lab::Metric worst({"worst", "", lab::Direction::lower},
                          [](const Tensor& x, const Tensor& y) { return max(abs(x - y)).item(); });
  const Tensor x = numbers({1, 2, 3, 5}, {4, 1});
  const Tensor y = numbers({1, 3, 3, 2}, {4, 1});
  const lab::Result r = evaluated(cubes, worst, x, y);
  CHECK(r.test_loss == doctest::Approx(7.0));
  CHECK(r.test_metric == 3);
  CHECK(r.samples.empty());
  CHECK(evaluated(cubes, {}, x, y).metric.name == "loss");
}

TEST_CASE("the constant answer to classes is the most frequent one, whether the loss is the user's or not") {
  const data::Split digits = data::split(data::digits(), 1437, 0);
  const lab::Loss own = {"twice", [](const Tensor& x, const Tensor& y) { return cross_entropy(x, y) * 2; }};
  const lab::LabData data = {"digits", [digits](std::uint64_t) { return digits; }};
  const double usual = lab::constant_metric(lab::objective_of(data, "cross_entropy", "accuracy"), digits.test);
  CHECK(usual < 0.2);
  CHECK(lab::constant_metric(lab::objective_of(data, own, "accuracy"), digits.test) == usual);
}

TEST_CASE("unknown losses and metrics, and pairs that do not fit, are named") {
  const lab::LabData data(small_digits());
  const auto said = [&](const lab::Loss& loss, const lab::Metric& metric) {
    return message([&] { lab::objective_of(data, loss, metric); });
  };
  CHECK(said("cross-entropy", {}) ==
        "lab: no loss 'cross-entropy'; did you mean 'cross_entropy'?; allowed are cross_entropy, mse, l1, huber, bce, "
        "kl, output");
  CHECK(said({}, "rms") ==
        "lab: no metric 'rms'; did you mean 'rmse'?; allowed are accuracy, top5, loss, perplexity, bits, mse, rmse, "
        "mae, r2, f1");
  CHECK(said("mse", "accuracy") == "lab: metric accuracy does not go with loss mse; it is of cross_entropy and bce");
  CHECK(said("mse", "perplexity").find("it is of cross_entropy, and of a model") != std::string::npos);
  CHECK(said("output", "accuracy").find("where the model returns its loss") != std::string::npos);
  CHECK(said({}, "rmse").find("the targets are classes") != std::string::npos);
  CHECK(said({}, {}).empty());
}

TEST_CASE("the built-in tasks learn, and a coarse format is worse in their metric" * doctest::test_suite("slow")) {
  const auto run = [](const char* spec, const std::vector<std::string>& names, int epochs, int seeds = 1) {
    const lab::LabData data = lab::data_for(spec);
    const data::Dataset train = data.load(0).train;
    const std::string model = !data.model.empty() ? data.model : "gpt";
    return lab::compare(lab::model_for(model, train), data, recipes(names), "", {.epochs = epochs, .seeds = seeds});
  };
  const auto regression = run("regression", {"fp32", "amp-bf16", "mxfp4"}, 6, 2);
  CHECK(regression[0].metric.name == "rmse");
  CHECK(regression[0].test_metric < 0.5);  // targets have the deviation 1
  CHECK(to_string(regression[2].verdict).starts_with("matches fp32 (rmse "));
  CHECK(regression[4].verdict.kind == lab::VerdictKind::worse);
  CHECK(to_string(regression[4].verdict).ends_with("% of fp32's rmse"));
  const std::string table = lab::table(regression, {.wide = false});
  CHECK(table.find("rmse ± the 95% interval; lower is better") != std::string::npos);
  CHECK(lab::table(regression).find(" rmse ") != std::string::npos);
  const auto autoencoder = run("autoencoder", {"fp32"}, 8);
  CHECK(autoencoder[0].test_metric < 0.8 * autoencoder[0].constant_metric);
  const auto brackets = run("brackets", {"fp32"}, 2);
  CHECK(brackets[0].metric.name == "accuracy");
  CHECK(brackets[0].test_samples == 400 * 32);
  CHECK(brackets[0].test_accuracy > 0.5);  // of 8 depths
}

TEST_CASE("a metric, its samples and its verdict are kept in the folder") {
  const Folder folder("metric");
  const data::Split split = few(lab::teacher_and_student(), 200);
  lab::Options o{.epochs = 2, .batch = 32};
  const auto results = lab::compare(mlp_of(16, 4), split, recipes({"fp32", "e4m3"}), folder.path.string(), o);
  const auto read = lab::load_results(folder.path.string());
  REQUIRE(read.size() == 2);
  CHECK(read[1].metric == results[1].metric);
  CHECK(read[1].test_metric == results[1].test_metric);
  CHECK(to_string(read[1].verdict) == to_string(results[1].verdict));
  CHECK(read[1].samples.score == results[1].samples.score);
  CHECK(folder.read("results.json").find("\"better\": \"lower\"") != std::string::npos);
  o.resume = true;
  o.metric = "mae";
  std::vector<std::string> notes;
  o.note = [&](const std::string& text) { notes.push_back(text); };
  lab::compare(mlp_of(16, 4), split, recipes({"fp32"}), folder.path.string(), o);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("metric none there and mae here") != std::string::npos);
}

TEST_CASE("schedules: values, warmup, and errors") {
  const auto factors = [](lab::ScheduleKind kind, std::int64_t warmup, std::vector<std::int64_t> at) {
    const optim::Schedule schedule = lab::schedule_for({.schedule = kind, .warmup = warmup}, 100);
    std::vector<double> values;
    for (const std::int64_t step : at) values.push_back(schedule(step));
    return values;
  };
  using enum lab::ScheduleKind;
  CHECK(factors(constant, 0, {0, 99}) == std::vector<double>{1, 1});
  CHECK(factors(cosine, 0, {0, 50})[1] == doctest::Approx(0.5));
  CHECK(factors(linear, 0, {0, 25, 100}) == std::vector<double>{1, 0.75, 0});
  CHECK(factors(step, 0, {49, 50, 75}) == std::vector<double>{1, 0.1, 0.01});
  const std::vector<double> cycle = factors(one_cycle, 0, {0, 15, 30, 65, 100});
  CHECK(cycle[0] == doctest::Approx(0.04));
  CHECK(cycle[1] == doctest::Approx(0.52));
  CHECK(cycle[2] == doctest::Approx(1));
  CHECK(cycle[3] == doctest::Approx(0.500002));
  CHECK(cycle[4] == doctest::Approx(4e-6));
  CHECK(factors(linear, 20, {0, 10, 20, 60}) == std::vector<double>{0, 0.5, 1, 0.5});
  CHECK(message([] { lab::schedule_for({.warmup = 100}, 100); }) ==
        "lab: warmup is 100 steps, and the training has 100; it must be shorter");
  CHECK(message([] { lab::schedule_from_name("cosin"); }) ==
        "no schedule 'cosin'; did you mean 'cosine'?; allowed are constant, cosine, linear, step, one-cycle");
  for (int i = 0; i < static_cast<int>(count_); ++i) {
    const auto kind = static_cast<lab::ScheduleKind>(i);
    CHECK(lab::schedule_from_name(std::string(to_string(kind))) == kind);
  }
}

TEST_CASE("each option of the training changes it, and is a part of the settings") {
  const std::vector<double> usual = losses({});
  const auto changes = [&](const lab::Training& training, const std::string& named, const char* optimizer = "adamw") {
    CAPTURE(named);
    const lab::Options o{.optimizer = optimizer, .training = training};
    const std::vector<double> changed = losses(o);
    CHECK(changed[0] == usual[0]);
    CHECK(changed != losses({.optimizer = optimizer}));
    CHECK(changed.back() < 1.5 * usual[0]);
    CHECK(lab::settings_of(training) == ", " + named);
  };
  changes({.rates = {.weight_decay = 1}}, "weight_decay 1");
  changes({.rates = {.beta1 = 0.5}}, "beta1 0.5");
  changes({.rates = {.beta2 = 0.9}}, "beta2 0.9");
  changes({.rates = {.eps = 0.1}}, "eps 0.1");
  changes({.rates = {.momentum = 0.5}}, "momentum 0.5", "sgd");
  changes({.schedule = lab::ScheduleKind::linear}, "schedule linear");
  changes({.warmup = 3}, "warmup 3");
  changes({.clip = 0.01}, "clip 0.01", "sgd");
  CHECK(lab::settings_of({}).empty());
  CHECK(message([] { losses({.training = {.rates = {.momentum = 0.5}}}); }) ==
        "lab: momentum of 0.5 is given; optimizer adamw has weight_decay, beta1, beta2, eps");
  CHECK(message([] { losses({.training = {.rates = {.beta1 = 1}}}); }) ==
        "lab: beta1 is 1; it must be at least 0 and below 1");
  CHECK(message([] { losses({.training = {.clip = -1}}); }) == "lab: clip is -1; it must be at least 0 and finite");
  CHECK(message([] { losses({.training = {.accumulate = 0}}); }) == "lab: accumulate is 0; it must be at least 1");
}

TEST_CASE("gradients of parts add up to that of the batch; in half they lose terms") {
  const std::vector<double> whole = losses({});
  const std::vector<double> parts = losses({.training = {.accumulate = 4}});
  REQUIRE(whole.size() == parts.size());
  CHECK(whole != parts);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(parts[i] == doctest::Approx(whole[i]).epsilon(1e-4));
  // Parts of different sizes, and classes of which parts have none.
  const data::Dataset all{numbers({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {5, 2}), classes({0, -100, -100, 1, 1}, {5}), 2,
                          "c"};
  const auto gradient = [&](int count) {
    const auto model = lab::make_mlp(2, 2);
    nn::Module& m = *model;
    Generator generator(1);
    const GeneratorScope scope(generator);
    for (const Tensor& p : m.parameters()) p.detach().copy_(randn(p.sizes()) * 0.1);
    amp::RecipeRun run(amp::recipe("fp32"), m, optim::SGDOptions{.lr = 1});
    const data::Batch batch{all.inputs, all.targets};
    const amp::RunStep step = lab::accumulated_step(
        run, batch, count, [&](const data::Batch& b) { return lab::classification_loss(m(b.inputs), b.targets); });
    std::vector<double> values = m.parameters().back().to_vector<double>();
    values.push_back(step.loss.item());
    return values;
  };
  const std::vector<double> one = gradient(1);
  const std::vector<double> three = gradient(3);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(three[i] == doctest::Approx(one[i]).epsilon(1e-5));
}

TEST_CASE("averaged parameters are evaluated and saved; the training stays as it is") {
  const Folder folder("average");
  const data::Split split = few(lab::teacher_and_student(), 200);
  const auto run = [&](double average, const std::string& recipe) {
    const lab::Options o{.epochs = 2, .batch = 20, .training = {.average = average}, .save = folder.path.string()};
    return lab::compare(mlp_of(16, 4), split, recipes({recipe}), "", o)[0];
  };
  for (const std::string recipe : {"fp32", "fp16-master", "pure:e8m7"}) {
    CAPTURE(recipe);
    const lab::Result plain = run(0, recipe);
    const lab::Result averaged = run(0.9, recipe);
    CHECK(plain.curve.loss == averaged.curve.loss);
    CHECK(plain.test_loss != averaged.test_loss);
  }
  const lab::Result averaged = run(0.9, "fp32");
  const auto model = lab::make_mlp(16, 4);
  model->load_state_dict(load_safetensors((folder.path / "fp32-seed0.safetensors").string()).tensors);
  CHECK(mse_loss((*model)(split.test.inputs), split.test.targets).item() ==
        doctest::Approx(averaged.test_loss).epsilon(1e-6));
}

TEST_CASE("averages in f32 and in the dtype of the weights: the bits of loops over numbers") {
  for (const amp::Averages kept : {amp::Averages::f32, amp::Averages::storage}) {
    CAPTURE(to_string(kept));
    amp::Recipe recipe = amp::recipe("bf16-pure");
    recipe.averages = kept;
    nn::Linear layer(64, 8);
    amp::RecipeRun run(recipe, layer, optim::SGDOptions{.lr = 1});
    lab::Average average(run, 0.75);
    std::vector<float> want = layer.weight.detach().to_vector<float>();
    for (int step = 0; step < 40; ++step) {
      const NoGrad no_grad;
      const Tensor weight = layer.weight.detach();
      weight.add_(full({8, 64}, 0.0625 * (1 + step % 3), DType::bf16));
      average.update();
      const std::vector<float> now = weight.to_vector<float>();
      const double factor = std::min(0.75, (1.0 + step) / (10.0 + step));
      const auto d = static_cast<float>(factor);
      const auto rest = static_cast<float>(1 - factor);
      for (std::size_t i = 0; i < want.size(); ++i) {
        if (kept == amp::Averages::f32) want[i] = want[i] * d + now[i] * rest;
        else want[i] = testing::bf16(testing::bf16(want[i] * d) + now[i] * rest);
      }
      CHECK(average.state_dict().tensor("weight").to_vector<float>() == want);
    }
  }
}

// Large weights that move slowly: what a step adds to the average is below half an ulp of bf16.
TEST_CASE("averages in the dtype of the weights stand still, and the diagnosis says so") {
  const data::Split split = few(lab::teacher_and_student(), 1000);
  const lab::MakeModel large = [] {
    const auto model = lab::make_mlp(16, 4);
    const NoGrad no_grad;
    for (const Tensor& p : model->parameters()) p.detach().mul_(4);
    return model;
  };
  amp::Recipe kept = amp::recipe("bf16-master");
  kept.name = "kept-in-bf16";
  kept.averages = amp::Averages::storage;
  lab::Options o{.epochs = 40, .batch = 20, .lr = 5e-4, .sample_every = 16};
  o.training = {.schedule = lab::ScheduleKind::constant, .average = 0.99};
  const auto results = lab::compare(large, split, {amp::recipe("fp32"), amp::recipe("bf16-master"), kept}, "", o);
  const lab::Result& in_f32 = results[1];
  const lab::Result& in_bf16 = results[2];
  CHECK(in_bf16.curve.loss == in_f32.curve.loss);  // the training does not use the average
  CHECK(in_bf16.test_loss > 1.2 * in_f32.test_loss);
  REQUIRE_FALSE(in_bf16.findings.empty());
  CHECK(in_bf16.findings[0].cause == inspect::Cause::average_vanishes);
  CHECK(in_bf16.findings[0].cure == R"({"averages":"f32"})");
}

TEST_CASE("a stopped run with averages goes on with the same bits") {
  const Folder folder("average-resume");
  const data::Split split = few(lab::teacher_and_student(), 100);
  lab::Options o{.epochs = 3, .batch = 20, .training = {.accumulate = 2, .average = 0.9}};
  amp::Recipe kept = amp::recipe("bf16-master");
  kept.name = "kept-in-bf16";
  kept.averages = amp::Averages::storage;
  for (const amp::Recipe& recipe : {amp::recipe("fp32"), kept}) {
    CAPTURE(recipe.name);
    o.stop = {};
    o.resume = false;
    const auto whole = lab::compare(mlp_of(16, 4), split, {recipe}, "", o);
    int asked = 0;
    o.stop = [&] { return ++asked == 7; };
    const std::string out = (folder.path / recipe.name).string();
    lab::compare(mlp_of(16, 4), split, {recipe}, out, o);
    o.stop = {};
    o.resume = true;
    const auto resumed = lab::compare(mlp_of(16, 4), split, {recipe}, out, o);
    CHECK(resumed[0].curve.loss == whole[0].curve.loss);
    CHECK(resumed[0].test_loss == whole[0].test_loss);
  }
}

TEST_CASE("an optimizer of the user is known by its name") {
  lab::add_optimizer({"plain", 0.1, {"weight_decay"}, [](double lr, const lab::Rates& rates) -> amp::MakeOptimizer {
                        return optim::SGDOptions{.lr = lr, .weight_decay = rates.weight_decay.value_or(0)};
                      }});
  CHECK(losses({.optimizer = "plain"}) ==
        losses({.lr = 0.1, .optimizer = "sgd", .training = {.rates = {.momentum = 0}}}));
  CHECK(message([] {
          losses({.optimizer = "plane"});
        }).starts_with("lab: no optimizer 'plane'; did you mean 'plain'?; allowed are adamw, adam, sgd"));
}

TEST_CASE("a study has the step of the comparison under other losses and trainings; a step beyond it is an error") {
  const data::Split split = few(lab::teacher_and_student(), 100);
  const lab::Training training{.rates = {.weight_decay = 0.1}, .schedule = lab::ScheduleKind::linear, .accumulate = 2};
  const lab::Options o{.epochs = 2, .batch = 20, .lr = 0.01, .optimizer = "sgd", .loss = "l1", .training = training};
  const auto result = lab::compare(mlp_of(16, 4), split, recipes({"fp32"}), "", o)[0];
  lab::StudyOptions s{.step = 5, .batch = 20, .epochs = 2, .lr = 0.01, .optimizer = "sgd", .loss = "l1"};
  s.training = training;
  lab::Study study(mlp_of(16, 4), split, amp::recipe("fp32"), s);
  CHECK(study.step().loss.item() == result.curve.loss[5]);
  s.step = 8;
  CHECK(message([&] { lab::Study(mlp_of(16, 4), split, amp::recipe("fp32"), s); }) ==
        "a study's step is 8; the training has 8 steps (2 epochs of 4), the last is 7");
}

TEST_CASE("data with named fields") {
  const Folder folder("fields");
  fs::create_directories(folder.path);
  const auto file = [&](const char* name) { return (folder.path / name).string(); };
  save_npy(file("a.npy"), zeros({10, 3}, {.dtype = DType::f64}));
  save_npy(file("b.npy"), zeros({10}, {.dtype = DType::i32}));
  save_npy(file("c.npy"), zeros({9}, {.dtype = DType::i32}));
  const lab::LabData data = lab::data_for("npy:x=" + file("a.npy") + ",labels=" + file("b.npy"));
  const data::Split split = data.load(0);
  CHECK(data.loss == "output");
  CHECK(split.train.size() == 8);
  REQUIRE(split.train.fields.size() == 2);
  CHECK(split.train.fields[0].first == "x");
  CHECK(split.train.fields[0].second.dtype() == DType::f32);
  CHECK(split.train.fields[1].second.dtype() == DType::i64);
  CHECK(message([&] { lab::data_for("npy:x=" + file("a.npy") + ",x=" + file("b.npy")); }).find("'x' is given twice") !=
        std::string::npos);
  CHECK(message([&] { lab::data_for("npy:x=" + file("a.npy") + "," + file("b.npy")); }).find("is no NAME=FILE") !=
        std::string::npos);
  CHECK(message([&] { lab::data_for("npy:x=" + file("a.npy") + ",y=" + file("c.npy")); }) ==
        "dataset: inputs [10, 3] and targets [9] need the same first size");
  StateDict state;
  state.set("x", zeros({10, 3}));
  state.set("y", zeros({10, 2}));
  state.set("z", zeros({10, 2}));
  save_safetensors(file("all.safetensors"), state);
  const lab::LabData three = lab::data_for("safetensors:" + file("all.safetensors"));
  CHECK(three.load(0).train.fields.size() == 3);
  CHECK(message([&] { lab::compare(mlp_of(3, 2), three, recipes({"fp32"}), "", {.epochs = 1, .loss = "mse"}); }) ==
        "the model takes one input; the data have the fields x, y, z; a model of torch.export takes several");
}

}  // namespace gradual::test
