// The lab: its results and files, and its errors for bad input.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

namespace {

void check_has_keys(const nlohmann::json& run) {
  for (const char* key : {"recipe",
                          "model",
                          "data",
                          "seed",
                          "epochs",
                          "steps",
                          "skipped_steps",
                          "final_scale",
                          "train_loss",
                          "test_loss",
                          "test_accuracy",
                          "ms_per_step",
                          "peak_bytes",
                          "underflow_percent",
                          "overflow_percent",
                          "zero_percent",
                          "status",
                          "casts",
                          "batch",
                          "lr",
                          "optimizer",
                          "definition",
                          "bytes_sent"})
    CHECK_MESSAGE(run.contains(key), key);
  for (const char* key : {"role", "layer", "kind", "elements", "underflow_percent", "overflow_percent", "nan"})
    CHECK_MESSAGE(run["casts"][0].contains(key), key);
  for (const char* key : {"parameters", "masters", "gradients", "optimizer", "activations", "total"})
    CHECK_MESSAGE(run["peak_bytes"].contains(key), key);
}

// Rows of casts are in the order of the model; what is outside of layers comes last.
void check_order_of_casts(const nlohmann::json& run) {
  std::vector<std::string> layers;
  for (const auto& cast : run["casts"])
    if (layers.empty() || layers.back() != cast["layer"].get<std::string>()) layers.push_back(cast["layer"]);
  std::vector<std::string> ordered = layers;
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) {
    return b.empty() ? !a.empty() : !a.empty() && std::stoi(a) < std::stoi(b);
  });
  CHECK(layers == ordered);
  CHECK(layers.size() > 2);
  for (const auto& cast : run["casts"])
    if (cast["layer"] == "1") CHECK(cast["kind"] == "Linear");
}

}  // namespace

