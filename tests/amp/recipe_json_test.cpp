#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>

#include "../../amp/recipe.h"
#include "../../core/atomic_file.h"
#include "support.h"

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

  const std::string path = (std::filesystem::temp_directory_path() / "gradual_recipes.json").string();
  amp::save_recipes(path, all);
  CHECK(amp::to_json(amp::load_recipes(path)) == text);
  write_file_atomically(path, "{\"name\": 3}");
  CHECK(message_of([&] { amp::load_recipes(path); }) == path + ": recipe number 1: \"name\" is 3; allowed is a text");
  std::remove(path.c_str());
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
      {"[]", "recipe_from_json: one recipe is expected, given 0"},
      {"{}", "recipe number 1: \"name\" is missing"},
      {R"({"name": ""})", "recipe '': it needs a name"},
      {R"({"name": "a", "name": "b"})", "recipes: the key \"name\" stands twice in one object"},
      {R"({"name": 3})", "recipe number 1: \"name\" is 3; allowed is a text"},
      {R"({"name": "a", "sacling": "none"})",
       "recipe 'a': unknown key \"sacling\"; allowed are base, name, description, mode, dtype, tf32, "
       "masters, update, optimizer_state, scaling, policy; did you mean 'scaling'?"},
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
      {R"({"name": "a", "base": "fp23"})", "no recipe 'fp23'; there are fp32, "},
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
       "recipe 'a', scaling: \"hysteresis\" is 1.5; allowed is a positive integer"},
      {R"({"name": "a", "scaling": {"kind": "dynamic", "growth_interval": 0}})",
       "recipe 'a', scaling: \"growth_interval\" is 0; allowed is a positive integer"},
      {R"({"name": "a", "scaling": {"kind": "dynamic", "growth_interval": 18446744073709551615}})",
       "recipe 'a', scaling: \"growth_interval\" is 18446744073709551615; allowed is a positive integer"},
      {R"({"name": "a", "policy": []})", "recipe 'a': \"policy\" is []; allowed is an object from ops to policies"},
      {R"({"name": "a", "policy": {"sofmax": "fp32"}})", "recipe 'a', policy: no op 'sofmax'; did you mean 'softmax'?"},
      {R"({"name": "a", "policy": {"softmax": "low"}})",
       "recipe 'a', policy: no cast policy 'low'; allowed are pass, "},
      {R"({"name": "a", "policy": {"softmax": 16}})",
       "recipe 'a', policy: \"softmax\" is 16; allowed is a text such as \"lower\""},
      {R"({"name": "a", "policy": {"add_": "lower"}})", "policy table: add_ takes no policy but pass"},
      {R"({"name": "a", "mode": "half"})",
       "recipe 'a': modes autocast, half and pure take the dtype f16 or bf16, not f32"},
      {R"({"name": "a", "mode": "half", "dtype": "f16", "scaling": {"kind": "static", "init_scale": -1}})",
       "GradScaler"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.json);
    const std::string message = message_of([&] { amp::recipe_from_json(row.json); });
    CAPTURE(message);
    CHECK(message.starts_with(row.message));
  }
  std::string deep = "{\"name\": \"a\", \"policy\": ";
  for (int i = 0; i < 100000; ++i) deep += '[';
  CHECK(message_of([&] { amp::recipe_from_json(deep); }).starts_with("recipes: not JSON"));
  CHECK(message_of([&] { amp::recipe_from_json("{\"name\": \"\xff\"}"); }).starts_with("recipes: not JSON"));
}
