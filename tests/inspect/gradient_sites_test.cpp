// Sites of a step alone and left out: planted ones are found, and nothing of the caller's changes.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/diff.h>
#include <gradual/inspect/gradient_sites.h>
#include <gradual/inspect/shadow.h>
#include <gradual/lab/models.h>
#include <gradual/lab/tasks.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace gradual;

namespace {

struct ModelAndBatch {
  data::Split split;
  std::shared_ptr<nn::Module> model;
  Tensor x, y;
  explicit ModelAndBatch(const std::string& name)
      : split(lab::data_for(name == "gpt" ? "addition" : "digits").load(0)),
        model((default_generator().manual_seed(1), lab::model_for(name, split.train)())),
        x(split.train.inputs.narrow(0, 0, 32).contiguous()),
        y(split.train.targets.narrow(0, 0, 32).contiguous()) {}
  Tensor loss() const { return lab::classification_loss((*model)(x), y); }
  inspect::GradientSites sites(const amp::Recipe& recipe) const {
    return inspect::gradient_sites(recipe, *model, [this] { return loss(); });
  }
  // The bits of parameters and buffers.
  std::vector<std::uint64_t> bits() const {
    std::vector<std::uint64_t> all;
    const auto add = [&](const auto& named) {
      for (const auto& [name, t] : named)
        for (const double v : t.template to_vector<double>()) all.push_back(std::bit_cast<std::uint64_t>(v));
    };
    add(model->named_parameters());
    add(model->named_buffers());
    return all;
  }
};

amp::Recipe quantised(const amp::Quantization& q) { return {.name = "planted", .quantization = q}; }

const inspect::GradientSite& site(const inspect::GradientSites& all, std::string_view layer, inspect::SiteRole role) {
  const auto found = std::ranges::find_if(
      all.sites, [&](const inspect::GradientSite& s) { return s.layer == layer && s.role == role; });
  REQUIRE(found != all.sites.end());
  return *found;
}

}  // namespace

TEST_CASE("gradient_sites: the one low operand makes the whole error, in the gradients that it reaches") {
  const ModelAndBatch p("mlp");
  const inspect::GradientSites all = p.sites(quantised({.wgrad_dy = Quantizer{.format = format("e4m3fn")}}));
  REQUIRE(all.sites.size() == 3);  // three layers, one operand
  const inspect::GradientSite& first = site(all, "1", inspect::SiteRole::wgrad_dy);
  // A product for a weight's gradient reaches that weight alone.
  for (std::size_t i = 0; i < all.parameters.size(); ++i) {
    CAPTURE(all.parameters[i]);
    const bool own = all.parameters[i] == "1.weight";
    CHECK((first.alone[i] > 1e-3) == own);
    if (own) CHECK(first.alone[i] == doctest::Approx(all.error[i]));
    if (own) CHECK(first.saved[i] == doctest::Approx(all.error[i]));
  }
}

TEST_CASE("gradient_sites: a layer of coarse format stands out") {
  const ModelAndBatch p("cnn");
  amp::Recipe r = amp::recipe("e4m3");
  r.name = "one-layer";
  r.quantization->modules = {{"4", "e3m2"}};
  const inspect::GradientSites all = p.sites(r);
  const auto worst = std::ranges::max_element(all.sites, {}, &inspect::GradientSite::alone_whole);
  CHECK(worst->layer == "4");
  CHECK(worst->saved_whole > 0.1 * all.error_whole);
}

TEST_CASE("gradient_sites: parameters, buffers and random numbers are as before; the same twice") {
  for (const char* recipe : {"fp8-current", "amp-bf16", "mxfp4", "e4m3:stochastic", "fp8-delayed"}) {
    CAPTURE(std::string(recipe));
    const ModelAndBatch p("cnn");
    const std::vector<std::uint64_t> before = p.bits();
    const RandomKey key = default_generator().state();
    const inspect::GradientSites first = p.sites(amp::recipe(recipe));
    CHECK(p.bits() == before);
    CHECK(default_generator().state().stream == key.stream);
    CHECK(inspect::to_csv(first) == inspect::to_csv(p.sites(amp::recipe(recipe))));
    // 3 layers x 6; or 3 layers and 2 norms, and 3 layers x 2
    CHECK(first.sites.size() == (amp::recipe(recipe).quantization ? 18U : 11U));
    CHECK(first.error_whole > 0);
  }
}