TEST_CASE("compare trains under each recipe and seed, and writes its files") {
  const Folder folder("files");
  lab::Options o{.model_name = "mlp", .epochs = 3, .batch = 32, .seeds = 2};
  const auto results = lab::compare(mlp, small_digits(), recipes({"fp32", "amp-fp16"}), folder.path.string(), o);
  REQUIRE(results.size() == 4);
  CHECK(results[1].recipe == "fp32");
  CHECK(results[1].seed == 1);
  for (const lab::Result& r : results) {
    CAPTURE(r.recipe);
    CHECK(r.status == lab::Status::ok);
    CHECK(r.steps == 15);
    CHECK(r.epochs == 3);
    CHECK(r.curve.loss.size() == 15);
    CHECK(r.train_loss < r.curve.loss[0]);
    CHECK(r.test_accuracy > 0.3);  // chance is 0.1
    CHECK(r.peak_total > r.peak_bytes[static_cast<std::size_t>(Category::parameters)]);
    // 64 * 128 + 128 * 128 + 128 * 10 weights and their biases, 4 bytes each.
    CHECK(r.peak_bytes[static_cast<std::size_t>(Category::parameters)] == 4 * (64 * 128 + 128 * 128 + 1280 + 266));
    CHECK(std::isnan(r.curve.underflow_percent[1]));
    CHECK_FALSE(std::isnan(r.curve.underflow_percent[8]));
  }
  const auto json = nlohmann::json::parse(folder.read("results.json"));
  REQUIRE(json["runs"].size() == 4);
  check_has_keys(json["runs"][0]);
  CHECK(json["runs"][0]["batch"] == 32);
  CHECK(json["runs"][0]["lr"] == 2e-3);  // the usual one, though none was given
  CHECK(json["runs"][0]["optimizer"] == "adamw");
  CHECK(json["runs"][2]["definition"] == nlohmann::json::parse(amp::to_json(amp::recipe("amp-fp16"))));
  check_order_of_casts(json["runs"][0]);
  CHECK(json.contains("machine"));
  CHECK(json.contains("version"));
  const std::string csv = folder.read("curves.csv");
  CHECK(csv.starts_with("recipe,seed,step,loss,scale,skipped,underflow_percent,phase\n"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 1 + 4 * 15);
  const std::string html = folder.read("report.html");
  CHECK(html.find("@DATA@") == std::string::npos);
  CHECK(html.find("amp-fp16") != std::string::npos);
  CHECK(html.find("http://") == html.find("http://www.w3.org/2000/svg"));  // opens offline
}

TEST_CASE("one run of a comparison tells what each format would lose of its numbers") {
  const Folder folder("what-if");
  const lab::Options o{.model_name = "mlp", .epochs = 3, .batch = 32, .seeds = 2};
  const auto results = lab::compare(mlp, small_digits(), recipes({"amp-fp16", "fp32"}), folder.path.string(), o);
  for (std::size_t i = 0; i < results.size(); ++i) CHECK(results[i].what_if.empty() == (i != 2));  // fp32, seed 0
  const auto told = nlohmann::json::parse(results[2].what_if);
  CHECK(told["step"] == 8);  // every eighth of 15 is sampled
  REQUIRE(told["roles"].size() == 3);
  // 64-128-128-10: weights and biases; the loss, three linears and two ReLUs hand on errors
  const std::int64_t parameters = 64 * 128 + 128 * 128 + 1280 + 266;
  CHECK(told["roles"][0]["elements"] == parameters);
  CHECK(told["roles"][2]["elements"] == parameters);
  CHECK(told["roles"][1]["elements"] == 32 * (10 + 2 * 128));
  for (const auto& role : told["roles"]) {
    CHECK(static_cast<std::ptrdiff_t>(role["formats"].size()) ==
          std::ranges::count(named_formats(), true, &NamedFormat::common) - 1);
    CHECK(role["formats"][0]["unscaled"]["sqnr_db"].is_null());  // f32 is exact
    CHECK(role["formats"][2]["unscaled"]["sqnr_db"] > 40);       // bf16 keeps 8 bits
  }
  CHECK(folder.read("report.html").find("\"what_if\":{\"step\":8") != std::string::npos);
  // it is looked at without being in the way (the loader's batches ahead, in workspace, depend on time)
  for (const Category c : {Category::gradients, Category::activations, Category::optimizer})
    CHECK(results[2].peak_bytes[static_cast<std::size_t>(c)] == results[3].peak_bytes[static_cast<std::size_t>(c)]);
  CHECK(lab::results_from_json(lab::results_json(results, true), "x")[2].what_if == results[2].what_if);
  // without fp32 it is the first recipe's, its gradients without their loss scale
  const auto half = lab::compare(mlp, small_digits(), recipes({"amp-fp16"}), "", {.epochs = 1, .batch = 32});
  CHECK(nlohmann::json::parse(half[0].what_if)["roles"][1]["amax"] < 1);
}

TEST_CASE("to look at a run more often changes none of its numbers") {
  const lab::LabData data = small_digits();
  const lab::MakeModel cnn = lab::model_for("cnn", data.load(0).train);
  const auto losses = [&](int every) {
    std::vector<std::vector<double>> curves;
    for (const lab::Result& r : lab::compare(cnn, data, recipes({"amp-bf16", "amp-fp16", "bf16-pure"}), "",
                                             {.epochs = 1, .batch = 32, .sample_every = every}))
      curves.push_back(r.curve.loss);
    return curves;
  };
  CHECK(losses(1) == losses(1000));
}

TEST_CASE("a recipe that rounds no gradient has a dash for what it lost, and a tiny share is no zero") {
  amp::Recipe only_x{.name = "only-x", .quantization = amp::Quantization{}};
  only_x.quantization->forward_x = Quantizer{.format = format("e4m3fn")};
  const auto results = lab::compare(mlp, small_digits(), {only_x}, "", {.epochs = 1, .batch = 32});
  CHECK(std::isnan(results[0].underflow_percent));
  CHECK(std::isnan(results[0].overflow_percent));
  CHECK(std::isnan(results[0].curve.underflow_percent[0]));
  const std::string table = lab::table(results);
  const std::size_t peak = table.find("KiB");  // what is lost stands behind it
  REQUIRE(peak != std::string::npos);
  CHECK(table.find('%', peak) == std::string::npos);
  CHECK(nlohmann::json::parse(lab::results_json(results, false))["runs"][0]["underflow_percent"].is_null());
  lab::Result tiny = results[0];
  lab::Result none = results[0];
  tiny.underflow_percent = 1e-4;
  none.underflow_percent = 0;
  CHECK(lab::table({tiny}).find(" <0.001%") != std::string::npos);
  CHECK(lab::table({none}).find(" 0.000%") != std::string::npos);
}

TEST_CASE("a format that loses all gradients shows them as zero, though few underflow") {
  const auto results = lab::compare(mlp, small_digits(), recipes({"e3m3", "fp32"}), "", {.epochs = 1, .batch = 64});
  // the last layer's errors, at most 1 / 64 and so below half of 2^-5, become zero, and with them all before
  CHECK(results[0].underflow_percent < 20);
  CHECK(results[0].zero_percent > 99);
  CHECK(results[1].zero_percent > results[1].underflow_percent);
  CHECK(results[1].zero_percent < 90);
}

TEST_CASE("a recipe that diverges is a result") {
  lab::Options o{.epochs = 20, .batch = 32};
  const auto results = lab::compare(mlp, small_digits(), recipes({"fp16-pure"}), "", o);
  REQUIRE(results.size() == 1);
  CHECK(results[0].status == lab::Status::diverged);
  CHECK(results[0].steps < 100);
  CHECK(lab::table(results).find("diverged") != std::string::npos);
}

TEST_CASE("a run whose steps were all skipped says so") {
  std::vector<double> losses;
  const lab::Options o{.epochs = 1, .batch = 32, .progress = [&](const lab::Progress& p) { losses.push_back(p.loss); }};
  const auto results = lab::compare(mlp, small_digits(), recipes({"fp16-static:1e9", "fp32"}), "", o);
  CHECK(results[0].skipped_steps == results[0].steps);
  CHECK(results[0].status == lab::Status::all_skipped);
  CHECK(results[1].status == lab::Status::ok);
  const std::string table = lab::table(results);
  CHECK(table.find("mostly skipped") != std::string::npos);
  CHECK(table.find(" 2^29.9 ") != std::string::npos);  // as the progress shows it
  CHECK(table.find("%*") != std::string::npos);
  CHECK(table.find("\n* gradients stay in f32") != std::string::npos);
  CHECK(lab::table({results[0]}).find('*') == std::string::npos);
  // a finished run's progress shows its last epoch's mean, not the last batch's loss
  CHECK(losses.back() == results[1].train_loss);
  CHECK(losses[losses.size() - 2] == results[1].curve.loss.back());
}

TEST_CASE("the digits' networks under 8 bits come within a point of fp32; under 4 bits they train" *
          doctest::test_suite("long")) {
  const ThreadsScope scope(1);  // the same bits; many small ops cost more in waiting than they gain
  const auto digits = lab::data_for("digits");
  const auto accuracy = [&](bool cnn, const std::string& recipe) {
    const lab::MakeModel make = [cnn] { return cnn ? lab::make_cnn(1, 8, 8, 10) : lab::make_mlp(64, 10); };
    double sum = 0;
    for (const lab::Result& r : lab::compare(make, digits, recipes({recipe}), "", {.seeds = 3})) {
      CHECK(r.status == lab::Status::ok);
      sum += 100 * r.test_accuracy / 3;
    }
    return sum;
  };
  for (const bool cnn : {false, true}) {
    CAPTURE(cnn);
    const double fp32 = accuracy(cnn, "fp32");
    for (const char* recipe : {"fp8-delayed", "fp8-current", "mxfp8"}) {
      CAPTURE(recipe);
      CHECK(std::abs(accuracy(cnn, recipe) - fp32) <= 1.0);
    }
  }
  for (const char* recipe : {"mxfp4", "nvfp4"}) CHECK(accuracy(false, recipe) > 50);  // chance is 10
}

TEST_CASE("results survive JSON, NaN included") {
  lab::Result r{.recipe = "a", .model = "m", .data = "d"};
  r.status = lab::Status::diverged;
  r.test_loss = NAN;
  r.batch = 3;
  r.definition = "{\"name\":\"a\"}";
  r.curve = {{0, 1}, {1.5, NAN}, {1, 1}, {false, true}, {NAN, 2}};
  const auto back = lab::results_from_json(lab::results_json({r}, true), "file");
  REQUIRE(back.size() == 1);
  CHECK(std::isnan(back[0].test_loss));
  CHECK(back[0].batch == 3);
  CHECK(back[0].definition == r.definition);
  CHECK(back[0].curve.loss[0] == 1.5);
  CHECK(std::isnan(back[0].curve.loss[1]));
  CHECK(back[0].curve.skipped[1]);
  lab::Result overflown = r;
  overflown.curve.loss = {-INFINITY, INFINITY};
  overflown.test_loss = INFINITY;
  const auto again = lab::results_from_json(lab::results_json({overflown}, true), "file").at(0);
  CHECK(again.curve.loss == overflown.curve.loss);
  CHECK(again.test_loss == INFINITY);
  CHECK(std::isnan(again.train_loss) == std::isnan(r.train_loss));
  CHECK(message([] { lab::results_from_json("{}", "x.json"); }).starts_with("x.json is not a file of the lab"));
  nlohmann::json longer = nlohmann::json::parse(lab::results_json({r}, true));
  longer["runs"][0]["curve"]["step"].push_back(2);
  CHECK(message([&] { lab::results_from_json(longer.dump(), "x.json"); }) ==
        "x.json: runs[0].curve.loss has 2 values; its steps are 3");
}

TEST_CASE("no name of a recipe ends the report's data, or begins a comment in it") {
  lab::Result r;
  r.recipe = "<!-- <script></script>";
  const std::string html = lab::report_html({r});
  CHECK(html.find("<!-- <script>") == std::string::npos);
  CHECK(html.find("\\u003c!-- \\u003cscript>\\u003c/script>") != std::string::npos);
}

TEST_CASE("a path that is no UTF-8 is written all the same") {
  const lab::Result r{.recipe = "a", .model = "m", .data = "text:b\xff.txt"};
  CHECK(lab::results_from_json(lab::results_json({r}, true), "file").at(0).data == "text:b\xef\xbf\xbd.txt");
  CHECK(lab::report_html({r}).find("text:b\xef\xbf\xbd.txt") != std::string::npos);
}

TEST_CASE("results of earlier versions are read") {
  lab::Result r{.recipe = "a", .model = "m", .data = "d", .batch = 3};
  r.histograms = {{.role = amp::Role::error, .formats = {{.name = "fp16", .zero_below_exponent = -25}}}};
  r.casts = {{.role = amp::Role::error, .layer = "0", .kind = "Linear"}};
  nlohmann::json old = nlohmann::json::parse(lab::results_json({r}, true));
  nlohmann::json& run = old["runs"][0];
  for (const char* key : {"batch", "lr", "optimizer", "definition", "device", "what_if", "updates"}) run.erase(key);
  run["casts"][0].erase("kind");
  nlohmann::json& histogram = run["histograms"][0];
  histogram["format"] = histogram["formats"][0];
  histogram.erase("formats");
  histogram["format"].erase("zero_below_exponent");
  histogram["format"]["min_subnormal_exponent"] = -24;
  const auto back = lab::results_from_json(old.dump(), "file");
  CHECK(back[0].batch == 0);  // which the report leaves out
  CHECK(back[0].casts[0].layer == "0");
  CHECK(back[0].histograms[0].formats.at(0).zero_below_exponent == -25);
}

TEST_CASE("names of recipes are quoted in curves.csv where they need it") {
  lab::Result r;
  r.recipe = "a, \"b\"";
  r.curve = {{0}, {1.5}, {1}, {false}, {NAN}};
  CHECK(lab::curves_csv({r}).ends_with("\n\"a, \"\"b\"\"\",0,0,1.5,1,0,,0\n"));
}

TEST_CASE("what the report shades as lost is what was lost") {
  const lab::Options o{.epochs = 1, .batch = 32, .sample_every = 1};
  for (const lab::Result& r : lab::compare(mlp, small_digits(), recipes({"fp32", "mxfp4", "e4m2"}), "", o)) {
    CAPTURE(r.recipe);
    const lab::Histogram& errors = r.histograms[2];
    double underflow = 0;
    double shaded = 0;
    double next = 0;
    for (const lab::CastRow& c : r.casts)
      if (c.role == amp::Role::error) underflow += c.underflow_percent / 100 * static_cast<double>(c.elements);
    for (std::size_t i = 0; i < errors.counts.size(); ++i) {
      const int above = static_cast<int>(i) + errors.first_exponent - errors.formats.at(0).zero_below_exponent;
      if (above < 0) shaded += static_cast<double>(errors.counts[i]);
      if (above == 0) next = static_cast<double>(errors.counts[i]);
    }
    CHECK(shaded > 0);
    CHECK(shaded < underflow + 0.5);
    CHECK(underflow < shaded + next);  // of the next ones only ties, which operands of few bits have
    if (r.recipe == "fp32") CHECK(shaded == doctest::Approx(underflow));
  }
}

TEST_CASE("casts are counted by role and layer: as if in f16, in the stores of half models, by the quantisers") {
  const lab::Options o{.epochs = 1, .batch = 32, .sample_every = 1};
  const auto results =
      lab::compare(mlp, small_digits(), recipes({"fp32", "fp16-master", "amp-fp16", "fp8-current", "mxfp8"}), "", o);
  const auto row = [](const lab::Result& r, amp::Role role, const std::string& layer) {
    for (const lab::CastRow& c : r.casts)
      if (c.role == role && c.layer == layer) return c;
    return lab::CastRow{};
  };
  // of flatten, linear, relu, linear, relu, linear
  const std::string first = "1";
  const std::string last = "5";
  constexpr std::int64_t kSteps = 5;
  constexpr std::int64_t kBatch = 32;
  for (const lab::Result& r : results) {
    CAPTURE(r.recipe);
    const bool quantised = r.recipe == "fp8-current" || r.recipe == "mxfp8";
    // In f16 the input is cast and the result stored; in blocks the operand is quantised anew for wgrad.
    const std::int64_t per_sample = r.recipe.find("fp16") != std::string::npos ? 64 + 128
                                    : r.recipe == "mxfp8"                      ? 2 * 64
                                                                               : 64;
    CHECK(row(r, amp::Role::activation, first).elements == kSteps * kBatch * per_sample);
    const std::int64_t bias = quantised ? 0 : 128;
    const std::int64_t forward_and_dgrad = r.recipe == "mxfp8" ? 2 : 1;
    // Blocks run along another axis in dgrad: W is quantised anew, but for the first layer, whose input wants no
    // gradient.
    CHECK(row(r, amp::Role::weight, first).elements == kSteps * (64 * 128 + bias));
    CHECK(row(r, amp::Role::weight, last).elements == kSteps * (forward_and_dgrad * 128 * 10 + (quantised ? 0 : 10)));
    // dy is an operand of both products; otherwise it is stored once, as what the loss hands to the layer.
    CHECK(row(r, amp::Role::error, last).elements == kSteps * kBatch * (quantised ? 2 * 10 : 128));
    if (quantised) CHECK(row(r, amp::Role::weight_gradient, last).elements == 0);
    else CHECK(row(r, amp::Role::weight_gradient, last).elements == kSteps * (128 * 10 + 10));
    double lost = 0;
    double all = 0;
    for (const lab::CastRow& c : r.casts) {
      if (c.role != amp::Role::error && c.role != amp::Role::weight_gradient) continue;
      lost += c.underflow_percent * static_cast<double>(c.elements);
      all += static_cast<double>(c.elements);
    }
    CHECK(r.underflow_percent == doctest::Approx(lost / all));
    std::string formats[4];
    for (std::size_t i = 0; i < 4; ++i)
      for (const lab::Zones& z : r.histograms[i].formats) formats[i] += z.name;
    CHECK(formats[0] == (quantised ? "e4m3fn" : "fp16"));
    CHECK(formats[2] == (r.recipe == "fp8-current" ? "e5m2" : formats[0]));
    CHECK(formats[3] == (quantised ? "" : "fp16"));
    CHECK(r.histograms[0].as_if == (r.recipe == "fp32"));
    // Scaled to the format's largest value, nothing lies beyond it.
    if (r.recipe == "fp8-current")
      for (int e = 9; e < 127; ++e) CHECK(r.histograms[0].counts[static_cast<std::size_t>(e + 127)] == 0);
  }
}

TEST_CASE("recipes that do not fit the model and unwritable folders are refused before anything runs") {
  const Folder folder("refused");
  amp::Recipe wrong = amp::recipe("mxfp8");
  wrong.name = "q4";
  wrong.quantization->modules = {{"layer1", "fp32"}};
  bool ran = false;
  const lab::Options o{
      .epochs = 1, .batch = 32, .started = [&] { ran = true; }, .progress = [&](const lab::Progress&) { ran = true; }};
  CHECK(message([&] {
          lab::compare(mlp, small_digits(), {amp::recipe("fp32"), wrong}, folder.path.string(), o);
        }) ==
        "recipe 'q4': quantization: the model has no module 'layer1'; allowed are first, last, '' (the whole model), "
        "0, 1, "
        "2, 3, 4, 5");
  CHECK_FALSE(fs::exists(folder.path));
  for (const char* file : {"report.html", "checkpoints/finished.json"}) {
    fs::create_directories(folder.path / file);  // as in a folder where no file may be made, but for root too
    CHECK(message([&] { lab::compare(mlp, small_digits(), recipes({"fp32"}), folder.path.string(), o); }) ==
          "cannot write \"" + (folder.path / file).string() + "\": it is a folder");
    fs::remove(folder.path / file);
  }
  CHECK_FALSE(ran);
  lab::compare(mlp, small_digits(), recipes({"fp32"}), "", o);
  CHECK(ran);
}

TEST_CASE("bad options, data and models are named") {
  const auto run = [](lab::Options o, const std::vector<std::string>& names) {
    return message([&] { lab::compare(mlp, small_digits(), recipes(names), "", o); });
  };
  CHECK(run({.epochs = 0}, {"fp32"}).starts_with("lab: epochs is 0"));
  CHECK(run({.optimizer = "adagrad"}, {"fp32"}) == "lab: no optimizer 'adagrad'; allowed are adamw, adam, sgd, soap");
  CHECK(run({}, {}) == "lab: no recipe was given");
  CHECK(run({}, {"fp32", "fp32"}) == "lab: the recipe fp32 is listed twice");
  CHECK(message([] { lab::data_for("cifar"); }) ==
        "no data 'cifar'; allowed are digits, addition, regression, brackets, autoencoder, mnist:DIR, cifar10:DIR, "
        "cifar100:DIR, text:FILE, npy:INPUTS,TARGETS, npy:NAME=FILE,NAME=FILE,.. and "
        "safetensors:FILE");
  CHECK(message([] { lab::data_for("digits", 32); }) ==
        "data 'digits' have no context option (32 was given); text:FILE has");
  CHECK(message([] { lab::model_for("vgg", small_digits().train); }) ==
        "no model 'vgg'; allowed are mlp, cnn, gpt, moe-gpt, autoencoder and FILE.pt2");
  CHECK(message([] { lab::model_for("gpt", small_digits().train); }).starts_with("model gpt reads tokens"));
}
