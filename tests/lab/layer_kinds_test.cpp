#include <doctest/doctest.h>
#include <gradual/lab/layer_kinds.h>

#include <string>
#include <vector>

using namespace gradual;
using namespace gradual::lab;

TEST_CASE("with_kind: a layer gets its kind, once, and no other layer does") {
  CHECK(with_kind("in layer 1: 3 of layer 1.", "1", "Linear") == "in layer 1 (Linear): 3 of layer 1 (Linear).");
  CHECK(with_kind("layer 1 (Linear) and layer 1", "1", "Linear") == "layer 1 (Linear) and layer 1 (Linear)");
  CHECK(with_kind("layer 10, layer 1.fc, layer 1_b", "1", "Linear") == "layer 10, layer 1.fc, layer 1_b");
  CHECK(with_kind("layer 1", "", "Linear") == "layer 1");
  CHECK(with_kind("layer 1", "1", "") == "layer 1");
}

TEST_CASE("name_kinds: sentences, remedies and all cures name the layer's kind") {
  std::vector<Finding> findings(2);
  findings[0].site = "4";
  findings[0].sentence = "5% of the weights of layer 4 exceed";
  findings[0].remedy = "layer 4 in high precision";
  findings[0].cures = {{"{}", "layer 4 in high precision"}};
  findings[1].site = "4.weight";
  findings[1].sentence = "adam_step_ of 4.weight";
  std::vector<CastRow> casts(1);
  casts[0].layer = "4";
  casts[0].kind = "Conv2d";
  name_kinds(findings, casts);
  CHECK(findings[0].sentence == "5% of the weights of layer 4 (Conv2d) exceed");
  CHECK(findings[0].remedy == "layer 4 (Conv2d) in high precision");
  CHECK(findings[0].cures[0].remedy == "layer 4 (Conv2d) in high precision");
  CHECK(findings[1].sentence == "adam_step_ of 4.weight");
}