TEST_CASE("gradient_sites: what a site in f32 saves of the loss is the loss without it") {
  const ModelAndBatch p("mlp");
  const auto loss_under = [&p](const amp::Recipe& recipe) {
    const amp::RecipeScope scope(recipe, Device::cpu());
    return p.loss().item();
  };
  amp::Recipe low = quantised({.forward_x = Quantizer{.format = format("e2m1fn")}});
  const inspect::GradientSites all = p.sites(low);
  CHECK(all.loss == loss_under(low));
  CHECK(all.exact_loss == p.loss().item());
  CHECK(all.loss != all.exact_loss);
  for (const char* layer : {"1", "3", "5"}) {
    low.quantization->modules = {{layer, "fp32"}};
    CHECK(site(all, layer, inspect::SiteRole::forward_x).loss_saved == all.loss - loss_under(low));
  }
}

namespace {

// What the rounding of a layer's input does to the loss, measured in the two ways of the page on the shadow.
struct TwoMeasures {
  double share = 0;  // to first order, of the errors of the step
  double saved = 0;  // by a replay
};

double share_of_layer(const inspect::Attribution& attribution, const std::string& layer) {
  double share = 0;
  for (const inspect::ShadowRow* row : attribution.rows)
    if (row->module == layer) share += row->share;
  return share;
}

// Two linear layers whose inputs are rounded to E2M1; the loss is the mean of the outputs, so it is linear in them.
std::array<TwoMeasures, 2> two_measures(int seed) {
  default_generator().manual_seed(static_cast<std::uint64_t>(seed));
  nn::Sequential model(nn::Linear(4, 4), nn::Linear(4, 1));
  const Tensor x = randn({3, 4});
  const auto loss = [&] { return model(x).mean(); };
  const amp::Recipe recipe = quantised({.forward_x = Quantizer{.format = format("e2m1fn")}});
  const inspect::GradientSites sites = inspect::gradient_sites(recipe, model, loss);
  inspect::Shadow shadow(model, nullptr, {.attribution = true});
  {
    const ObserverScope observed(shadow);
    const amp::RecipeScope scope(recipe, Device::cpu());
    loss().backward();
  }
  const inspect::Attribution attribution = shadow.attribution();
  std::array<TwoMeasures, 2> both;
  for (const std::size_t layer : {0U, 1U}) {
    const std::string name = std::to_string(layer);
    both[layer].share = share_of_layer(attribution, name);
    both[layer].saved = site(sites, name, inspect::SiteRole::forward_x).loss_saved;
  }
  return both;
}

}  // namespace

TEST_CASE("gradient_sites: a saving is no share: it has another sign where a later layer rounds anew") {
  int contradictions = 0;
  for (int seed = 0; seed < 40; ++seed) {
    CAPTURE(seed);
    const auto [first, last] = two_measures(seed);
    CHECK(std::abs(last.saved - last.share) < 1e-5 + 1e-4 * std::abs(last.share));  // nothing rounds after it
    if (first.share * first.saved < 0) ++contradictions;
  }
  CHECK(contradictions > 0);
  CHECK(contradictions < 20);
  // The table says which of the two it shows.
  const ModelAndBatch p("mlp");
  const std::string text = to_string(p.sites(quantised({.forward_x = Quantizer{.format = format("e2m1fn")}})));
  CHECK(text.find("saves loss: by a replay in which later layers round anew") != std::string::npos);
}

TEST_CASE("gradient_sites: an autocast recipe's layers") {
  const ModelAndBatch p("mlp");
  const inspect::GradientSites all = p.sites(amp::recipe("amp-bf16"));
  REQUIRE(all.sites.size() == 9);
  for (const inspect::GradientSite& s : all.sites) {
    CHECK((s.role == inspect::SiteRole::all_ops || s.role == inspect::SiteRole::operands ||
           s.role == inspect::SiteRole::stored_outputs));
    CHECK(s.alone_whole > 1e-5);
    CHECK(s.alone_whole < 2 * all.error_whole);
  }
  CHECK(inspect::to_string(all).find("error of all gradients") == 0);
}

TEST_CASE("gradient_sites: operands and stored outputs of an autocast recipe are those of a layer written by hand") {
  default_generator().manual_seed(3);
  nn::Linear model(24, 16);
  const Tensor x = randn({16, 24});
  const Tensor y = arange(0, 16, 1, {.dtype = DType::i64});
  const inspect::GradientSites all =
      inspect::gradient_sites(amp::recipe("amp-bf16"), model, [&] { return cross_entropy(model(x), y); });
  const auto low = [](const Tensor& t) { return t.to(DType::bf16).to(DType::f32); };
  const Tensor exact = cross_entropy(linear(x, model.weight, model.bias), y);
  const Tensor outputs = cross_entropy(low(linear(x, model.weight, model.bias)), y);
  const Tensor operands = cross_entropy(linear(low(x), low(model.weight), low(model.bias)), y);
  const Tensor gradient = autograd::grad({exact}, {model.weight})[0];
  const auto error = [&](const Tensor& loss) {
    return norm(autograd::grad({loss}, {model.weight})[0] - gradient).item() / norm(gradient).item();
  };
  const double of_outputs = error(outputs);
  const double of_operands = error(operands);
  CHECK(all.exact_loss == exact.item());
  // All but the operands is the stored output alone, and the reverse.
  CHECK(site(all, "", inspect::SiteRole::operands).loss_saved == all.loss - outputs.item());
  CHECK(site(all, "", inspect::SiteRole::stored_outputs).loss_saved == all.loss - operands.item());
  CHECK(site(all, "", inspect::SiteRole::operands).alone[0] == doctest::Approx(of_operands).epsilon(1e-5));
  CHECK(site(all, "", inspect::SiteRole::stored_outputs).alone[0] == doctest::Approx(of_outputs).epsilon(1e-5));
  CHECK(of_operands > 1e-4);
  CHECK(of_outputs > 1e-4);
}

