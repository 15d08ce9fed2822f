#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "../../amp/recipe.h"
#include "../../core/files/atomic_file.h"
#include "support.h"
#include "support/files.h"
#include "support/source_dir.h"

using namespace gradual;
using amp::Recipe;

TEST_CASE("recipes go to JSON and back unchanged") {
  std::vector<Recipe> all;
  for (const char* name : {"fp32", "tf32", "fp16-pure", "bf16-pure", "fp16-master", "bf16-master", "amp-fp16",
                           "amp-bf16", "fp16-static:0.1"})
    all.push_back(amp::recipe(name));
  Recipe edited = amp::recipe("amp-fp16");
  edited.name = "edited \"quoted\"";
  edited.scaling->init_scale = 0x1p-3;
  edited.scaling->hysteresis = 3;
  edited.policy = {{OpId::softmax, amp::CastPolicy::lower()}, {OpId::exp, amp::CastPolicy::cast(DType::bf16)}};
  all.push_back(edited);
  Recipe stochastic = amp::recipe("bf16-pure");
  stochastic.name = "stochastic";
  stochastic.update = optim::LowPrecisionUpdate::stochastic;
  stochastic.optimizer_state = DType::bf16;
  all.push_back(stochastic);

  const std::string text = amp::to_json(all);
  const std::vector<Recipe> back = amp::recipes_from_json(text);
  REQUIRE(back.size() == all.size());
  CHECK(amp::to_json(back) == text);
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(back[i].name == all[i].name);
    CHECK(back[i].mode == all[i].mode);
    CHECK(back[i].dtype == all[i].dtype);
    CHECK(back[i].tf32 == all[i].tf32);
    CHECK(back[i].masters == all[i].masters);
    CHECK(back[i].update == all[i].update);
    CHECK(back[i].scaling.has_value() == all[i].scaling.has_value());
    CHECK(amp::to_json(amp::recipe_from_json(amp::to_json(all[i]))) == amp::to_json(all[i]));
  }
  CHECK(back[9].scaling->init_scale == 0x1p-3);
  CHECK(back[9].scaling->hysteresis == 3);
  CHECK(to_string(back[9].policy[1].second) == "bf16");

  const ::test::TemporaryFolder folder;
  const std::string path = folder / "recipes.json";
  amp::save_recipes(path, all);
  CHECK(amp::to_json(amp::load_recipes(path)) == text);
  write_file_atomically(path, "{\"name\": 3}");
  CHECK(message_of([&] { amp::load_recipes(path); }) == path + ": recipe number 1: \"name\" is 3; allowed is a text");
  std::filesystem::remove(path);
  CHECK(message_of([&] { amp::load_recipes(path); }).find(path) != std::string::npos);
}

TEST_CASE("a short recipe takes the rest from its base, or from the defaults") {
  const Recipe r = amp::recipe_from_json(R"({"name": "mine", "base": "fp16-master", "masters": "flat",
      "scaling": {"kind": "static", "init_scale": 128}, "policy": {"cross_entropy": "pass"}})");
  CHECK(r.mode == amp::Mode::half);
  CHECK(r.masters == amp::Masters::flat);
  CHECK(r.scaling->init_scale == 128);
  CHECK_FALSE(r.scaling->dynamic);
  CHECK(r.policy[0].first == OpId::cross_entropy);
  CHECK(amp::recipe_from_json(R"({"name": "plain"})").mode == amp::Mode::full);
  CHECK(amp::recipe_from_json(R"({"name": "m", "mode": "autocast", "dtype": "f16", "scaling": "dynamic"})")
            .scaling->dynamic);
  CHECK_FALSE(amp::recipe_from_json(R"({"name": "m", "base": "amp-fp16", "scaling": "none"})").scaling);
  CHECK(r.description == "made from fp16-master");
  CHECK(amp::recipe_from_json(R"({"name": "m", "base": "fp32", "description": "mine"})").description == "mine");
}

TEST_CASE("a recipe in a file may not take the name of another recipe") {
  for (const char* name : {"fp32", "O1", "e4m2", "fp16-static:128", "mxfp8"}) {
    CAPTURE(name);
    const std::string text = fmt::format(R"({{"name": "{}", "base": "bf16-pure"}})", name);
    CHECK(message_of([&] { amp::recipe_from_json(text); }) ==
          fmt::format("recipe '{0}': there is a recipe '{0}' already, and this is another; it needs a name of its own",
                      name));
    const Recipe same = amp::recipe_from_json(fmt::format(R"({{"name": "{0}", "base": "{0}"}})", name));
    CHECK(same.name == name);  // the same under its name, described in other words, is no harm
    CHECK(same.description == fmt::format("made from {}", name));
  }
}

