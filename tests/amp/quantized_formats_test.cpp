// Formats from files in recipes, and the recipes of integers, tables and blocks in training.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>

#include "../../amp/quantized_formats.h"
#include "../../amp/recipe.h"
#include "../../core/files/npy.h"
#include "../../data/digits.h"
#include "../../inspect/ledger.h"
#include "../../lab/models.h"
#include "../../nn/linear.h"
#include "../../optim/adam.h"
#include "quantized_run.h"
#include "support.h"
#include "support/files.h"

using namespace gradual;
using test::contains;
using test::message_of;

namespace {

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// The accuracy on the digits' test set after `steps` steps of 64 images.
double accuracy(const amp::Recipe& recipe, bool cnn, int steps) {
  manual_seed(0);
  const auto model = cnn ? lab::make_cnn(1, 8, 8, 10) : lab::make_mlp(64, 10);
  amp::RecipeRun run(recipe, *model, adamw);
  static const data::Split digits = data::split(data::digits(), 1437);
  const std::int64_t n = digits.train.size() / 64;
  for (int s = 0; s < steps; ++s) {
    const std::int64_t at = s % n * 64;
    const Tensor x = digits.train.inputs.narrow(0, at, 64);
    const Tensor y = digits.train.targets.narrow(0, at, 64);
    run.step([&] { return cross_entropy((*model)(x), y); });
  }
  model->eval();
  const Tensor out = run.evaluate([&] { return (*model)(digits.test.inputs); });
  return mean(eq(argmax(out, 1), digits.test.targets).to(DType::f32)).item();
}

}  // namespace

TEST_CASE("a format from a file of 16 values trains the digits") {
  const test::TemporaryFolder folder;
  std::vector<float> values;
  for (int i = -8; i < 8; ++i) values.push_back(static_cast<float>(i < 0 ? -i * i : i * i) / 64);
  save_npy(folder / "squares.npy", from_data(values, {16}));
  write(folder / "mine.json", R"({"name": "mine", "base": "nf4", "quantization": {
    "forward_w": {"format": ")" + (folder / "squares.npy") +
                                  R"("}, "dgrad_w": {"format": ")" + (folder / "squares.npy") + R"("}}})");
  const amp::Recipe r = amp::load_recipes(folder / "mine.json")[0];
  REQUIRE(r.quantization->forward_w->format.table);
  CHECK(r.quantization->forward_w->format.table->name == "squares");
  CHECK(r.quantization->forward_w->format.bits() == 4);
  CHECK(accuracy(r, false, 150) > 0.9);
  // A file of recipes holds the values, and reads back as the same format.
  const std::string text = amp::to_json(r);
  CHECK(contains(text, "\"squares\""));
  CHECK(amp::recipe_from_json(text).quantization->forward_w == r.quantization->forward_w);
  CHECK(contains(amp::to_json(amp::recipe("nf4")), "\"format\": \"nf4\""));
}

TEST_CASE("format files: fields, and what is wrong") {
  const test::TemporaryFolder folder;
  write(folder / "all.json",
        R"({"name": "all-fields", "about": "a test", "values": [-1, 0, 3], "codes": [3, 0, 1], "bits": 3,
    "bounds": [-0.25, 1], "nan": 7, "inf": 6, "negative_inf": "none", "lowest": "none", "highest": 4})");
  const Format f = amp::load_format(folder / "all.json");
  CHECK(f.table->codes == std::vector<std::uint32_t>{3, 0, 1});
  CHECK(f.table->bounds == std::vector<double>{-0.25, 1});
  CHECK(f.table->nan == 7u);
  CHECK_FALSE(f.table->negative_inf);
  CHECK(std::isinf(*f.table->lowest));
  CHECK(f.table->highest == 4);
  CHECK(format("all-fields") == f);
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"name": "x1"})", "\"values\" is missing"},
      {R"({"values": [0, 1]})", "\"name\" is missing"},
      {R"({"name": "x2", "values": 3})", "\"values\" is 3; allowed is a list of numbers"},
      {R"({"name": "x3", "values": [0, "a"]})", "allowed is a list of numbers"},
      {R"({"name": "x4", "values": [1, 0]})", "values ascend; 0 comes after 1"},
      {R"({"name": "x5", "values": [0, 1], "nan": "x"})", "\"none\" or a number"},
      {R"({"name": "x6", "values": [0, 1], "limits": 3})", "unknown key \"limits\""},
      {"[1]", "allowed is a JSON object with name and values"},
      {"{", "allowed is a JSON object with name and values"}};
  for (const auto& w : wrong) {
    write(folder / "wrong.json", w.first);
    const std::string said = message_of([&] { amp::load_format(folder / "wrong.json"); });
    CHECK_MESSAGE(contains(said, w.second), w.first, " said: ", said);
    CHECK(contains(said, "wrong.json"));
  }
  save_npy(folder / "matrix.npy", zeros({2, 2}));
  CHECK(contains(message_of([&] { amp::load_format(folder / "matrix.npy"); }),
                 "allowed is one dim of f32 or f64, not f32 [2, 2]"));
  CHECK(message_of([&] { amp::load_format(folder / "none.npy"); }) != "");
}

