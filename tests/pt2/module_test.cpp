// ExportedModule: names, modes, lines, in-place ops and what is refused.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/pt2/graph.h>
#include <gradual/pt2/module.h>
#include <gradual/pt2/python_line.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "archive_writer.h"
#include "support/files.h"
#include "support/source_dir.h"

using namespace gradual;
using test::graph_of;
using test::made;
using test::message_of;
using test::node;
using test::number;
using test::tensor;

namespace {

std::shared_ptr<pt2::ExportedModule> tiny(const std::string& name) {
  return pt2::load(source_dir() + "/tests/golden/pt2/" + name + ".pt2");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Tensor column_numbers() { return from_data(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3}); }

struct Seen {
  OpId op;
  std::string module, line, text;
};
struct Recorder : Interceptor {
  std::vector<Seen> all;
  Outputs call(const OpCall& call) override {
    all.push_back({call.op, context().module, file_line(call.where), call.where.function_name()});
    return next_below_observe(call);
  }
};

}  // namespace

TEST_CASE("an op of an exported model carries its module's path and Python's line, in backward too") {
  const auto net = tiny("cnn");
  Recorder seen;
  {
    const StageScope observe(chain().observe, &seen);
    sum((*net)(randn({2, 2, 4, 4}))).backward();
  }
  const auto find = [&](OpId op) {
    const auto found = std::ranges::find(seen.all, op, &Seen::op);
    REQUIRE(found != seen.all.end());
    return *found;
  };
  const Seen conv = find(OpId::conv2d);
  CHECK(conv.module == "c.0");
  CHECK(contains(conv.line, "make.py:"));
  CHECK(conv.text == "return self.fc(self.drop(self.c(x).flatten(1))) * self.scale");
  CHECK(find(OpId::batch_norm).module == "c.1");
  CHECK(find(OpId::linear).module == "fc");
  const Seen back = find(OpId::conv2d_backward_weight);
  CHECK(back.module == "c.0");
  CHECK(back.line == conv.line);
  CHECK(net->lines().at("fc") == conv.line + ": " + conv.text);
}

TEST_CASE("a Python line is a source location") {
  const SourceLocation at = pt2::location_of({"/a/mine.py", 57, "x = self.fc2(h)"});
  CHECK(std::string(at.file_name()) == "/a/mine.py");
  CHECK(at.line() == 57);
  CHECK(std::string(at.function_name()) == "x = self.fc2(h)");
  CHECK(file_line(at) == "mine.py:57");
  CHECK(pt2::location_of({}).line() == 0);
}

TEST_CASE("names, tied weights and the state dict are PyTorch's") {
  const auto net = tiny("tied");
  std::vector<std::string> names;
  for (const auto& [name, p] : net->named_parameters()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"embed.weight", "norm.weight", "norm.bias"});
  const StateDict state = net->state_dict();
  CHECK(state.contains("head.weight"));
  CHECK(state.tensor("head.weight").shares_storage(state.tensor("embed.weight")));
  StateDict other;
  for (const auto& entry : state) other.set(entry.name, ones_like(std::get<Tensor>(entry.value)));
  net->load_state_dict(other);
  CHECK(net->state_dict().tensor("embed.weight").to_vector<float>()[0] == 1);

  const auto cnn = tiny("cnn");
  CHECK(cnn->state_dict().contains("c.1.num_batches_tracked"));
  CHECK_FALSE(cnn->state_dict().contains("scale"));  // not persistent
}

TEST_CASE("eval() turns batch norm and dropout of a graph that was exported in training") {
  const auto net = tiny("cnn");
  CHECK(net->exported_in_training());
  CHECK(net->training());
  const Tensor x = randn({4, 2, 4, 4});
  net->eval();
  const Tensor all = (*net)(x);
  const Tensor one = (*net)(x.narrow(0, 0, 1));
  CHECK(allclose(all.narrow(0, 0, 1), one));
  CHECK(net->state_dict().tensor("c.1.num_batches_tracked").item() == 0);
  net->train();
  (*net)(x);
  CHECK_FALSE(allclose((*net)(x).narrow(0, 0, 1), one));
  CHECK(net->state_dict().tensor("c.1.num_batches_tracked").item() == 2);
}