TEST_CASE("quantisation goes to JSON and back unchanged, in every recipe that there is") {
  std::vector<std::string> names = amp::recipe_names();
  names.insert(names.end(), {"e4m2", "e5m10:toward-zero", "e8m7:stochastic:8", "mx16:e2m0:stochastic"});
  for (const std::string& name : names) {
    CAPTURE(name);
    const Recipe r = amp::recipe(name);
    const Recipe back = amp::recipe_from_json(amp::to_json(r));
    CHECK(back.quantization == r.quantization);
    CHECK(amp::to_json(back) == amp::to_json(r));
  }
}

TEST_CASE("every field of a quantizer is in the file") {
  const Format own{.is_signed = true,
                   .exponent_bits = 4,
                   .mantissa_bits = 2,
                   .bias = -3,
                   .nan = NanEncoding::negative_zero,
                   .has_negative_zero = false,
                   .subnormals = false};
  const auto with = [&](const Scaling& scaling) {
    return Quantizer{.format = own,
                     .rounding = {.mode = RoundingMode::stochastic, .random_bits = 11},
                     .overflow = Overflow::saturate_finite,
                     .scaling = scaling};
  };
  constexpr auto kTorchao = ScaleOracle::torchao;
  amp::Quantization q;
  q.forward_x = with(FixedScale{.value = 0.1, .product = ScaledProduct::rounded});
  q.forward_w = with(TensorScale{.margin = 1.5, .power_of_two = true, .oracle = kTorchao});
  q.dgrad_dy = with(DelayedScale{.margin = -2, .history = 7, .most_recent = true});
  q.dgrad_w = with(RowScale{.margin = 3, .power_of_two = true, .oracle = kTorchao});
  q.result = with(RowRange{});
  q.result->format = format("uint4");
  q.wgrad_x = with(FloatBlocks{.margin = 1, .power_of_two = true, .block = 48, .square = true, .oracle = kTorchao});
  q.wgrad_dy = with(Nvfp4Blocks{.block = 24, .square = true});
  q.wgrad_x->hadamard = 128;
  q.wgrad_dy->hadamard = 128;
  q.wgrad_dy->center = true;
  q.weight_gradient = with(NoScale{});
  q.weight_gradient->format = {
      .is_signed = false, .exponent_bits = 5, .mantissa_bits = 3, .bias = 20, .has_negative_zero = false};
  q.weight = with(PowerBlocks{.scale = ScaleFormat::power_of_two, .rule = ScaleRule::rceil});
  q.master = with(PowerBlocks{.rule = ScaleRule::ceil});
  q.moment1 = q.weight;
  q.moment2 = q.weight_gradient;
  q.accumulator = accumulator("hopper-fp8-14bit/promote=128");
  q.modules = {{"first", "fp32"}, {"layers.1", "mxfp8"}};
  q.requantize = true;
  q.save_codes = false;
  Recipe r = amp::recipe("bf16-master");
  r.name = "all";
  r.quantization = q;
  CHECK(amp::recipe_from_json(amp::to_json(r)).quantization == q);
  r.quantization->accumulator = Accumulator{.format = own};  // has no name to write
  CHECK(message_of([&] { amp::to_json(r); }).starts_with("recipe 'all': accumulator 'e4m2 (bias -3, "));
}

