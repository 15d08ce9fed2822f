#include <doctest/doctest.h>
#include <gradual/core/files/state_dict.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/files.h"

using namespace gradual;
using test::message_of;

TEST_CASE("a state dict keeps values, their kinds and their order") {
  StateDict state;
  const Tensor weight = zeros({2, 3});
  state.set("weight", weight);
  state.set("step", 7);
  state.set("seed", std::numeric_limits<std::uint64_t>::max());
  state.set("lr", 0.1);
  state.set("name", "adam");
  state.set("nesterov", true);
  CHECK(state.tensor("weight").is_same(weight));
  CHECK(state.integer("step") == 7);
  CHECK(state.natural("step") == 7);
  CHECK(state.natural("seed") == std::numeric_limits<std::uint64_t>::max());
  CHECK(state.real("lr") == 0.1);
  CHECK(state.real("step") == 7.0);
  CHECK(state.text("name") == "adam");
  CHECK(state.integer("nesterov") == 1);
  CHECK(state.contains("lr"));
  CHECK_FALSE(state.contains("l"));

  state.set("step", 8);  // a new value, the old place
  CHECK(state.integer("step") == 8);
  std::vector<std::string> names;
  for (const auto& entry : state) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"weight", "step", "seed", "lr", "name", "nesterov"});
}

TEST_CASE("a state dict keeps the bits of a double") {
  StateDict state;
  const auto payload = std::bit_cast<double>(std::uint64_t{0x7ff8'0000'dead'beef});
  state.set("nan", payload);
  state.set("minus zero", -0.0);
  CHECK(std::bit_cast<std::uint64_t>(state.real("nan")) == 0x7ff8'0000'dead'beef);
  CHECK(std::bit_cast<std::uint64_t>(state.real("minus zero")) == std::uint64_t{1} << 63);
}

TEST_CASE("prefixes nest and come apart again") {
  StateDict layer;
  layer.set("weight", zeros({2}));
  layer.set("bias", zeros({1}));
  StateDict model;
  model.add("layers.0", layer);
  model.add("layers.10", layer);
  model.add("", layer);
  CHECK(model.size() == 6);
  CHECK(model.contains("layers.10.weight"));
  CHECK(model.sub("layers.1").empty());  // not a prefix by letters alone
  CHECK(model.sub("layers").size() == 4);
  CHECK(model.sub("layers").sub("0").tensor("bias").is_same(layer.tensor("bias")));
  model.add("copy", model);  // itself
  CHECK(model.size() == 12);
}

TEST_CASE("what is wrong with a state dict's entry is said") {
  StateDict state;
  CHECK(message_of([&] { state.tensor("x"); }) == "state_dict: no entry \"x\"; the state dict is empty");
  state.set("fc1.weight", zeros({2, 3}, {.dtype = DType::f16}));
  state.set("fc2.bias", -1);
  state.set("big", std::numeric_limits<std::uint64_t>::max());
  state.set("lr", 0.5);
  CHECK(message_of([&] { state.tensor("fc1.wieght"); }) ==
        "state_dict: no entry \"fc1.wieght\" among 4; the nearest is \"fc1.weight\"");
  CHECK(message_of([&] { state.integer("fc1.weight"); }) ==
        "state_dict: \"fc1.weight\" is a tensor f16 [2, 3]; a signed 64-bit integer was asked for");
  CHECK(message_of([&] { state.natural("fc2.bias"); }) ==
        "state_dict: \"fc2.bias\" is the integer -1; an unsigned 64-bit integer was asked for");
  CHECK(message_of([&] { state.integer("big"); }) ==
        "state_dict: \"big\" is the unsigned integer 18446744073709551615; a signed 64-bit integer was asked "
        "for");
  CHECK(message_of([&] { state.real("big"); }) ==
        "state_dict: \"big\" is the unsigned integer 18446744073709551615; a real number was asked for");
  CHECK(message_of([&] { state.text("lr"); }) == "state_dict: \"lr\" is the number 0.5; a text was asked for");
  CHECK(message_of([&] { state.set("x", Tensor()); }) ==
        "state_dict: \"x\" is an undefined tensor; leave the entry out instead");
}

TEST_CASE("a generator's state goes into a state dict and back") {
  Generator a(std::numeric_limits<std::uint64_t>::max());
  a.next();
  a.next();
  Generator b;
  load_state_dict(b, state_dict(a));
  CHECK(b.seed() == a.seed());
  CHECK(b.stream() == 2);
}