TEST_CASE("names of formats are recipes; new recipes are valid, and read back from JSON") {
  for (const char* name : {"posit8",       "hif8:nearest-away",
                           "binary8p3",    "q2.13:stochastic",
                           "takum8",       "log8",
                           "int8",         "int4",
                           "nf4",          "int8-asym",
                           "int4-asym",    "int8tc",
                           "int8-rowwise", "switchback",
                           "mxint8",       "msfp12",
                           "msfp16",       "mx9",
                           "mx6",          "mx4",
                           "hif4",         "nvfp4-4over6"}) {
    const amp::Recipe r = amp::recipe(name);
    CAPTURE(name);
    check_valid(r);
    amp::Recipe again = amp::recipe_from_json(amp::to_json(r));
    CHECK(again.quantization == r.quantization);
  }
  for (const char* name : {"posit9", "bf16", "q1", "q1.30", "levels.json"})
    CHECK(message_of([&] { amp::recipe(name); }) != "");
  const amp::Recipe s = amp::recipe("switchback");
  CHECK(is_any<RowScale>(s.quantization->forward_x->scaling));
  CHECK(is_any<TensorScale>(s.quantization->forward_w->scaling));
  CHECK_FALSE(s.quantization->wgrad_dy);
}

TEST_CASE("mx:FORMAT and mx16:FORMAT are blocks of that format with the scales of OCP MX") {
  const std::pair<const char*, const char*> same[] = {
      {"mx:e2m1", "mxfp4"}, {"mx32:e4m3fn", "mxfp8"}, {"mx16:msfp12", "msfp12"}, {"mx16:mxint8", "msfp16"}};
  for (const auto& s : same)
    CHECK_MESSAGE(amp::recipe(s.first).quantization == amp::recipe(s.second).quantization, s.first);
  const amp::Recipe r = amp::recipe("mx8:e2m0:stochastic");
  CHECK(r.description == "matmul operands rounded to e2m0 (stochastic), blocks of 8 with e8m0 scales");
  CHECK(amp::recipe_from_json(amp::to_json(r)).quantization == r.quantization);
  CHECK(amp::recipe("mx:nf4").quantization->dgrad_dy->format == format("nf4"));
  const Tensor x = from_data(std::vector<float>{1.0F, 3.1F, -4.9F, 100.0F, 0.01F, -0.013F, 0.0F, 0.005F}, {8});
  // 0, 1 and 2 times 2^5 and 2^-8: the power of two below the block's largest number becomes 2
  const Tensor rounded = fake_quantize(x, *amp::recipe("mx4:e2m0").quantization->forward_x);
  CHECK(rounded.to_vector<float>() ==
        std::vector<float>{0.0F, 0.0F, 0.0F, 64.0F, 0.0078125F, -0.0078125F, 0.0F, 0.00390625F});
  for (const char* name : {"mx4:f32", "mx4:bf16", "mx4:e8m3"}) {  // scales of 2^-127 and below
    CAPTURE(name);
    const Quantizer q = *amp::recipe(name).quantization->forward_x;
    CHECK(fake_quantize(from_data(std::vector<float>{1, 1.5, -0.25, 0}, {4}), q).to_vector<float>() ==
          std::vector<float>{1, 1.5, -0.25, 0});
  }
  CHECK_FALSE(amp::is_recipe("e4"));  // a file's recipe may have such a name
  CHECK_FALSE(amp::is_recipe("pure"));
  CHECK_FALSE(amp::is_recipe("mx"));
  const auto told = [](const char* name, const std::string& part) {
    const std::string message = message_of([&] { amp::recipe(name); });
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  };
  told("mx:e9m9", "recipe 'mx:e9m9': format e9m9: 9 exponent bits");
  told("mx:", "recipe 'mx:': no format ''");
  told("mx:e2m1:upwards", "no rounding 'upwards'");
  told("mx:e8m0", "zero");
  for (const char* unknown : {"mx16", "mx0:e2m1", "mx016:e2m1", "mx+16:e2m1", "mxfp4:stochastic", "mx9999999:e2m1"})
    told(unknown, "no recipe '");
}