TEST_CASE("a quantised recipe starts from a base and changes one operand") {
  const amp::Quantization base = *amp::recipe("mxfp8").quantization;
  const auto mine = [](const std::string& quantization) {
    return *amp::recipe_from_json(R"({"name": "mine", "base": "mxfp8", "quantization": )" + quantization + "}")
                .quantization;
  };
  amp::Quantization q = base;
  q.dgrad_dy->format = format("e5m2");
  CHECK(mine(R"({"dgrad_dy": {"format": "e5m2"}})") == q);
  q = base;
  set_block(q.forward_x->scaling, 16);
  CHECK(mine(R"({"forward_x": {"scaling": {"block": 16}}})") == q);
  q = base;
  q.forward_x->scaling = TensorScale{.power_of_two = true};
  CHECK(mine(R"({"forward_x": {"scaling": {"kind": "tensor", "power_of_two": true}}})") == q);
  q = base;
  q.wgrad_x.reset();
  q.modules = {{"last", "fp32"}};
  CHECK(mine(R"({"wgrad_x": "none", "modules": {"last": "fp32"}})") == q);
  q = base;
  q.forward_w->format.bias = 8;  // 2^-7 is the smallest normal number
  CHECK(mine(R"({"forward_w": {"format": {"bias": 8}}})") == q);
  CHECK_FALSE(amp::recipe_from_json(R"({"name": "mine", "base": "mxfp8", "quantization": "none"})").quantization);
  q = base;
  q.accumulator = accumulator("fp16-acc");
  CHECK(mine(R"({"accumulator": "fp16-acc"})") == q);
  q = {.forward_x = Quantizer{.format = format("fp16")}};
  CHECK(amp::recipe_from_json(R"({"name": "a", "quantization": {"forward_x": {"format": "e5m10"}}})").quantization ==
        q);
}

TEST_CASE("what earlier versions did not write is left out where it says what they did") {
  Recipe r = amp::recipe("bf16-flash");
  r.exchange.emplace().quantizer = Quantizer{.format = format("e4m3fn")};
  r.name = "mine";
  const std::string text = amp::to_json(r);
  CHECK(text.find("qk_accumulator") != std::string::npos);
  for (const char* key : {"\"signs\"", "\"center\"", "\"gradient\"", "\"smooth\""})
    CHECK(text.find(key) == std::string::npos);
  CHECK(amp::to_json(amp::recipe("e2m1-dge")).find("\"gradient\": \"differentiable\"") != std::string::npos);
  CHECK(amp::to_json(amp::recipe("quartet2")).find("\"signs\": \"drawn\"") != std::string::npos);
}

TEST_CASE("what an exchange refuses") {
  CHECK(message_of([] {
          amp::check_valid(amp::Exchange{.quantizer = Quantizer{.format = format("e2m1"), .scaling = EdenBlocks{}}});
        }) == "exchange: a scaling of kind ms-eden is not exchanged; allowed are none, fixed, tensor, block, nvfp4");
}

TEST_CASE("scalings that earlier versions wrote are read, and written as they were") {
  std::ifstream file(source_dir() + "/tests/golden/scalings.json");
  const auto before = nlohmann::ordered_json::parse(file);
  REQUIRE(before.size() == 34);
  for (const auto& recipe : before) {
    const std::string name = recipe.at("name");
    CAPTURE(name);
    const auto now = nlohmann::ordered_json::parse(amp::to_json(amp::recipe_from_json(recipe.dump())));
    CHECK(now.at("quantization").at("forward_x").at("scaling").dump() ==
          recipe.at("quantization").at("forward_x").at("scaling").dump());
  }
}