TEST_CASE("gradient_sites: the update is the rounding of the gradient that the optimizer reads") {
  const ModelAndBatch p("mlp");
  const Quantizer q{.format = format("e4m3fn"), .scaling = TensorScale{}};
  const inspect::GradientSites all = p.sites(quantised({.weight_gradient = q}));
  REQUIRE(all.sites.size() == 3);
  const auto named = p.model->named_parameters();
  for (std::size_t i = 0; i < named.size(); ++i) {
    const std::string& name = named[i].first;
    CAPTURE(name);
    const Tensor g = autograd::grad({p.loss()}, {named[i].second})[0];
    const double error = norm(fake_quantize(g, q) - g).item() / norm(g).item();
    for (const inspect::GradientSite& s : all.sites) {
      CHECK(s.role == inspect::SiteRole::update);
      const bool own = name == s.layer + ".weight";
      CHECK(s.alone[i] == doctest::Approx(own ? error : 0).epsilon(1e-5));
      CHECK(s.saved[i] == doctest::Approx(own ? error : 0).epsilon(1e-5));
    }
  }
}

TEST_CASE("gradient_sites: pairs of sites are replayed where the sites one by one leave much of the loss") {
  const ModelAndBatch p("mlp");
  amp::Recipe low = quantised({.forward_x = Quantizer{.format = format("e2m1fn")}});
  const inspect::GradientSites all = p.sites(low);
  const auto saved_without = [&](const std::vector<std::string>& layers) {
    low.quantization->modules.clear();
    for (const std::string& layer : layers) low.quantization->modules.emplace_back(layer, "fp32");
    const amp::RecipeScope scope(low, Device::cpu());
    return all.loss - p.loss().item();
  };
  const double one = saved_without({"1"});
  const double three = saved_without({"3"});
  const double five = saved_without({"5"});
  CHECK(all.rest() == doctest::Approx(all.loss - all.exact_loss - one - three - five));
  REQUIRE(std::abs(all.rest()) > 0.1 * std::abs(all.loss - all.exact_loss));
  REQUIRE(all.pairs.size() == 3);
  for (const inspect::SitePair& pair : all.pairs) {
    const std::string a = pair.a.layer;
    const std::string b = pair.b.layer;
    CHECK(pair.a.role == inspect::SiteRole::forward_x);
    CHECK(pair.loss_saved == saved_without({a, b}));
    CHECK(pair.together == doctest::Approx(saved_without({a, b}) - saved_without({a}) - saved_without({b})));
  }
  CHECK(std::abs(all.pairs[0].together) >= std::abs(all.pairs[1].together));
  const std::string first = all.pairs[0].a.layer + " forward x and " + all.pairs[0].b.layer + " forward x save";
  CHECK(inspect::to_string(all).find(first) != std::string::npos);
  // One site alone is the whole difference: there is no pair to look for.
  CHECK(p.sites(quantised({.wgrad_dy = Quantizer{.format = format("e4m3fn")}})).pairs.empty());
}

TEST_CASE("gradient_sites: dropout has the same masks with any choice of sites that round at random") {
  const data::Split split = lab::data_for("digits").load(0);
  const data::Batch batch = data::take(split.train, {0, 1, 2, 3, 4, 5, 6, 7});
  manual_seed(1);
  nn::Sequential model(nn::Linear(64, 32), nn::Dropout(0.5), nn::Linear(32, 32), nn::Dropout(0.5), nn::Linear(32, 10));
  const Quantizer at_random{.format = format("e4m3fn"), .rounding = {RoundingMode::stochastic}};
  const inspect::GradientSites all =
      inspect::gradient_sites(quantised({.forward_x = at_random, .wgrad_dy = at_random}), model, [&] {
        return cross_entropy(model(batch.inputs.reshape({8, 64})), batch.targets);
      });
  REQUIRE(all.sites.size() == 6);
  for (const inspect::GradientSite& s : all.sites) {
    CAPTURE(s.layer);
    CHECK(s.alone_whole > 1e-3);
    CHECK(s.alone_whole < 0.15);  // other masks give 1 or more
  }
}