TEST_CASE("recipes of integers, tables and blocks train the digits") {
  for (const char* name :
       {"int8", "int4", "int8-asym", "int4-asym", "switchback", "msfp12", "mxint8", "nf4", "hif4", "nvfp4-4over6"})
    CHECK_MESSAGE(accuracy(amp::recipe(name), false, 150) > 0.9, name);
}

TEST_CASE("with every result in 16 bits the digits train as in f32; with every result in e4m3 they do not") {
  const double fp32 = accuracy(amp::recipe("fp32"), true, 110);
  const double half = accuracy(amp::recipe("pure:e5m10"), true, 110);
  CHECK(fp32 > 0.93);
  CHECK(half > fp32 - 0.02);
  CHECK(accuracy(amp::recipe("e4m3"), true, 110) > 0.5);  // products alone
  CHECK(accuracy(amp::recipe("pure:e4m3"), true, 110) < 0.3);
}

TEST_CASE("a stochastic accumulator draws other words in each product, and the same for the same seed") {
  amp::Recipe r = amp::recipe("fp8-current");
  r.name = "test";
  r.quantization->accumulator = accumulator("bf16-acc:stochastic");
  const Tensor x = random({16, 64}, 1);
  const Tensor w = random({64, 8}, 2);
  const auto run = [&](std::uint64_t seed) {
    manual_seed(seed);
    const amp::RecipeScope scope(r);
    const Tensor first = matmul(x, w);
    return std::pair(first, matmul(x, w));
  };
  const auto [a, b] = run(1);
  const auto [c, d] = run(1);
  CHECK(same_bits(a, c));
  CHECK(same_bits(b, d));
  CHECK_FALSE(same_bits(a, b));
}

namespace {

struct Attending : nn::Module {
  nn::Linear& in = register_module("in", nn::Linear(8, 8, {.bias = false}));
  double q = 1;
  double k = 1;
  double v = 1;
  bool causal = false;
  Tensor forward(const Tensor& x) override {
    const Tensor y = in(x);
    return scaled_dot_product_attention(y * q, y * k, y * v, {}, {.causal = causal});
  }
};

}  // namespace

TEST_CASE("the loss scale sees Inf and NaN that attention's operands saturate, in forward and backward") {
  const auto step = [](Attending& net, double loss) {
    amp::Recipe r{.name = "test", .quantization = amp::Quantization{}};
    r.scaling = optim::GradScalerOptions{.init_scale = 1024};
    const Quantizer quantizer{.format = format("e5m2"), .overflow = Overflow::saturate};
    r.quantization->attention = {.q = quantizer, .k = quantizer, .v = quantizer, .d_o = quantizer};
    amp::RecipeRun run(r, net, adamw);
    const Tensor before = net.in.weight.detach().clone();
    run.backward(run.forward([&] { return sum(net(random({4, 8}, 1)) * loss); }));
    const optim::StepResult result = run.update();
    const bool stood_still = same_bits(net.in.weight.detach(), before);
    CHECK(stood_still == (run.loss_scale() == 512));
    return std::pair(result.hidden(), stood_still);
  };
  Attending net;
  CHECK(step(net, 1) == std::pair(std::int64_t{0}, false));
  CHECK(step(net, 3e38) == std::pair(std::int64_t{1}, true));  // times the scale: dO is Inf
  for (double Attending::*factor : {&Attending::q, &Attending::k, &Attending::v}) {
    Attending infinite;
    infinite.*factor = HUGE_VAL;
    CHECK(step(infinite, 1) == std::pair(std::int64_t{1}, true));
  }
}