TEST_CASE("a scaling's keys decide its kind, and keys without a meaning there are read and dropped") {
  const auto scaling = [](const std::string& keys, const char* format = "int8") {
    return amp::recipe_from_json(R"({"name": "a", "quantization": {"forward_x": {"format": ")" + std::string(format) +
                                 R"(", "scaling": {)" + keys + "}}}}")
        .quantization->forward_x->scaling;
  };
  CHECK(scaling("") == Scaling(NoScale{}));
  CHECK(scaling(R"("kind": "tensor", "zero_point": true)") == Scaling(TensorRange{}));
  CHECK(scaling(R"("kind": "row", "zero_point": true, "oracle": "torchao")") == Scaling(RowRange{}));
  CHECK(scaling(R"("kind": "block")") == Scaling(PowerBlocks{}));
  CHECK(scaling(R"("kind": "block", "scale": "f32", "rule": "rceil")") == Scaling(FloatBlocks{}));
  CHECK(scaling(R"("kind": "block", "scale": "f32", "zero_point": true)") == Scaling(RangeBlocks{}));
  CHECK(scaling(R"("kind": "block", "scale": "coded")") == Scaling(CodedBlocks{}));
  CHECK(scaling(R"("kind": "block", "part": 4)") == Scaling(PowerParts{.part = 4}));
  CHECK(scaling(R"("kind": "block", "part": 4, "scale": "f32")") == Scaling(FloatParts{.part = 4}));
  CHECK(scaling(R"("kind": "block", "part": 4, "scale": "coded")") == Scaling(CodedParts{.part = 4}));
  CHECK(scaling(R"("kind": "nvfp4", "block": 16)") == Scaling(Nvfp4Blocks{.block = 16}));
  CHECK(scaling(R"("kind": "ms-eden", "group": 64)") == Scaling(EdenBlocks{.group = 64}));
  CHECK(scaling(R"("kind": "double-block", "outer": 64)") == Scaling(DoubleBlocks{.outer = 64}));
  CHECK(scaling(R"("kind": "learned", "product": "rounded")") == Scaling(LearnedScale{ScaledProduct::rounded}));

  const auto refused = [&](const std::string& keys) {
    const std::string start = "recipe 'a', quantization, forward_x, scaling: ";
    const std::string message = message_of([&] { scaling(keys); });
    CHECK(message.starts_with(start));
    return message.substr(std::min(start.size(), message.size()));
  };
  CHECK(refused(R"("kind": "tensor", "zero_point": true, "margin": 1)") ==
        "with the other keys \"zero_point\" is true; allowed is false");
  CHECK(refused(R"("kind": "block", "margin": 1)") == "with the other keys \"margin\" is 1; allowed is 0.0");
  CHECK(refused(R"("kind": "block", "square": true, "part": 2)") == "with the other keys \"part\" is 2; allowed is 0");
  CHECK(refused(R"("kind": "block", "scale": "f32", "zero_point": 1)") ==
        "\"zero_point\" is 1; allowed is true or false");
  CHECK(refused(R"("kind": "block", "scale": "f16")")
            .starts_with("\"scale\" is \"f16\"; allowed is one of power-of-two, e8m0, f32, coded"));
  CHECK(refused(R"("kind": "block", "rule": "four-over-six")") ==
        "with the other keys \"rule\" is \"four-over-six\"; allowed is one of floor, rceil, ceil, even, least-squares");
  CHECK(refused(R"("kind": "block", "scale": "f32", "rule": "nearest")").starts_with("\"rule\" is \"nearest\""));
}

