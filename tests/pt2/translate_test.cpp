// The translation to C++ of graphs made by hand: what a file may say, and what is refused.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/pt2/translate.h>

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "archive_writer.h"
#include "support/files.h"

using namespace gradual;
using test::contains;
using test::graph_of;
using test::message_of;
using test::node;
using test::number;
using test::tensor;

namespace {

std::string translated(const test::Entries& entries, const std::string& name = "net.pt2") {
  const test::TemporaryFolder folder;
  const std::string path = folder / name;
  const std::string bytes = test::zip_of(entries);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return pt2::translate(path);
}
std::string translated(const std::string& graph) { return translated({{"m/models/model.json", graph}}); }

std::string replaced(std::string text, const std::string& was, const std::string& by) {
  const std::size_t at = text.find(was);
  REQUIRE(at != std::string::npos);
  return text.replace(at, was.size(), by);
}

// The node, called by modules: "L__self__,,mine.Net;L__self___c,c,mine.C".
std::string inside(const std::string& node, const std::string& modules) {
  return replaced(node, R"("metadata":{)",
                  R"("metadata":{"nn_module_stack":")" + modules + "\"" + (contains(node, "stack_trace") ? "," : ""));
}
std::string one_op(const std::string& target, const std::string& self, const std::string& output) {
  return node("torch.ops.aten." + target, {{"self", tensor(self)}}, output);
}
std::string dropout(const std::string& input, bool train, const std::string& output) {
  return node("torch.ops.aten.dropout.default",
              {{"input", tensor(input)},
               {"p", R"({"as_float":0.5})"},
               {"train", train ? R"({"as_bool":true})" : R"({"as_bool":false})"}},
              output);
}

