#include <doctest/doctest.h>
#include <gradual/amp/site_name.h>

#include <string>

using namespace gradual;
using amp::site_name;
using amp::SiteName;

TEST_CASE("the name of a site is its layer and which of the layer's weights, and its text gives it back") {
  struct Named {
    SiteName name;
    std::string text;
  };
  const Named all[] = {{{.layer = ""}, ""},
                       {{.layer = "fc1"}, "fc1"},
                       {{.layer = "block.4", .weight = 2}, "block.4#2"},
                       {{.layer = "block.4", .weight = 12}, "block.4#12"},
                       {{.layer = "attention", .weight = SiteName::kActivations}, "attention#activations"},
                       {{.layer = "a#b", .weight = 3}, "a#b#3"}};
  for (const auto& [name, text] : all) {
    CAPTURE(text);
    CHECK(to_string(name) == text);
    CHECK(site_name(text) == name);
  }
}

TEST_CASE("a text that numbers no weight names a layer") {
  for (const char* text : {"fc1.weight", "mine.py:57", "a#", "a#b", "a#1", "a#0", "a#-2", "a#2x", "a#activation"}) {
    CAPTURE(text);
    CHECK(site_name(text) == SiteName{.layer = text});
  }
}