TEST_CASE("malformed recipes are errors that name the key and what is allowed") {
  struct Row {
    const char* json;
    const char* message;  // its start
  };
  const Row rows[] = {
      {"", "recipes: not JSON: "},
      {"{", "recipes: not JSON: "},
      {"{\"name\": \"a\"} x", "recipes: not JSON: "},
      {"3", "recipe number 1: is 3; allowed is an object"},
      {"[{\"name\": \"a\"}, null]", "recipe number 2: is null; allowed is an object"},
      {"[{\"name\": \"a\"}, {\"name\": \"a\"}]", "recipes: two recipes have the name 'a'"},
      {"{\"name\": \"a\",\n\"mode\": \"half\",,}", "recipes: not JSON: line 2, column 16: syntax error"},
      {R"({"name": "a", "quantization": {"forward_x": {"fromat": "e2m1"}}})",
       "recipe 'a', quantization, forward_x: unknown key \"fromat\"; allowed are "},
      {R"({"name": "a", "quantization": {"forward_x": {"format": "e2m1", "scaling": {"kind": "block", "block": 24,
          "scale": "coded", "scale_format": "e5m1", "rule": "rceil"}}}})",
       "recipe 'a', quantization, forward_x, scaling: with the other keys \"rule\" is \"rceil\"; allowed is one of "
       "floor, "
       "up, stochastic, four-over-six, least-squares"},
      {R"({"name": "a", "quantization": {"forward_x": {"format": {"signed": false, "exponent_bits": 4,
          "mantissa_bits": 3, "bias": 7}}}})",
       "recipe 'a': quantization, forward_x: format e4m3: an unsigned format has no -0: negative_zero is false for it"},
      {"[]", "recipe_from_json: one recipe is expected, given 0"},
      {"{}", "recipe number 1: \"name\" is missing"},
      {R"({"name": ""})", "recipe '': it needs a name"},
      {R"({"name": "a", "name": "b"})", "recipes: the key \"name\" is given twice in one object"},
      {R"({"name": 3})", "recipe number 1: \"name\" is 3; allowed is a text"},
      {R"({"name": "a", "sacling": "none"})",
       "recipe 'a': unknown key \"sacling\"; allowed are base, name, description, mode, dtype, tf32, "
       "masters, update, optimizer_state, gradients, averages, scaling, policy, quantization, exchange, schedule, "
       "oscillation_reset; did you mean 'scaling'?"},
      {R"({"name": "a", "mode": "fulll"})",
       "recipe 'a': \"mode\" is \"fulll\"; allowed is one of full, autocast, half, pure; did you mean "
       "'full'?"},
      {R"({"name": "a", "mode": 2})", "recipe 'a': \"mode\" is 2; allowed is one of full, autocast, half, pure"},
      {R"({"name": "a", "dtype": "f64"})", "recipe 'a': \"dtype\" is \"f64\"; allowed is one of f32, f16, bf16"},
      {R"({"name": "a", "tf32": 1})", "recipe 'a': \"tf32\" is 1; allowed is true or false"},
      {R"({"name": "a", "masters": true})",
       "recipe 'a': \"masters\" is true; allowed is one of none, per-tensor, flat"},
      {R"({"name": "a", "update": "masters"})",
       "recipe 'a': \"update\" is \"masters\"; allowed is one of none, kahan, stochastic"},
      {R"({"name": "a", "base": "fp23"})", "recipe 'a', base: no recipe 'fp23'; there are fp32, "},
      {R"({"name": "a", "scaling": 128})",
       "recipe 'a': \"scaling\" is 128; allowed is \"none\", \"dynamic\" or an object"},
      {R"({"name": "a", "scaling": {}})",
       "recipe 'a', scaling: \"kind\" is missing; allowed is one of static, dynamic"},
      {R"({"name": "a", "scaling": {"kind": "none"}})",
       "recipe 'a', scaling: \"kind\" is \"none\"; allowed is one of static, dynamic"},
      {R"({"name": "a", "scaling": {"kind": "static", "growth_factor": 2}})",
       "recipe 'a', scaling: unknown key \"growth_factor\"; allowed are kind, init_scale"},
      {R"({"name": "a", "scaling": {"kind": "dynamic", "init_scale": "x"}})",
       "recipe 'a', scaling: \"init_scale\" is \"x\"; allowed is a number"},
      {R"({"name": "a", "scaling": {"kind": "dynamic", "hysteresis": 1.5}})",
       "recipe 'a', scaling: \"hysteresis\" is 1.5; allowed is an integer from -2147483648 to 2147483647"},
      {R"({"name": "a", "scaling": {"kind": "dynamic", "growth_interval": 0}})",
       "recipe 'a': GradScaler: growth_interval is 0; it must be at least 1"},
      {R"({"name": "a", "scaling": {"kind": "dynamic", "growth_interval": 18446744073709551615}})",
       "recipe 'a', scaling: \"growth_interval\" is 18446744073709551615; allowed is an integer from "},
      {R"({"name": "a", "policy": []})", "recipe 'a': \"policy\" is []; allowed is an object from ops to policies"},
      {R"({"name": "a", "policy": {"sofmax": "fp32"}})", "recipe 'a', policy: no op 'sofmax'; did you mean 'softmax'?"},
      {R"({"name": "a", "policy": {"softmax": "low"}})",
       "recipe 'a', policy: no cast policy 'low'; allowed are pass, "},
      {R"({"name": "a", "policy": {"softmax": 16}})",
       "recipe 'a', policy: \"softmax\" is 16; allowed is a text such as \"lower\""},
      {R"({"name": "a", "policy": {"add_": "lower"}})", "recipe 'a': policy table: add_ takes no policy but pass"},
      {R"({"name": "a", "mode": "half"})",
       "recipe 'a': modes autocast, half and pure take the dtype f16 or bf16, not f32"},
      {R"({"name": "a", "mode": "half", "dtype": "f16", "scaling": {"kind": "static", "init_scale": -1}})",
       "recipe 'a': GradScaler: init_scale is -1; it must be from min_scale, "},
      {R"({"name": "a", "quantization": 8})",
       "recipe 'a': \"quantization\" is 8; allowed is \"none\" or an object of forward_x, "},
      {R"({"name": "a", "quantization": {"forwardx": "none"}})",
       "recipe 'a', quantization: unknown key \"forwardx\"; allowed are forward_x, forward_w, dgrad_dy, dgrad_w, "
       "wgrad_x, "
       "wgrad_dy, weight_gradient, weight, master, moment1, moment2, "},
      {R"({"name": "a", "quantization": {"forward_x": "e4m3fn"}})",
       "recipe 'a', quantization: \"forward_x\" is \"e4m3fn\"; allowed is \"none\" or an object of format, rounding, "
       "overflow, scaling, hadamard, signs, center, gradient, such as {\"format\": \"e4m3fn\"}"},
      {R"({"name": "a", "quantization": {"forward_x": {"format": "e2m1", "hadamard": 24}}})",
       "recipe 'a', quantization, forward_x: \"hadamard\" is 24; allowed is true (16), false, 16, 32, 64, 128 or 256"},
      {R"({"name": "a", "quantization": {"forward_x": {"format": "e2m1", "gradient": "clip"}}})",
       "recipe 'a', quantization, forward_x: \"gradient\" is \"clip\"; allowed is one of straight, clipped, "
       "differentiable"},
      {R"({"name": "a", "quantization": {"wgrad_x": {"format": "e2m1", "gradient": "clipped"}}})",
       "recipe 'a': quantization, wgrad_x: the gradient is clipped; it is a choice of forward_x and forward_w"},
      {R"({"name": "a", "quantization": {"forward_x":
               {"format": "int4", "scaling": {"kind": "learned", "margin": 1}}}})",
       "recipe 'a', quantization, forward_x, scaling: unknown key \"margin\"; allowed are kind, product"},
      {R"({"name": "a", "quantization": {"forward_x": {}}})",
       "recipe 'a', quantization, forward_x: \"format\" is missing"},
      {R"({"name": "a", "quantization": {"forward_x": {"format": "e9m3"}}})",
       "recipe 'a', quantization, forward_x, format: format e9m3: 9 exponent bits; allowed are 1 to 8"},
      {R"({"name": "a", "quantization": {"forward_x": {"format": "e4m3f"}}})",
       "recipe 'a', quantization, forward_x, format: no format 'e4m3f'; there are fp32, "},
      {R"({"name": "a", "quantization": {"forward_x": {"format": 8}}})",
       "recipe 'a', quantization, forward_x: \"format\" is 8; allowed is a name such as \"e4m3fn\""},
      {R"({"name": "a", "quantization": {"forward_x": {"format": {"exponent_bits": 9, "mantissa_bits": 3}}}})",
       "recipe 'a': quantization, forward_x: format e9m3: 9 exponent bits; allowed are 1 to 8"},
      {R"({"name": "a", "quantization": {"forward_x": {"format": {"exponents": 9}}}})",
       "recipe 'a', quantization, forward_x, format: unknown key \"exponents\"; allowed are signed, exponent_bits, "},
      {R"({"name": "a", "quantization": {"forward_x": {"format": {"nan": "two"}}}})",
       "recipe 'a', quantization, forward_x, format: \"nan\" is \"two\"; allowed is one of none, ieee, all-ones, "
       "negative-zero"},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"forward_x": {"rounding": "nearest"}}})",
       "recipe 'a', quantization, forward_x, rounding: "},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"forward_x": {"rounding": "stochastic:33"}}})",
       "recipe 'a', quantization, forward_x, rounding: "},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"forward_x": {"overflow": "clip"}}})",
       "recipe 'a', quantization, forward_x: \"overflow\" is \"clip\"; allowed is one of ieee, saturate, "},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"forward_x": {"scaling": "tensor"}}})",
       "recipe 'a', quantization, forward_x: \"scaling\" is \"tensor\"; allowed is an object such as"},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"forward_x": {"scaling": {"kind": "blocks"}}}})",
       "recipe 'a', quantization, forward_x, scaling: \"kind\" is \"blocks\"; allowed is one of none, fixed, tensor, "
       "delayed, row, block, nvfp4"},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"forward_x": {"scaling": {"history": 4}}}})",
       "recipe 'a', quantization, forward_x, scaling: unknown key \"history\"; allowed are kind, margin, power_of_two, "
       "zero_point, block, square, part, inner_part, scale, scale_format, rule, oracle, product"},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"forward_x": {"scaling": {"block": 0}}}})",
       "recipe 'a': quantization, forward_x: quantizer to e4m3fn: a block has at least 1 element, not 0"},
      {R"({"name": "a", "base": "fp8-delayed", "quantization": {"forward_x": {"scaling": {"history": -1}}}})",
       "recipe 'a': quantization, forward_x: quantizer to e4m3fn: the history keeps at least 1 amax, not -1"},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"accumulator": 32}})",
       "recipe 'a', quantization: \"accumulator\" is 32; allowed is \"none\" or a name such as \"fp16-acc\""},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"accumulator": "fp15-acc"}})",
       "recipe 'a', quantization, accumulator: accumulator 'fp15-acc': there are f32, f64, "},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"modules": ["last"]}})",
       "recipe 'a', quantization: \"modules\" is [\"last\"]; allowed is an object from modules to recipes"},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"modules": {"last": 32}}})",
       "recipe 'a', quantization, modules: \"last\" is 32; allowed is a recipe's name"},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"modules": {"last": "fp31"}}})",
       "recipe 'a': quantization, modules, last: no recipe 'fp31'; there are fp32, "},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"accumulator": 14}})",
       "recipe 'a', quantization: \"accumulator\" is 14; allowed is \"none\" or a name such as \"fp16-acc\" or "
       "\"hopper-fp8-14bit/promote=128\""},
      {R"({"name": "a", "base": "mxfp8", "quantization": {"save_codes": 1}})",
       "recipe 'a', quantization: \"save_codes\" is 1; allowed is true or false"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    const std::string message = message_of([&] { amp::recipe_from_json(row.json); });
    CAPTURE(message);
    CHECK(message.starts_with(row.message));
  }
  std::string deep = "{\"name\": \"a\", \"policy\": ";
  for (int i = 0; i < 100000; ++i) deep += '[';
  CHECK(message_of([&] { amp::recipe_from_json(deep); }).starts_with("recipes: JSON nests deeper than 64 levels"));
  CHECK(message_of([&] { amp::recipe_from_json("{\"name\": \"\xff\"}"); }).starts_with("recipes: not JSON"));
}