TEST_CASE("a graph that was exported in evaluation is not trained unasked") {
  const auto net = tiny("evaluation");
  CHECK_FALSE(net->exported_in_training());
  CHECK_FALSE(net->training());
  net->train();
  CHECK(contains(message_of([&] { (*net)(randn({2, 2, 4, 4})); }), "exported in evaluation"));
  const auto forced = pt2::load(source_dir() + "/tests/golden/pt2/evaluation.pt2", {.train_evaluation_graph = true});
  forced->train();
  CHECK((*forced)(randn({2, 2, 4, 4})).sizes() == Shape{2, 3});
}

TEST_CASE("inputs are checked, by place and by name") {
  const auto mlp = tiny("mlp");
  CHECK((*mlp)(randn({9, 6})).sizes() == Shape{9, 4});  // the batch is dynamic
  const std::string message = message_of([&] { (*mlp)(randn({2, 5})); });
  CHECK(contains(message, "input x is [2, 5]; the graph was exported for [any, 6]"));
  CHECK(contains(message, "torch.export.Dim"));
  const auto attention = tiny("attention");
  CHECK(contains(message_of([&] {
                   (*attention)(randn({2, 4, 8}));
                 }),
                 "1 inputs; the model takes 2: x [any, 4, 8], mask"));
  const Tensor x = randn({1, 4, 8});
  const Tensor mask = zeros({4, 4});
  const Tensor named = (*attention)(nn::NamedTensors{{"mask", mask}, {"x", x}})[0];
  CHECK(allclose(named, (*attention)(std::vector<Tensor>{x, mask})[0], 0, 0));
  CHECK(contains(message_of([&] { (*attention)(nn::NamedTensors{{"x", x}, {"y", x}}); }), "no input 'y'"));
}

TEST_CASE("recipes tell norms and embeddings of an exported model from other modules") {
  const auto net = tiny("cnn");
  amp::to_half(*net, DType::bf16);
  const StateDict state = net->state_dict();
  CHECK(state.tensor("c.0.weight").dtype() == DType::bf16);
  CHECK(state.tensor("c.1.weight").dtype() == DType::f32);
  CHECK(state.tensor("c.1.running_mean").dtype() == DType::f32);
  CHECK((*net)(randn({2, 2, 4, 4}, DType::bf16)).dtype() == DType::bf16);
  const auto tied = tiny("tied");
  for (const auto& [path, module] : tied->named_modules())
    if (path == "embed") CHECK(module->kind() == "Embedding");
}

TEST_CASE("a module of Python is named by its Python class, any other by its own") {
  const auto net = tiny("cnn");
  std::map<std::string, std::string> kinds;
  for (const auto& [path, module] : net->named_modules()) kinds[path] = pt2::kind_of(*module);
  CHECK(kinds["c.0"] == "Conv2d");
  CHECK(kinds["c.1"] == "BatchNorm2d");
  CHECK(kinds["fc"] == "Linear");
  CHECK(pt2::kind_of(nn::ReLU()) == "ReLU");
}

TEST_CASE("autocast and a recipe's modules apply to an exported model") {
  const auto net = tiny("mlp");
  const Tensor x = randn({3, 6});
  {
    const amp::Autocast scope({.dtype = DType::bf16});
    CHECK((*net)(x).dtype() == DType::bf16);
  }
  amp::Recipe recipe = amp::recipe("e4m3");
  recipe.quantization->modules = {{"fc1", "fp32"}};
  amp::RecipeRun run(recipe, *net, optim::AdamWOptions{.lr = 1e-3});
  Recorder seen;
  {
    const StageScope observe(chain().observe, &seen);
    run.step([&] { return mean(square((*net)(x))); });
  }
  CHECK(std::ranges::any_of(seen.all, [](const Seen& s) { return s.op == OpId::linear && s.module == "fc1"; }));
}

