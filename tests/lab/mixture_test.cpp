// The lab's model with a mixture of experts: its loss, its monitors, and the routes of twins.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/gpt.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/monitors.h>
#include <gradual/lab/twin.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

namespace {

data::Dataset first(data::Dataset all, std::int64_t count) {
  all.inputs = all.inputs.narrow(0, 0, count);
  all.targets = all.targets.narrow(0, 0, count);
  return all;
}

// A few sums, each a sequence of tokens.
lab::LabData few_sums() {
  lab::LabData data = lab::data_for("addition");
  const auto load = data.load;
  data.load = [load](std::uint64_t seed) {
    data::Split split = load(seed);
    split.train = first(split.train, 192);
    split.test = first(split.test, 64);
    return split;
  };
  return data;
}

lab::MakeModel model(const lab::LabData& data) { return lab::model_for("moe-gpt", data.load(0).train); }

const lab::MonitorCurve* find(const lab::Result& r, lab::Monitor monitor, const std::string& layer,
                              const std::string& operand) {
  const auto is = [&](const lab::MonitorCurve& c) {
    return c.monitor == monitor && c.layer == layer && c.operand == operand;
  };
  const auto found = std::ranges::find_if(r.monitors, is);
  return found == r.monitors.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("moe-gpt: the training loss has the balance of both mixtures, the test loss has not") {
  const lab::LabData data = few_sums();
  const auto gpt = model(data)();
  const data::Split split = data.load(0);
  const data::Batch batch = data::take(split.train, {0, 1, 2, 3});
  const lab::Loss loss("cross_entropy");
  const lab::Outputs training = lab::outputs_of(*gpt, batch, true);
  REQUIRE(training.auxiliary.defined());
  const double balance = training.auxiliary.item();
  CHECK(balance > 2 * 0.01 * 0.99);  // 0.01 for each layer if all is even, hardly less otherwise
  CHECK(balance < 2 * 0.01 * 4);
  gpt->eval();
  const lab::Outputs evaluation = lab::outputs_of(*gpt, batch, true);
  CHECK_FALSE(evaluation.auxiliary.defined());
  CHECK(lab::loss_of(loss, training).item() ==
        doctest::Approx(lab::loss_of(loss, evaluation).item() + balance).epsilon(1e-6));
}

TEST_CASE("moe-gpt: a cache of keys and values gives the logits of whole sequences") {
  lab::Gpt gpt({.vocabulary = 11, .context = 12, .width = 32, .experts = 4});
  gpt.eval();
  const NoGrad off;
  Generator g(3);
  const Tensor tokens = cast(floor(empty({3, 8}).uniform_(0, 11, g)), DType::i64);
  nn::KeyValueCaches caches = gpt.empty_caches();
  const Tensor first = gpt(tokens.narrow(1, 0, 5), caches);
  const Tensor second = gpt(tokens.narrow(1, 5, 3), caches);
  CHECK(absmax(cat({first, second}, 1) - gpt(tokens)) < 1e-4);
}

TEST_CASE("moe-gpt: monitors of a comparison, in files and back, and no bit depends on them") {
  const lab::LabData data = few_sums();
  const Folder folder("monitors");
  const lab::Options o{
      .model_name = "moe-gpt", .epochs = 2, .batch = 32, .seeds = 2, .sample_every = 2, .explain_steps = 0};
  const std::vector<lab::Result> results =
      lab::compare(model(data), data, recipes({"fp32", "fp8-attention"}), folder.path.string(), o);
  REQUIRE(results.size() == 4);
  for (const lab::Result& r : results) {
    CHECK(r.monitors.empty() == (r.seed != 0));
    if (r.seed != 0) continue;
    const bool in_blocks = r.recipe == "fp8-attention";
    const std::vector<std::string> operands =
        in_blocks ? std::vector<std::string>{"x", "q", "k", "v"} : std::vector<std::string>{"x"};
    for (const std::string& operand : operands) {
      const lab::MonitorCurve* const k = find(r, lab::Monitor::kurtosis, "blocks.0.self_attn", operand);
      REQUIRE(k);
      CHECK(k->step == std::vector<std::int64_t>{0, 4, 8});
      for (const double v : k->value) CHECK(v > 1);
    }
    const char* const of = in_blocks ? "attention" : "softmax";
    const lab::MonitorCurve* const entropy = find(r, lab::Monitor::entropy, "blocks.1.self_attn", of);
    REQUIRE(entropy);
    for (const double v : entropy->value) CHECK((v > 0 && v < std::log(16.0)));
    const lab::MonitorCurve* const routes = find(r, lab::Monitor::changed_routes, "blocks.0.mixture", "router");
    REQUIRE(routes);
    const double changed = *std::ranges::max_element(routes->value);
    CHECK((r.recipe == "fp32" ? changed < 0.2 : changed > 0.2));
    const lab::MonitorCurve* const busiest = find(r, lab::Monitor::busiest_expert, "blocks.0.mixture", "router");
    REQUIRE(busiest);
    for (const double v : busiest->value) CHECK((v >= 25 && v <= 50));  // two of four
  }
  const auto back = lab::results_from_json(lab::results_json(results, true), "file");
  CHECK(lab::monitors_csv(back) == lab::monitors_csv(results));
  CHECK(folder.read("monitors.csv") == lab::monitors_csv(results));
  CHECK(folder.read("monitors.csv").starts_with("recipe,seed,monitor,layer,operand,step,value\nfp32,0,kurtosis,"));
  CHECK(folder.read("report.html").find("\"monitor\":\"changed routes\"") != std::string::npos);
  lab::Options seldom = o;
  seldom.sample_every = 1000;
  seldom.seeds = 1;
  const auto plain = lab::compare(model(data), data, recipes({"fp8-attention"}), "", seldom);
  CHECK(plain.at(0).curve.loss == results.at(2).curve.loss);
}

TEST_CASE("moe-gpt: results whose monitors do not fit are refused") {
  lab::Result r{.recipe = "a", .model = "m", .data = "d", .batch = 3};
  r.monitors = {{lab::Monitor::kurtosis, "0", "x", {0, 4}, {3, NAN}}};
  CHECK(lab::monitors_csv({r}).ends_with("\na,0,kurtosis,0,x,0,3\na,0,kurtosis,0,x,4,\n"));
  lab::Result blind{.recipe = "a", .model = "m", .data = "d", .batch = 3};
  blind.monitors = {{lab::Monitor::largest_logit, "0", "attention", {0}, {-HUGE_VAL}}};
  CHECK(lab::monitors_csv({blind}).ends_with("\na,0,largest logit,0,attention,0,\n"));
  CHECK(std::isnan(lab::results_from_json(lab::results_json({r}, true), "file").at(0).monitors.at(0).value.at(1)));
  r.monitors[0].value.pop_back();
  CHECK(message([&] { lab::results_from_json(lab::results_json({r}, true), "file"); }).find("monitors[0].value") !=
        std::string::npos);
}

TEST_CASE("twins: routes that a sampler's precision changes, by layer, with a cache too") {
  const lab::LabData data = few_sums();
  lab::TwinOptions options{.study = {.step = 4, .batch = 32, .epochs = 2}, .samples = 48, .layers = false};
  const auto twins_of = [&](const char* sampler) {
    return lab::twin(model(data), data, amp::recipe("fp32"), amp::recipe(sampler), options);
  };
  const lab::Twins same = twins_of("fp32");
  REQUIRE(same.routes.size() == 2);
  CHECK(same.routes[0].layer == "blocks.0.mixture");
  const std::int64_t length = data.load(0).test.inputs.size(1);
  CHECK(same.routes[0].change.tokens == 48 * length);
  CHECK(same.routes[0].change.changed == 0);
  const lab::Twins bf16 = twins_of("amp-bf16");
  const lab::Twins fp4 = twins_of("mxfp4");
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(fp4.routes[i].change.changed > bf16.routes[i].change.changed);
    CHECK(fp4.routes[i].change.moved >= fp4.routes[i].change.changed);
  }
  CHECK(lab::to_string(fp4).find("layer with a router") != std::string::npos);
  CHECK(lab::routes_csv(same).starts_with("layer,tokens,changed,choices,moved\nblocks.0.mixture,"));
  lab::Twins uncalled = same;
  uncalled.routes[0].change = {};
  CHECK(lab::to_string(uncalled).find("nan") == std::string::npos);
  options.cache = nn::cache_quantizer("fp32");
  const lab::Twins cached = twins_of("fp32");
  CHECK(cached.routes[0].change.tokens == 48 * length);
  CHECK(cached.routes[0].change.changed_share() < 0.01);  // another order of sums
  const lab::Twins dense = lab::twin(lab::model_for("gpt", data.load(0).train), data, amp::recipe("fp32"),
                                     amp::recipe("fp32"), {.study = options.study, .samples = 8, .layers = false});
  CHECK(dense.routes.empty());
}