TEST_CASE("docs/precision.md: the recipes in a file are read as they stand there") {
  std::ifstream page(source_dir() + "/docs/precision.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  const std::size_t begin = text.find("```json\n") + 8;
  REQUIRE(begin > 8);
  const auto recipes = amp::recipes_from_json(text.substr(begin, text.find("```", begin) - begin));
  REQUIRE(recipes.size() == 2);
  const amp::Quantization& q = *recipes[0].quantization;
  CHECK(is_any<RowScale>(q.forward_x->scaling));
  CHECK(q.dgrad_dy->format == Format::ieee(5, 2));  // the base's
  CHECK(q.dgrad_dy->rounding == rounding_from_name("stochastic"));
  CHECK(q.accumulator == accumulator("bf16-acc/chunk=64"));
  CHECK(q.modules.back() == std::pair<std::string, std::string>("last", "fp32"));
  CHECK(recipes[1].scaling->init_scale == 1024);
  CHECK(recipes[1].description == "made from fp16-master");
  // Every key that a file may have is explained.
  const std::string section = text.substr(text.find("## Recipes in files"));
  const auto keys = [&](const char* json) {
    const std::string told = message_of([&] { amp::recipe_from_json(json); });
    std::string list = told.substr(told.find("allowed are ") + 12);
    list = list.substr(0, list.find(';'));
    for (std::size_t at = 0; at < list.size();
         at = list.find(", ", at) == list.npos ? list.size() : list.find(", ", at) + 2) {
      const std::string key = list.substr(at, list.find(", ", at) - at);
      CAPTURE(key);
      CHECK(section.find("`" + key + "`") != section.npos);
    }
  };
  keys(R"({"name": "a", "?": 0})");
  keys(R"({"name": "a", "quantization": {"?": 0}})");
  keys(R"({"name": "a", "scaling": {"kind": "dynamic", "?": 0}})");
  keys(R"({"name": "a", "quantization": {"weight": {"format": "fp16", "?": 0}}})");
  keys(R"({"name": "a", "quantization": {"weight": {"format": {"?": 0}}}})");
  for (const char* kind : {"fixed", "tensor", "delayed", "row", "block", "nvfp4"})
    keys((R"({"name": "a", "quantization": {"weight": {"format": "fp16", "scaling": {"?": 0, "kind": ")" +
          std::string(kind) + R"("}}}})")
             .c_str());
}