// y = relu(x + w), with weights of these keys in JSON; the graph reads the first.
test::Entries with_weights(const std::vector<std::string>& keys) {
  std::string graph =
      graph_of({node("torch.ops.aten.add.Tensor", {{"self", tensor("x")}, {"other", tensor("w")}}, "y")}, {"y"});
  graph = replaced(graph, R"("graph":{"inputs":[)", R"("graph":{"inputs":[)" + tensor("w") + ",");
  graph = replaced(graph, R"("tensor_values":{)", R"("tensor_values":{"w":{"dtype":7,"sizes":[{"as_int":3}]},)");
  graph = replaced(graph, R"("input_specs":[)",
                   R"("input_specs":[{"parameter":{"arg":{"name":"w"},"parameter_name":")" + keys[0] + R"("}},)");
  std::string config;
  test::Entries entries{{"m/models/model.json", graph}};
  for (const std::string& key : keys) {
    const std::string file = "weight_" + std::to_string(entries.size());
    config += (config.empty() ? "" : ",") + ("\"" + key) + R"(":{"path_name":")" + file +
              R"(","is_param":true,"use_pickle":false,"tensor_meta":{"dtype":7,"requires_grad":true,)"
              R"("sizes":[{"as_int":3}],"strides":[{"as_int":1}],"storage_offset":{"as_int":0}}})";
    entries.emplace_back("m/data/weights/" + file, std::string(12, static_cast<char>(entries.size())));
  }
  entries.emplace_back("m/data/weights/model_weights_config.json", R"({"config":{)" + config + "}}");
  return entries;
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("no text of a file becomes code of its translation") {
  const std::string version = R"("torch_version":"2.x)";
  const std::string relu = one_op("relu.default", "x", "y");
  const std::string of_version =
      translated(replaced(graph_of({relu}, {"y"}), version, version + R"(\nstatic int bad = 0;\r//)"));
  CHECK(contains(of_version, "2.x static int bad"));
  const std::string of_class =
      translated(graph_of({inside(relu, R"(L__self__,,mine.Net\nstatic int bad = 0\\)")}, {"y"}));
  CHECK(contains(of_class, "// mine.Net static int bad = 0 \nstruct"));
  const std::string line = R"("stack_trace":"  File \"mine.py\", line 1, in forward\n    y = x\rstatic int bad = 0\\")";
  const std::string of_line =
      translated(graph_of({replaced(relu, R"("metadata":{)", R"("metadata":{)" + line)}, {"y"}));
  CHECK(contains(of_line, "y = x static int bad = 0"));
  const std::string of_key = translated(with_weights({R"(w\", zeros({1})); int bad = 0; //)"}));
  CHECK(contains(of_key, R"(register_parameter("w\", zeros({1})); int bad = 0; //",)"));
  const std::string of_control = translated(with_weights({R"(w\n1)"}));
  CHECK(contains(of_control, R"(register_parameter("w\0121",)"));
  for (const std::string& text : {of_version, of_class, of_line, of_key, of_control}) {
    CHECK_FALSE(contains(text, "\nstatic"));
    CHECK_FALSE(contains(text, "\r"));
    CHECK_FALSE(contains(text, "\\\n"));
  }
}

TEST_CASE("a translation refuses modules that nest too deep") {
  const std::string refusal = "nest deeper than 100 levels";
  const std::string deep = repeated("a.", 200);
  CHECK(contains(message_of([&] { translated(with_weights({"w", deep + "w"})); }), refusal));
  CHECK(contains(message_of([&] { translated(with_weights({deep + "w"})); }), refusal));
  const std::string relu = one_op("relu.default", "x", "y");
  const std::string path = "L__self__,,N;L__self___a," + deep + "a,N";
  CHECK(contains(message_of([&] { translated(graph_of({inside(relu, path)}, {"y"})); }), refusal));
  const std::string levels = "L__self__,,N" + repeated(";L__self___a,a,N", 200);
  CHECK(contains(message_of([&] { translated(graph_of({inside(relu, levels)}, {"y"})); }), refusal));
}

TEST_CASE("a translation refuses what load refuses") {
  const std::string graph = graph_of({one_op("relu.default", "x", "y")}, {"y"});
  CHECK(contains(message_of([&] { translated({{"serialized_exported_program.json", "{}"}}); }), "before 2.9"));
  CHECK(contains(message_of([&] {
                   translated({{"m/models/model.json", graph}, {"m/byteorder", "big"}});
                 }),
                 "big-endian"));
  const std::string n = R"({"as_sym_int":{"as_name":"n"}})";
  std::string with_number = replaced(graph, R"("graph":{"inputs":[)", R"("graph":{"inputs":[)" + n + ",");
  with_number = replaced(with_number, R"("input_specs":[)", R"("input_specs":[{"user_input":{"arg":)" + n + "}},");
  CHECK(contains(message_of([&] { translated(with_number); }), "input n is a number of Python"));
}

TEST_CASE("a module that its caller does not contain is a part of the caller's call") {
  for (const char* caller : {"outer", "b"}) {
    const std::string by(caller);
    const std::string modules = "L__self__,,Net;L__self___b," + by + ",Block;L__self___n,norm,Norm";
    const std::string text = translated(graph_of({inside(one_op("relu.default", "x", "y"), modules)}, {"y"}));
    CHECK(contains(text, "return " + by + "(x);"));
    CHECK(contains(text, "return relu(x);"));
  }
}

TEST_CASE("a layer that was frozen in training stays frozen in the translation") {
  const auto called = [](const std::string& node, const std::string& name) {
    return inside(node, "L__self__,,Net;L__self___" + name + "," + name + ",torch.nn.modules.dropout.Dropout");
  };
  const std::string text =
      translated(graph_of({called(dropout("x", true, "y"), "a"), called(dropout("y", false, "z"), "b")}, {"z"}));
  CHECK(contains(text, R"(nn::Dropout& a = register_module("a", nn::Dropout(0.5));)"));
  CHECK_FALSE(contains(text, "nn::Dropout& b"));
  const std::string evaluated = translated(graph_of({called(dropout("x", false, "y"), "a")}, {"y"}));
  CHECK(contains(evaluated, "nn::Dropout& a"));
  CHECK(contains(evaluated, "eval();"));
}

TEST_CASE("bounds have no gradient in a translation either") {
  for (const char* target : {"relu6.default", "hardtanh.default"})
    CHECK(contains(translated(graph_of({one_op(target, "x", "y")}, {"y"})), "\"aten." + std::string(target) + "\""));
  const std::string clamp =
      node("torch.ops.aten.clamp.default", {{"self", tensor("x")}, {"min", number(0)}, {"max", number(1)}}, "y");
  CHECK(contains(translated(graph_of({clamp}, {"y"})), "\"aten.clamp.default\""));
}

TEST_CASE("names of a translation hide no function and are C++") {
  const std::string zeros = translated(with_weights({"zeros"}));
  CHECK(contains(zeros, R"(Tensor& zeros = register_parameter("zeros", gradual::zeros({3}));)"));
  CHECK(contains(translated(with_weights({"constexpr"})), "Tensor& constexpr_ = "));
  CHECK(contains(translated(with_weights({"w"}), "exp.pt2"), "namespace exp_model {"));
  const std::string message = message_of([&] { translated(with_weights({"x-1", "x_1"})); });
  CHECK(contains(message, "has x-1 and x_1; in C++ both are x_1"));
}