TEST_CASE("gradient_sites: a recipe whose sites cannot be told apart is an Error") {
  const ModelAndBatch p("mlp");
  CHECK_THROWS_WITH_AS(static_cast<void>(p.sites(amp::recipe("fp16-pure"))), doctest::Contains("fp16-pure is neither"),
                       Error);
}

TEST_CASE("diff: the first op whose error departs, and what makes the losses differ") {
  const auto shadow_of = [](const amp::Recipe& recipe, const auto& use) {
    ModelAndBatch p("cnn");
    default_generator().manual_seed(2);
    amp::RecipeRun run(recipe, *p.model, optim::AdamWOptions{.lr = 2e-3});
    inspect::Shadow shadow(*p.model, &run.optimizer(), {.attribution = true});
    {
      const ObserverScope scope(shadow);
      run.step([&] { return p.loss(); });
    }
    use(shadow);
  };
  shadow_of(amp::recipe("fp8-current"), [&](const inspect::Shadow& a) {
    shadow_of(amp::recipe("amp-bf16"), [&](const inspect::Shadow& b) {
      const inspect::ShadowDiff diff(a, b);
      REQUIRE(diff.first_departure());
      CHECK(diff.first_departure()->a->op == "conv2d");
      CHECK(diff.first_departure()->a->module == "0");
      CHECK(diff.pairs().size() > 15);
      double difference = 0;
      for (const auto& c : diff.contributions()) difference += c.a - c.b;
      const double losses = a.attribution().loss - b.attribution().loss;
      CHECK(difference == doctest::Approx(losses).epsilon(0.1));
      CHECK(diff.to_string("fp8-current", "amp-bf16").find("forward conv2d in layer 0") != std::string::npos);
    });
    // A recipe does not depart from itself.
    shadow_of(amp::recipe("fp8-current"),
              [&](const inspect::Shadow& b) { CHECK(!inspect::ShadowDiff(a, b).first_departure()); });
    // The same but for one layer: there it departs, and not before.
    amp::Recipe other = amp::recipe("fp8-current");
    other.name = "fp8-but-4";
    other.quantization->modules = {{"4", "e3m2"}};
    shadow_of(other, [&](const inspect::Shadow& b) {
      const inspect::ShadowDiff diff(a, b);
      REQUIRE(diff.first_departure());
      CHECK(diff.first_departure()->a->module == "4");
    });
  });
}

namespace {

// A product of two activations between two layers.
struct Mixing : nn::Module {
  nn::Linear& in = register_module("in", nn::Linear(64, 32));
  nn::Linear& out = register_module("out", nn::Linear(32, 10));
  Tensor forward(const Tensor& x) override {
    const Tensor h = relu(in(x.reshape({x.size(0), 64})));
    const Tensor mixed = matmul(softmax(matmul(h, h.transpose(0, 1)) / 100, 1), h);
    return out(mixed);
  }
};

}  // namespace

TEST_CASE("gradient_sites: products outside of layers are sites by their line") {
  const data::Split split = lab::data_for("digits").load(0);
  const data::Batch batch = data::take(split.train, {0, 1, 2, 3, 4, 5, 6, 7});
  manual_seed(1);
  Mixing outer;
  struct Free : nn::Module {
    nn::Linear& in = register_module("in", nn::Linear(64, 10));
    Tensor forward(const Tensor& x) override { return in(x.reshape({x.size(0), 64})); }
  } free;
  const auto mixes = [&] {
    const Tensor h = free(batch.inputs);
    return cross_entropy(matmul(matmul(h, h.transpose(0, 1)), h), batch.targets);  // not in a module
  };
  for (const char* name : {"amp-bf16", "mxfp8"}) {
    CAPTURE(name);
    const auto sites = inspect::gradient_sites(amp::recipe(name), free, mixes);
    const auto outside = std::ranges::find_if(
        sites.sites, [](const inspect::GradientSite& s) { return s.layer.starts_with("gradient_sites_test.cpp:"); });
    REQUIRE(outside != sites.sites.end());
    CHECK(outside->alone_whole > 0);
    CHECK(outside->saved_whole != 0);
  }
  const auto inside = inspect::gradient_sites(amp::recipe("amp-bf16"), outer,
                                              [&] { return cross_entropy(outer(batch.inputs), batch.targets); });
  int with_weights = 0;
  int others = 0;
  for (const inspect::GradientSite& s : inside.sites)
    if (s.role == inspect::SiteRole::all_ops) (s.layer == "in" || s.layer == "out" ? with_weights : others) += 1;
  CHECK(with_weights == 2);
  CHECK(others >= 1);
}
