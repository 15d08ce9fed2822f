// Recorded steps of PyTorch models: what rounding explains, and where a planted bug is named.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/judge.h>
#include <gradual/pt2/module.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/source_dir.h"

using namespace gradual;
using lab::Judged;
using lab::Judgement;

namespace {

std::string golden(const std::string& name) { return source_dir() + "/tests/golden/pt2/" + name; }

pt2::Program program_of(const std::string& name) { return pt2::read_program(golden(name + ".pt2")); }

// The golden inputs, and the golden weights of the outputs as their gradients.
StateDict given_of(const std::string& name) {
  StateDict given;
  int place = 0;
  const StateDict all = load_safetensors(golden(name + ".safetensors")).tensors;
  const auto module = pt2::load(golden(name + ".pt2"));
  for (const pt2::InputInfo& in : module->inputs())
    given.set("in." + std::to_string(place++) + ":", all.tensor("input." + in.name));
  for (int i = 0; all.contains("output." + std::to_string(i)); ++i)
    if (all.contains("cotangent." + std::to_string(i)))
      given.set("out." + std::to_string(i) + ".grad:", all.tensor("cotangent." + std::to_string(i)));
  return given;
}

std::string first_name(const Judgement& judgement) {
  const Judged* const wrong = judgement.first();
  return wrong ? wrong->name : "";
}

StateDict with(StateDict record, const std::string& name, const Tensor& tensor) {
  record.set(name, tensor);
  return record;
}

const char* const kModels[] = {"mlp", "cnn", "residual", "tied", "attention", "gpt", "recurrent", "in_place", "unet"};

}  // namespace

TEST_CASE("steps that PyTorch recorded are explained, in f32 and under autocast") {
  for (const char* name : {"mlp.f32", "mlp.bf16", "mlp.f16", "cnn.f32"}) {
    CAPTURE(name);
    const std::string model = std::string(name).substr(0, 3);
    const StateDict record = load_safetensors(golden("step." + std::string(name) + ".safetensors")).tensors;
    const Judgement judgement = lab::judge(program_of(model), record);
    CHECK(first_name(judgement) == "");
    CHECK(judgement.tensors.size() >= 13);
    CHECK(judgement.not_judged.empty());
    for (const Judged& j : judgement.tensors) CHECK(j.difference <= std::max(1e-30, j.allowed));
  }
}

TEST_CASE("Gradual's own steps in f32 are explained, and those in f64 within f64") {
  for (const char* name : kModels) {
    CAPTURE(name);
    const pt2::Program program = program_of(name);
    const StateDict given = given_of(name);
    for (const DType dtype : {DType::f32, DType::f64}) {
      const StateDict record = lab::record_step(program, given, dtype);
      const Judgement judgement = lab::judge(program, record);
      CHECK(first_name(judgement) == "");
      const auto kinds = [&](lab::JudgedKind kind) {
        return std::ranges::count(judgement.tensors, kind, &Judged::kind);
      };
      CHECK(kinds(lab::JudgedKind::value) > 0);
      CHECK(kinds(lab::JudgedKind::parameter_gradient) > 0);
    }
  }
}

TEST_CASE("a wrong result is named where it begins, not where it spreads") {
  const pt2::Program program = program_of("mlp");
  const StateDict given = given_of("mlp");
  const StateDict record = lab::record_step(program, given);
  // The same step with another weight of fc1: all that follows is consistent with it.
  const Tensor weight = record.tensor("before:fc1.weight");
  const StateDict other = lab::record_step(program, with(given, "before:fc1.weight", weight + 1e-5));
  const Judgement judgement = lab::judge(program, with(other, "before:fc1.weight", weight));
  const Judged* const wrong = judgement.first();
  REQUIRE(wrong);
  CHECK(wrong->name == "out.0:fc1");
  CHECK(wrong->op == "aten.linear.default");
  CHECK(wrong->line.find("make.py:34") != std::string::npos);
  for (const Judged& j : judgement.tensors) CHECK((j.explained() || j.name == "out.0:fc1"));
}

TEST_CASE("errors just above what rounding explains are found, in values, gradients and buffers") {
  const pt2::Program program = program_of("cnn");
  const StateDict record = lab::record_step(program, given_of("cnn"));
  for (const char* name : {"out.0:c.0", "out.0:c.1", "out.0:fc", "grad:c.0.weight", "grad:fc.bias", "out.0.grad:c.1",
                           "after:c.1.running_mean"}) {
    CAPTURE(name);
    const Tensor t = record.tensor(name);
    // An error of 1e-4 is 1700 units of rounding of f32.
    const Judgement judgement = lab::judge(program, with(record, name, t * 1.0001));
    CHECK(first_name(judgement) == name);
    CHECK(first_name(lab::judge(program, with(record, name, full_like(t, std::nan(""))))) == name);
  }
}

TEST_CASE("a gradient that is dropped in one of two places is named there") {
  const pt2::Program program = program_of("tied");
  const StateDict record = lab::record_step(program, given_of("tied"));
  const Tensor gradient = record.tensor("grad:head.weight");
  const Tensor y = record.tensor("out.0.grad:head").reshape({-1, 7});
  const Tensor x = record.tensor("in.0:head").reshape({-1, 5});
  const Tensor of_head = matmul(transpose(y, 0, 1), x);
  const Judgement judgement = lab::judge(program, with(record, "grad:head.weight", gradient - of_head));
  const Judged* const wrong = judgement.first();
  REQUIRE(wrong);
  CHECK(wrong->name == "grad:head.weight");
  CHECK(wrong->op == "aten.linear.default");
}

TEST_CASE("a record without inputs or with others is an error; what is not in the graph is listed") {
  const pt2::Program program = program_of("mlp");
  const StateDict record = lab::record_step(program, given_of("mlp"));
  CHECK_THROWS_WITH_AS(lab::judge(program, StateDict()), doctest::Contains("no in.0:, the input x of the model"),
                       Error);
  CHECK_THROWS_WITH_AS(lab::judge(program, with(record, "in.0:", zeros({3, 7}))), doctest::Contains("[3, 7]"), Error);
  CHECK_THROWS_WITH_AS(lab::judge(program, with(record, "before:fc1.bias", zeros({3}))),
                       doctest::Contains("before:fc1.bias is [3]; the graph has [8]"), Error);
  CHECK_THROWS_WITH_AS(lab::record_step(program, record, DType::bf16), doctest::Contains("bf16"), Error);
  const Judgement judgement = lab::judge(program, with(record, "out.0:nowhere", zeros({1})));
  CHECK(judgement.not_judged == std::vector<std::string>{"out.0:nowhere"});
  CHECK(first_name(lab::judge(program, with(record, "out.0:fc1", zeros({3, 9})))) == "out.0:fc1");
}

TEST_CASE("a recorded tensor of another kind than the graph's is listed, not judged") {
  const pt2::Program program = program_of("tied");
  const StateDict record = lab::record_step(program, given_of("tied"));
  const Judgement judgement = lab::judge(program, with(record, "in.0:embed", zeros({2, 3})));
  CHECK(first_name(judgement) == "");
  CHECK(judgement.not_judged.front() == "in.0:embed");
}