TEST_CASE("a hook of a submodule surrounds its ops, once for each call") {
  const auto net = tiny("cnn");
  int calls = 0;
  for (const auto& [path, module] : net->named_modules())
    if (path == "c.1")
      module->set_hook([&](nn::Module&) -> std::shared_ptr<void> {
        ++calls;
        return nullptr;
      });
  (*net)(randn({2, 2, 4, 4}));
  CHECK(calls == 1);
}

TEST_CASE("an in-place op is seen by views that are alive, and by what it is a view of") {
  const Tensor x = column_numbers();
  // a = relu(x); row = a[0]; part = row[1:]; part += 10; returns a and row
  const auto net = made(
      {node("torch.ops.aten.relu.default", {{"self", tensor("x")}}, "a", 1),
       node("torch.ops.aten.select.int", {{"self", tensor("a")}, {"dim", number(0)}, {"index", number(0)}}, "row", 2),
       node("torch.ops.aten.slice.Tensor", {{"self", tensor("row")}, {"dim", number(0)}, {"start", number(1)}}, "part",
            3),
       node("torch.ops.aten.add_.Tensor", {{"self", tensor("part")}, {"other", number(10)}}, "done", 4)},
      {"a", "row", "done"});
  const std::vector<Tensor> out = (*net)(std::vector<Tensor>{x});
  CHECK(out[0].to_vector<double>() == std::vector<double>{1, 12, 13, 4, 5, 6});
  CHECK(out[1].to_vector<double>() == std::vector<double>{1, 12, 13});
  CHECK(out[2].to_vector<double>() == std::vector<double>{12, 13});
  CHECK(x.to_vector<double>() == std::vector<double>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("activations of PyTorch's have their limits at Inf, and NaN stays") {
  struct Row {
    std::string target;
    std::vector<double> value;  // at -Inf, 0, Inf
    std::vector<double> slope;
  };
  const Row rows[] = {{"mish", {0, 0, INFINITY}, {0, 0.6, 1}},
                      {"hardswish", {0, 0, INFINITY}, {0, 0.5, 1}},
                      {"softsign", {-1, 0, 1}, {0, 1, 0}}};
  for (const Row& row : rows) {
    CAPTURE(row.target);
    const auto net = made({node("torch.ops.aten." + row.target + ".default", {{"self", tensor("x")}}, "y")}, {"y"});
    const Tensor x = from_data(std::vector<float>{-INFINITY, 0, INFINITY, NAN, 1, 1}, {2, 3}).set_requires_grad();
    const Tensor y = (*net)(std::vector<Tensor>{x})[0];
    y.sum().backward();
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      const double value = y.to_vector<double>()[i];
      const double slope = x.grad().to_vector<double>()[i];
      CHECK((value == row.value[i] || std::fabs(value - row.value[i]) < 1e-6));
      CHECK(std::fabs(slope - row.slope[i]) < 1e-6);
    }
    CHECK(std::isnan(y.to_vector<double>()[3]));
  }
}

TEST_CASE("a copy is not written through") {
  const auto net = made({node("torch.ops.aten.relu.default", {{"self", tensor("x")}}, "a"),
                         node("torch.ops.aten.clone.default", {{"self", tensor("a")}}, "b"),
                         node("torch.ops.aten.mul_.Tensor", {{"self", tensor("b")}, {"other", number(2)}}, "c")},
                        {"a", "c"});
  const std::vector<Tensor> out = (*net)(std::vector<Tensor>{column_numbers()});
  CHECK(out[0].to_vector<double>()[2] == 3);
  CHECK(out[1].to_vector<double>()[2] == 6);
}

TEST_CASE("a write through a view that cannot be written names both lines") {
  const auto net = made(
      {node("torch.ops.aten.relu.default", {{"self", tensor("x")}}, "a", 1),
       node("torch.ops.aten.expand.default", {{"self", tensor("a")}, {"size", R"({"as_ints":[2,2,3]})"}}, "wide", 2),
       node("torch.ops.aten.add_.Tensor", {{"self", tensor("wide")}, {"other", number(1)}}, "b", 7)},
      {"a", "b"});
  const std::string message = message_of([&] { (*net)(std::vector<Tensor>{column_numbers()}); });
  CHECK(contains(message, "aten.add_.Tensor (mine.py:7: line 7)"));
  CHECK(contains(message, "aten.expand.default (mine.py:2: line 2)"));
}

TEST_CASE("an in-place op that changes the sizes is refused") {
  const auto squeeze = node("torch.ops.aten.squeeze_.dim", {{"self", tensor("x")}, {"dim", number(0)}}, "a");
  CHECK(contains(message_of([&] { made({squeeze}, {"a"}); }), "aten.squeeze_.dim (1 call)"));
}

TEST_CASE("numbers and tensors promote as in PyTorch") {
  const auto net =
      made({node("torch.ops.aten.gt.Scalar", {{"self", tensor("x")}, {"other", number(2)}}, "mask"),
            node("torch.ops.aten.mul.Tensor", {{"self", tensor("mask")}, {"other", number(3)}}, "ints"),
            node("torch.ops.aten.mul.Tensor", {{"self", tensor("ints")}, {"other", R"({"as_float":0.5})"}}, "floats"),
            node("torch.ops.aten.div.Tensor", {{"self", tensor("ints")}, {"other", number(2)}}, "halves")},
           {"mask", "ints", "floats", "halves"});
  const std::vector<Tensor> out = (*net)(std::vector<Tensor>{column_numbers()});
  CHECK(out[0].dtype() == DType::bool_);
  CHECK(out[1].dtype() == DType::i64);
  CHECK(out[2].dtype() == DType::f32);
  CHECK(out[3].dtype() == DType::f32);
  CHECK(out[3].to_vector<double>()[5] == 1.5);
}

TEST_CASE("sizes are computed as in Python") {
  const auto size = [](const std::string& target, const std::string& a, const std::string& b, const std::string& out) {
    std::string json = node("_operator." + target, {{"a", a}, {"b", b}}, out);
    const std::string was = R"({"as_tensor":{"name":")" + out + R"("}})";
    return json.replace(json.find(was), was.size(), R"({"as_sym_int":{"as_name":")" + out + R"("}})");
  };
  const auto symbol = [](const std::string& name) { return R"({"as_sym_int":{"as_name":")" + name + R"("}})"; };
  std::string batch = node("torch.ops.aten.sym_size.int", {{"self", tensor("x")}, {"dim", number(0)}}, "b");
  const std::string was = tensor("b");
  batch.replace(batch.find(was), was.size(), symbol("b"));
  const auto net =
      made({batch, size("mul", symbol("b"), number(3), "m"), size("floordiv", symbol("m"), number(-4), "d"),
            size("add", symbol("d"), number(4), "e"), size("sub", symbol("e"), number(1), "f"),
            size("mod", symbol("m"), number(4), "g"),
            node("torch.ops.aten.view.default",
                 {{"self", tensor("x")}, {"size", R"({"as_sym_ints":[{"as_name":"f"},{"as_name":"m"}]})"}}, "y"),
            node("torch.ops.aten.mul.Tensor", {{"self", tensor("y")}, {"other", symbol("g")}}, "z")},
           {"z"});
  const Tensor z = (*net)(column_numbers());  // b 2, m 6, d -2, e 2, f 1, g 2
  CHECK(z.sizes() == Shape{1, 6});
  CHECK(z.to_vector<double>()[5] == 12);
}

TEST_CASE("unknown ops are listed all together, and register_op adds one") {
  const std::vector<std::string> nodes{
      node("torch.ops.mine.scale.default", {{"x", tensor("x")}, {"factor", R"({"as_float":2.5})"}}, "a", 5),
      node("torch.ops.mine.scale.default", {{"x", tensor("a")}}, "b", 6),
      node("torch.ops.aten.unheard_of.default", {{"self", tensor("b")}}, "c", 7)};
  const std::string message = message_of([&] { made(nodes, {"c"}); });
  CHECK(contains(message, "2 ops that Gradual does not have"));
  CHECK(contains(message, "mine.scale.default (2 calls)"));
  CHECK(contains(message, "mine.py:5: line 5"));
  CHECK(contains(message, "aten.unheard_of.default (1 call)"));
  pt2::register_op("mine.scale.default", "x factor=1.0",
                   [](const pt2::Arguments& a) -> pt2::Value { return a.tensor(0) * a.number(1); });
  const auto net = made({nodes[0], nodes[1]}, {"b"});
  CHECK((*net)(column_numbers()).to_vector<double>()[0] == 2.5);
}

TEST_CASE("arguments out of range are errors of the op") {
  const auto refusal = [](const std::string& target, std::vector<std::pair<std::string, std::string>> arguments) {
    arguments.insert(arguments.begin(), {"self", tensor("x")});
    const auto net = made({node("torch.ops.aten." + target, arguments, "a")}, {"a"});
    return message_of([&] { (*net)(column_numbers()); });
  };
  const auto scatter = [&](int start, int end, int step) {
    return refusal("slice_scatter.default", {{"src", tensor("x")},
                                             {"dim", number(1)},
                                             {"start", number(start)},
                                             {"end", number(end)},
                                             {"step", number(step)}});
  };
  CHECK(scatter(-3, 3, 1) == "nothing was thrown");
  CHECK(contains(scatter(1, 3, 1), "src is [2, 3]; the slice of [2, 3] is [2, 2]"));
  CHECK(contains(scatter(0, 3, 2), "the slice of [2, 3] is [2, 2]"));
  CHECK(contains(scatter(0, 3, 0), "a step of at least 1"));
  CHECK(contains(refusal("unfold.default", {{"dimension", number(1)}, {"size", number(1)}, {"step", number(0)}}),
                 "a step of at least 1"));
  CHECK(contains(refusal("histc.default", {{"bins", number(0)}}), "at least one bin"));
  CHECK(contains(refusal("histc.default", {{"bins", number(2)}, {"max", R"({"as_float":"Infinity"})"}}), "finite"));
  CHECK(contains(refusal("tensor_split.sections", {{"sections", number(0)}}), "at least one section"));
  CHECK(contains(refusal("unsqueeze.default", {{"dim", R"({"as_int":4294967296})"}}), "a dim"));
  CHECK(contains(refusal("select_scatter.default", {{"src", tensor("x")}, {"dim", number(0)}, {"index", number(2)}}),
                 "index 2 of 2"));
}

TEST_CASE("arguments of images out of range are errors of the op") {
  const auto refusal = [](const std::string& target, std::vector<std::pair<std::string, std::string>> arguments) {
    const auto image =
        node("torch.ops.aten.view.default", {{"self", tensor("x")}, {"size", R"({"as_ints":[1,1,2,3]})"}}, "image");
    arguments.insert(arguments.begin(), {target.starts_with("upsample") ? "input" : "self", tensor("image")});
    const auto net = made({image, node("torch.ops.aten." + target, arguments, "a")}, {"a"});
    return message_of([&] { (*net)(column_numbers()); });
  };
  const std::string on = R"({"as_bool":true})";
  CHECK(contains(refusal("max_pool2d.default", {{"kernel_size", number(2)}, {"stride", number(0)}, {"ceil_mode", on}}),
                 "strides of at least 1"));
  CHECK(contains(refusal("pixel_shuffle.default", {{"upscale_factor", number(0)}}), "at least 1"));
  CHECK(contains(refusal("pixel_unshuffle.default", {{"downscale_factor", number(0)}}), "at least 1"));
  CHECK(contains(refusal("channel_shuffle.default", {{"groups", number(0)}}), "at least 1"));
  CHECK(contains(refusal("upsample_nearest2d.vec",
                         {{"output_size", R"({"as_none":true})"}, {"scale_factors", R"({"as_bools":[true,true]})"}}),
                 "scale factors above 0"));
}

TEST_CASE("several indices are checked one by one, and scatter keeps integers") {
  const auto range = [](int start, int end, const std::string& name) {
    return node("torch.ops.aten.arange.start", {{"start", number(start)}, {"end", number(end)}}, name);
  };
  const auto picked = [&](int column) {
    const auto index = node("torch.ops.aten.index.Tensor",
                            {{"self", tensor("x")}, {"indices", R"({"as_tensors":[{"name":"i"},{"name":"j"}]})"}}, "a");
    return made({range(0, 1, "i"), range(column, column + 1, "j"), index}, {"a"});
  };
  CHECK((*picked(-3))(column_numbers()).item() == 1);
  CHECK((*picked(2))(column_numbers()).item() == 3);
  CHECK(contains(message_of([&] { (*picked(3))(column_numbers()); }), "index 3 is out of range; allowed are -3 to 2"));
  CHECK(contains(message_of([&] { (*picked(-4))(column_numbers()); }), "index -4 is out of range"));
  const auto scattered = [&](const std::string& overload, const std::string& name, const std::string& what) {
    return made({range(0, 4, "whole"), range(1, 3, "places"), range(7, 9, "source"),
                 node("torch.ops.aten.scatter." + overload,
                      {{"self", tensor("whole")}, {"dim", number(0)}, {"index", tensor("places")}, {name, what}}, "a")},
                {"a"});
  };
  const Tensor source = (*scattered("src", "src", tensor("source")))(column_numbers());
  CHECK(source.dtype() == DType::i64);
  CHECK(source.to_vector<double>() == std::vector<double>{0, 7, 8, 3});
  const Tensor value = (*scattered("value", "value", number(9)))(column_numbers());
  CHECK(value.dtype() == DType::i64);
  CHECK(value.to_vector<double>() == std::vector<double>{0, 9, 9, 3});
}

TEST_CASE("a copy of a buffer keeps its numbers when the buffer is written") {
  std::string graph = graph_of({node("torch.ops.aten.clone.default", {{"self", tensor("b")}}, "old"),
                                node("torch.ops.aten.add_.Tensor", {{"self", tensor("b")}, {"other", number(1)}}, "c")},
                               {"old", "c"});
  const auto put = [&](const std::string& before, const std::string& text) {
    graph.insert(graph.find(before) + before.size(), text);
  };
  put(R"("graph":{"inputs":[)", tensor("b") + ",");
  put(R"("tensor_values":{)", R"("b":{"dtype":7,"sizes":[{"as_int":2}]},)");
  put(R"("input_specs":[)", R"({"buffer":{"arg":{"name":"b"},"buffer_name":"b","persistent":true}},)");
  const std::string config =
      R"({"config":{"b":{"path_name":"weight_0","is_param":false,"use_pickle":false,"tensor_meta":{"dtype":7,)"
      R"("requires_grad":false,"sizes":[{"as_int":2}],"strides":[{"as_int":1}],"storage_offset":{"as_int":0}}}}})";
  const auto net = pt2::load_bytes(test::zip_of({{"m/models/model.json", graph},
                                                 {"m/data/weights/model_weights_config.json", config},
                                                 {"m/data/weights/weight_0", std::string(8, '\0')}}),
                                   "made.pt2");
  const std::vector<Tensor> out = (*net)(std::vector<Tensor>{column_numbers()});
  CHECK(out[0].to_vector<double>() == std::vector<double>{0, 0});
  CHECK(out[1].to_vector<double>() == std::vector<double>{1, 1});
  CHECK(net->state_dict().tensor("b").to_vector<double>() == std::vector<double>{1, 1});
}

TEST_CASE("an input or output that is no object of one key is refused") {
  const std::string whole = graph_of({node("torch.ops.aten.relu.default", {{"self", tensor("x")}}, "a")}, {"a"});
  for (const std::string& list : {std::string(R"("input_specs":[)"), std::string(R"("output_specs":[)")}) {
    std::string graph = whole;
    const std::size_t start = graph.find(list) + list.size();
    graph.replace(start, graph.find(']', start) - start, "{}");
    const std::string message = message_of([&] { pt2::load_bytes(test::archive_of(graph), "bad.pt2"); });
    CHECK(contains(message, "{} is not an object of one key"));
  }
}

TEST_CASE("a graph of a million nodes is refused before its objects are made; a cycle is an undefined name") {
  std::string nodes;
  for (int i = 0; i < 1'000'000; ++i) nodes += R"({"target":"n"},)";
  nodes.pop_back();
  CHECK_THROWS_WITH_AS(pt2::parse_graph(R"({"nodes":[)" + nodes + "]}"),
                       doctest::Contains("1000000 nodes; at most 500000 are read"), Error);
  const std::string cycle =
      test::graph_of({test::node("torch.ops.aten.relu.default", {{"self", test::tensor("b")}}, "a"),
                      test::node("torch.ops.aten.relu.default", {{"self", test::tensor("a")}}, "b")},
                     {"b"});
  CHECK_THROWS_WITH_AS(pt2::parse_graph(cycle), doctest::Contains("b is not defined"), Error);
}

TEST_CASE("what is refused, and why") {
  const auto refused = [](const std::string& bytes) { return message_of([&] { pt2::load_bytes(bytes, "bad.pt2"); }); };
  const auto graph = [&](const std::vector<std::string>& nodes, int version = 8) {
    return refused(test::archive_of(graph_of(nodes, {"a"}, version)));
  };
  CHECK(contains(refused("no zip"), "pt2 \"bad.pt2\""));
  CHECK(contains(refused(test::zip_of({{"serialized_exported_program.json", "{}"}})), "before 2.9"));
  CHECK(contains(refused(test::zip_of({{"m/version", "1"}})), "has no models/model.json"));
  CHECK(contains(refused(test::archive_of("{")), "not JSON"));
  CHECK(contains(refused(test::archive_of("{}")), "models/model.json"));
  CHECK(contains(graph({}, 9), "schema version 9.1; 8.x is read"));
  const std::string use = node("torch.ops.aten.relu.default", {{"self", tensor("b")}}, "a");
  const std::string back = node("torch.ops.aten.relu.default", {{"self", tensor("a")}}, "b");
  CHECK(contains(graph({use, back}), "b is not defined by an input or an earlier node"));  // a cycle
  const std::string twice = node("torch.ops.aten.relu.default", {{"self", tensor("x")}}, "a");
  CHECK(contains(graph({twice, twice}), "the name a is defined twice"));
  CHECK(contains(graph({node("torch.ops.aten.relu.default", {{"other", tensor("x")}, {"y", tensor("x")}}, "a")}),
                 "no argument 'y'"));
  CHECK(
      contains(graph({node("torch.ops.aten.mul.Tensor", {{"self", tensor("x")}}, "a")}), "lacks the argument 'other'"));
  const std::string ok = graph_of({twice}, {"a"});
  CHECK(contains(refused(test::zip_of({{"m/models/model.json", ok}, {"m/data/weights/model.pt", "pickle"}})),
                 "written by PyTorch 2.x, which keeps weights in a pickle"));
  const auto weights = [&](const std::string& meta) {
    const std::string config =
        R"({"config":{"w":{"path_name":"weight_0","is_param":true,"use_pickle":false,"tensor_meta":)" + meta + "}}}";
    return refused(test::zip_of({{"m/models/model.json", ok},
                                 {"m/data/weights/model_weights_config.json", config},
                                 {"m/data/weights/weight_0", std::string(8, 'x')}}));
  };
  const auto meta = [](const std::string& sizes, const std::string& strides, const std::string& offset = "0") {
    return R"({"dtype":7,"requires_grad":true,"sizes":[{"as_int":)" + sizes + R"(}],"strides":[{"as_int":)" + strides +
           R"(}],"storage_offset":{"as_int":)" + offset + "}}";
  };
  CHECK(weights(meta("2", "1")) == "nothing was thrown");
  CHECK(contains(weights(meta("3", "1")), "tensor w: data/weights/weight_0 has 2 elements, the tensor spans 3"));
  CHECK(contains(weights(meta("2", "1", "1")), "spans 3"));
  CHECK(contains(weights(meta("2", "-1")), "negative"));
  CHECK(contains(weights(meta("4611686018427387904", "4")), "overflow"));
}
