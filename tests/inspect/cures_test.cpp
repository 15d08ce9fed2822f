// Cures as edits of a recipe: what a file with "base" makes of them.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/diagnosis.h>

#include <nlohmann/json.hpp>

using namespace gradual;
using namespace gradual::inspect;

TEST_CASE("the edit of each cure makes the cured recipe, of the recipe itself and in a file with its base") {
  int edits = 0;
  for (const char* name : {"fp16-pure", "bf16-pure", "fp16-static:1048576", "amp-fp16", "fp16-master", "e3m2", "mxfp4",
                           "nvfp4", "fp8-delayed", "fp8-current", "msamp-o2"}) {
    const amp::Recipe from = amp::recipe(name);
    const std::vector<Cure> all = {cures::masters(from),
                                   cures::bf16(from),
                                   cures::dynamic_scale(from),
                                   cures::norms_in_f32(from),
                                   cures::ops_in_f32(from, {"exp", "sum"}),
                                   cures::f32_sums(from),
                                   cures::scales(from),
                                   cures::rceil(from),
                                   cures::layer_in_f32(from, "fc#2"),
                                   cures::fp8(from)};
    for (const Cure& c : cures::valid(from, all)) {
      CAPTURE(name);
      CAPTURE(c.remedy);
      const std::string patch = edit(from, c.recipe);
      const amp::Recipe again = edited(from, patch);
      amp::Recipe want = c.recipe;
      want.name = again.name;
      want.description = again.description;
      CHECK(amp::to_json(again) == amp::to_json(want));
      nlohmann::json file = nlohmann::json::parse(patch);
      file["name"] = again.name;
      file["base"] = name;
      amp::Recipe read = amp::recipe_from_json(file.dump());
      read.description = want.description;
      CHECK(amp::to_json(read) == amp::to_json(want));
      ++edits;
    }
  }
  CHECK(edits > 40);
}

TEST_CASE("masters take the place of errors that go into the momentum") {
  const amp::Recipe cured = cures::masters(amp::recipe("eco-fp8")).recipe;
  amp::check_valid(cured);
  CHECK(cured.update == optim::LowPrecisionUpdate::none);
  CHECK_FALSE(cured.quantization->weight);
}

TEST_CASE("cures that change nothing, or that a recipe does not take, are left out") {
  const amp::Recipe amp16 = amp::recipe("amp-fp16");
  const amp::Recipe mx = amp::recipe("mxfp4");
  CHECK(cures::valid(amp16, {cures::dynamic_scale(amp16), cures::scales(amp16), cures::masters(amp16)}).empty());
  CHECK(cures::valid(mx, {cures::bf16(mx)}).empty());  // mode full has no dtype but f32
  CHECK(cures::valid(mx, {cures::rceil(mx), cures::fp8(mx)}).size() == 2);
}