TEST_CASE("the loss scale sees what overflows f32 inside of attention, though its quantizers saturate it") {
  struct Factors {
    double queries = 1;  // and keys; powers of two
    double values = 1;
    double loss = 1;
  };
  using Field = std::optional<Quantizer> amp::AttentionPrecision::*;
  // How many fields hid Inf or NaN in a step.
  const auto hidden = [](Field field, const Factors& factors, bool observed) {
    Attending net;
    net.q = factors.queries;
    net.k = factors.queries;
    net.v = factors.values;
    net.causal = true;
    amp::Recipe r{.name = "test", .quantization = amp::Quantization{}};
    r.scaling = optim::GradScalerOptions{.init_scale = 1};
    r.quantization->attention.emplace();
    (*r.quantization->attention).*field = Quantizer{.format = format("e5m2"), .overflow = Overflow::saturate};
    amp::RecipeRun run(r, net, adamw);
    inspect::Ledger ledger(net);
    std::optional<ObserverScope> scope;
    if (observed) scope.emplace(ledger);
    run.backward(run.forward([&] { return sum(net(abs(random({4, 8}, 1))) * factors.loss); }));
    return run.update().hidden();
  };
  const Factors scores{.queries = 0x1p100};                     // Q K^T is Inf
  const Factors gradients{.values = 0x1p100, .loss = 0x1p100};  // dO V^T is Inf
  const std::pair<Field, Factors> overflows[] = {
      {&amp::AttentionPrecision::softmax, scores}, {&amp::AttentionPrecision::p, scores},
      {&amp::AttentionPrecision::running, scores}, {&amp::AttentionPrecision::o, scores},
      {&amp::AttentionPrecision::d_p, gradients},  {&amp::AttentionPrecision::d_s, gradients}};
  for (const bool observed : {false, true}) {
    CAPTURE(observed);
    for (const auto& [field, factors] : overflows) {
      CAPTURE(std::ranges::find(amp::kAttentionFields, field, &amp::AttentionField::quantizer)->name);
      CHECK(hidden(field, Factors(), observed) == 0);  // -Inf of hidden keys is no overflow
      CHECK(hidden(field, factors, observed) == 1);
    }
  }
}

TEST_CASE("the loss scale sees an infinite gradient that operands saturate, and one that saturate-finite hands on") {
  for (const bool hands_on : {false, true}) {
    amp::Recipe r = amp::recipe("fp8-current");
    r.name = "test";
    r.scaling = optim::GradScalerOptions{.init_scale = 1024};
    if (hands_on) r.quantization->overflow = Overflow::saturate_finite;
    nn::Linear layer(8, 8, {.bias = false});  // a bias has the sum of the errors, which is Inf in any case
    amp::RecipeRun run(r, layer, adamw);
    const Tensor before = layer.weight.detach().clone();
    run.backward(run.forward([&] { return sum(layer(random({4, 8}, 1)) * 3e38); }));  // times the scale: Inf
    const optim::StepResult result = run.update();
    CHECK((result.hidden() == 0) == hands_on);
    CHECK(run.loss_scale() == 512);
    CHECK(same_bits(layer.weight.detach(), before));
  }
  // As a key of a recipe's file.
  const amp::Recipe read =
      amp::recipe_from_json(R"({"name": "x", "base": "fp8-current", "quantization": {"overflow": "saturate-finite"}})");
  CHECK(read.quantization->overflow == Overflow::saturate_finite);
  CHECK(amp::recipe_from_json(amp::to_json(read)).quantization->overflow == Overflow::saturate_finite);
  CHECK(contains(message_of([] { amp::recipe_from_json(R"({"name": "x", "quantization": {"overflow": "clip"}})"); }),
                 "no overflow policy 'clip'"));
}
