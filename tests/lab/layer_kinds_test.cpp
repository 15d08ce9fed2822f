#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/diagnosis.h>
#include <gradual/lab/layer_kinds.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

using namespace gradual;

TEST_CASE("layer_names: a layer has its kind, and so have its products and parameters") {
  nn::Sequential model(nn::Linear(2, 3), nn::ReLU());
  const inspect::LayerNames names = lab::layer_names(model);
  CHECK(names("0") == "0 (Linear)");
  CHECK(names("0#2") == "0#2 (Linear)");
  CHECK(names("0.weight") == "0.weight (Linear)");
  CHECK(names("10") == "10");
  CHECK(names("").empty());
}

TEST_CASE("findings and their cures name a layer with its kind") {
  const amp::Recipe mx = amp::recipe("mxfp4");
  inspect::Evidence e{.recipe = &mx, .steps = 10};
  e.layers = {"block", "block.4"};
  e.names = inspect::LayerNames(std::map<std::string, std::string>{{"block", "Residual"}, {"block.4", "Conv2d"}});
  CastCounts& counts = e.casts[{amp::Role::weight, "block.4#2"}].counts;
  counts.elements = 100;
  counts.underflow = 50;
  const std::vector<inspect::Finding> found = inspect::diagnose(e);
  REQUIRE(!found.empty());
  CHECK(found[0].site == "block.4#2");
  CHECK(found[0].sentence == "50% of the weights of layer block.4#2 (Conv2d) that are not 0 become 0 in its format");
  CHECK(std::ranges::count(found[0].cures, "layer block.4 (Conv2d) in high precision", &inspect::Cure::remedy) == 1);
}
