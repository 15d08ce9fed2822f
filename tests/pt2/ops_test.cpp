// Rows of the op table where PyTorch's numbers, dtypes or gradients are easily missed. Expected values are PyTorch
// 2.15's.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/pt2/module.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "archive_writer.h"
#include "support/files.h"

using namespace gradual;
using test::graph_of;
using test::made;
using test::message_of;
using test::node;
using test::number;
using test::tensor;

namespace {

using Named = std::vector<std::pair<std::string, std::string>>;

std::string real(const std::string& text) { return R"({"as_float":)" + text + "}"; }
std::string truth(bool value) { return std::string(R"({"as_bool":)") + (value ? "true}" : "false}"); }
std::string none() { return R"({"as_none":true})"; }
std::string op(const std::string& name, const Named& arguments, const std::string& output) {
  return node("torch.ops.aten." + name, arguments, output);
}

// One op of x.
Tensor result_of(const std::string& name, Named arguments, const Tensor& x) {
  arguments.insert(arguments.begin(), {"self", tensor("x")});
  return (*made({op(name, arguments, "y")}, {"y"}))(x);
}
std::vector<double> gradient_of(const std::string& name, const Named& arguments, const std::vector<float>& values) {
  Tensor x = from_data(values, {static_cast<std::int64_t>(values.size()) / 3, 3});
  x.set_requires_grad(true);
  sum(result_of(name, arguments, x)).backward();
  return x.grad().to_vector<double>();
}

// `graph` with `text` behind the first `before`.
std::string with(std::string graph, const std::string& before, const std::string& text) {
  return graph.insert(graph.find(before) + before.size(), text);
}
// What tensor_values says about a tensor.
std::string layout(const std::string& name, const std::string& sizes, const std::string& strides) {
  const auto list = [](const std::string& numbers) {
    std::string json;
    for (const char c : numbers) json += (json.empty() ? "" : ",") + std::string(R"({"as_int":)") + c + "}";
    return "[" + json + "]";
  };
  return '"' + name + R"(":{"dtype":7,"sizes":)" + list(sizes) + R"(,"strides":)" + list(strides) + "},";
}

}  // namespace

TEST_CASE("quotients of floats that are rounded down, and remainders, are exact") {
  const Tensor x = from_data(std::vector<float>{1, -1, 7.5F, -7.5F, 5, -5}, {2, 3});
  const auto of = [&](const std::string& name, const std::string& by) {
    return result_of(name, {{"other", real(by)}}, x).to_vector<float>();
  };
  CHECK(of("floor_divide.default", "0.1") == std::vector<float>{9, -10, 74, -75, 49, -50});
  CHECK(of("remainder.Scalar", "0.1")[0] == std::fmod(1.0F, 0.1F));
  CHECK(of("remainder.Scalar", "1e10") == std::vector<float>{1, 1e10F, 7.5F, 1e10F, 5, 1e10F});
  CHECK(of("fmod.Scalar", "1e10") == std::vector<float>{1, -1, 7.5F, -7.5F, 5, -5});
  CHECK(of("remainder.Scalar", "-2") == std::vector<float>{-1, -1, -0.5F, -1.5F, -1, -1});
  CHECK(of("fmod.Scalar", "-2") == std::vector<float>{1, -1, 1.5F, -1.5F, 1, -1});
  const Tensor large = from_data(std::vector<double>{1e15, 123456.7, 3e30}, {1, 3}, {.dtype = DType::f64});
  const Tensor rest = result_of("remainder.Scalar", {{"other", real("0.3")}}, large);
  CHECK(rest.to_vector<double>() ==
        std::vector<double>{std::fmod(1e15, 0.3), std::fmod(123456.7, 0.3), std::fmod(3e30, 0.3)});
  CHECK(gradient_of("remainder.Scalar", {{"other", number(2)}}, {1, 5, -5}) == std::vector<double>{1, 1, 1});
}

TEST_CASE("a remainder's gradient in the divisor is the negative quotient") {
  Tensor x = from_data(std::vector<float>{7.5F, -7.5F, 6}, {1, 3});
  x.set_requires_grad(true);
  const std::string divisor = op("add.Tensor", {{"self", tensor("x")}, {"other", number(1)}}, "d");
  const auto slope = [&](const std::string& name) {
    x.zero_grad();
    const auto net = made({divisor, op(name, {{"self", real("20")}, {"other", tensor("d")}}, "y")}, {"y"});
    sum((*net)(x)).backward();
    return x.grad().to_vector<double>();
  };
  CHECK(slope("remainder.Tensor") == std::vector<double>{-2, 4, -2});  // 20 // 8.5, 20 // -6.5, 20 // 7
  CHECK(slope("fmod.Tensor") == std::vector<double>{-2, 3, -2});
}

TEST_CASE("integers are divided and their bits combined exactly") {
  const Named to_integers{{"self", tensor("x")}, {"dtype", R"({"as_scalar_type":5})"}};
  const auto of = [&](const std::string& name, int by) {
    const std::string last = op(name, {{"self", tensor("i")}, {"other", number(by)}}, "y");
    const Tensor x = from_data(std::vector<float>{7, -7, 6, -6, 1, 0}, {2, 3});
    const Tensor y = (*made({op("to.dtype", to_integers, "i"), last}, {"y"}))(x);
    CHECK(y.dtype() == DType::i64);
    return y.to_vector<std::int64_t>();
  };
  using Numbers = std::vector<std::int64_t>;
  CHECK(of("floor_divide.default", 2) == Numbers{3, -4, 3, -3, 0, 0});
  CHECK(of("remainder.Scalar", -4) == Numbers{-1, -3, -2, -2, -3, 0});
  CHECK(of("fmod.Scalar", -4) == Numbers{3, -3, 2, -2, 1, 0});
  CHECK(of("bitwise_and.Scalar", 3) == Numbers{3, 1, 2, 2, 1, 0});
  CHECK(of("__or__.Scalar", 8) == Numbers{15, -7, 14, -6, 9, 8});
  CHECK(of("bitwise_xor.Scalar", 1) == Numbers{6, -8, 7, -5, 0, 1});
  CHECK(of("__rshift__.Scalar", 1) == Numbers{3, -4, 3, -3, 0, 0});
  CHECK(of("__lshift__.Scalar", 2) == Numbers{28, -28, 24, -24, 4, 0});
  const auto by_zero = made(
      {op("to.dtype", to_integers, "i"), op("remainder.Scalar", {{"self", tensor("i")}, {"other", number(0)}}, "y")},
      {"y"});
  CHECK(message_of([&] { (*by_zero)(ones({1, 3})); }).find("an integer is divided by 0") != std::string::npos);
}

TEST_CASE("erfc keeps its digits where 1 - erf has none") {
  const Tensor x = from_data(std::vector<float>{-1, 4, 9}, {1, 3});
  const std::vector<float> y = result_of("erfc.default", {}, x).to_vector<float>();
  const double arguments[] = {-1, 4, 9};
  for (std::size_t i = 0; i < 3; ++i) CHECK(y[i] == static_cast<float>(std::erfc(arguments[i])));
  const double slope = gradient_of("erfc.default", {}, {0, 1, 2})[1];
  CHECK(slope == doctest::Approx(-2 / std::sqrt(3.14159265358979) * std::exp(-1)).epsilon(1e-6));
}

TEST_CASE("activations with bounds have no gradient at a bound") {
  const std::vector<float> at{-3, -1, 0, 1, 3, 6};
  CHECK(gradient_of("relu6.default", {}, at) == std::vector<double>{0, 0, 0, 1, 1, 0});
  CHECK(gradient_of("hardtanh.default", {}, at) == std::vector<double>{0, 0, 1, 0, 0, 0});
  CHECK(gradient_of("clamp.default", {{"min", number(-1)}, {"max", number(3)}}, at) ==
        std::vector<double>{0, 0, 1, 1, 0, 0});
  CHECK(gradient_of("clamp_min.default", {{"min", number(1)}}, at) == std::vector<double>{0, 0, 0, 0, 1, 1});
  const std::vector<double> gate = gradient_of("hardsigmoid.default", {}, at);
  CHECK(gate[0] == 0);
  CHECK(gate[2] == doctest::Approx(1.0 / 6));
  CHECK(gate[4] == 0);
  const std::vector<double> swish = gradient_of("hardswish.default", {}, at);
  CHECK(swish[0] == 0);
  CHECK(swish[4] == 1);
  Tensor x = from_data(std::vector<float>{NAN, -9, 9}, {1, 3});
  x.set_requires_grad(true);
  const std::vector<float> y = result_of("relu6.default", {}, x).to_vector<float>();
  CHECK(std::isnan(y[0]));
  CHECK(y[1] == 0);
  CHECK(y[2] == 6);
}

TEST_CASE("what becomes a number keeps NaN") {
  const Tensor x = from_data(std::vector<float>{NAN, -9, 9}, {1, 3});
  const Named named{{"threshold", number(1)}, {"value", number(5)}};
  const std::vector<float> above = result_of("threshold.default", named, x).to_vector<float>();
  CHECK(std::isnan(above[0]));
  CHECK(above[1] == 5);
  CHECK(above[2] == 9);
  const std::vector<float> shrunk = result_of("hardshrink.default", {{"lambd", number(9)}}, x).to_vector<float>();
  CHECK(std::isnan(shrunk[0]));
  CHECK(shrunk[1] == 0);
  CHECK(shrunk[2] == 0);
}

TEST_CASE("a median is NaN if an element is, and equal elements share its gradient") {
  using Numbers = std::vector<double>;
  CHECK(gradient_of("median.default", {}, {2, 2, 5}) == Numbers{0.5, 0.5, 0});
  CHECK(result_of("median.default", {}, from_data(std::vector<float>{4, 9, 2}, {1, 3})).item() == 4);
  const Tensor x = from_data(std::vector<float>{1, NAN, NAN, 3, 1, 2}, {2, 3});
  CHECK(std::isnan(result_of("median.default", {}, x).item()));
  for (const bool keep : {false, true}) {
    std::string median = op("median.dim", {{"self", tensor("x")}, {"dim", number(1)}, {"keepdim", truth(keep)}}, "y");
    median = with(median, R"({"as_tensor":{"name":"y"}})", R"(,{"as_tensor":{"name":"i"}})");
    const std::vector<Tensor> out = (*made({median}, {"y", "i"}))(std::vector<Tensor>{x});
    CHECK(out[0].sizes() == (keep ? Shape{2, 1} : Shape{2}));
    CHECK(std::isnan(out[0].to_vector<double>()[0]));
    CHECK(out[0].to_vector<double>()[1] == 2);
    CHECK(out[1].to_vector<std::int64_t>() == std::vector<std::int64_t>{1, 2});
  }
}

TEST_CASE("a number on the bound of two bins is in PyTorch's") {
  const auto bin_of = [](float v, int bins, int high) {
    const Named named{{"bins", number(bins)}, {"min", number(0)}, {"max", number(high)}};
    const std::vector<double> counts = result_of("histc.default", named, full({1, 3}, v)).to_vector<double>();
    return std::ranges::find(counts, 3.0) - counts.begin();
  };
  CHECK(bin_of(1, 49, 49) == 1);
  CHECK(bin_of(0.7F, 10, 1) == 7);
  CHECK(bin_of(1, 10, 1) == 9);
}

TEST_CASE("x log y at x = 0 has the slope log y, or 0") {
  Tensor x = from_data(std::vector<float>{0, 0, 2}, {1, 3}).set_requires_grad();
  const std::string shifted = op("exp.default", {{"self", tensor("x")}}, "e");
  const std::string twice = op("mul.Tensor", {{"self", tensor("e")}, {"other", number(2)}}, "t");
  const std::string fixed = op("detach.default", {{"self", tensor("t")}}, "y");
  const std::string logarithm = op("xlogy.Tensor", {{"self", tensor("x")}, {"other", tensor("y")}}, "z");
  const Tensor z = (*made({shifted, twice, fixed, logarithm}, {"z"}))(x);
  sum(z).backward();
  CHECK(z.to_vector<double>()[0] == 0);
  CHECK(x.grad().to_vector<double>()[0] == doctest::Approx(std::log(2.0)));
  CHECK(x.grad().to_vector<double>()[2] == doctest::Approx(std::log(2.0) + 2));
  for (const char* y : {"0.0", "-1.0", "\"Infinity\""}) {
    CAPTURE(y);
    CHECK(gradient_of("xlogy.Scalar_Other", {{"other", real(y)}}, {0, 0, 0}) == std::vector<double>{0, 0, 0});
    const Tensor at_zero = result_of("xlogy.Scalar_Other", {{"other", real(y)}}, zeros({1, 3}));
    CHECK(at_zero.to_vector<double>() == std::vector<double>{0, 0, 0});
  }
}

TEST_CASE("a weight norm over no dim, and over all") {
  const Tensor x = from_data(std::vector<float>{3, 4, -12}, {1, 3});
  const auto of = [&](const std::string& v, int dim) {
    const Named named{{"v", tensor(v)}, {"g", tensor("g")}, {"dim", number(dim)}};
    const auto net = made({op("squeeze.dim", {{"self", tensor("x")}, {"dim", number(0)}}, "row"),
                           op("ones_like.default", {{"self", tensor(v)}}, "g"), op("_weight_norm.default", named, "y")},
                          {"y"});
    return (*net)(x).to_vector<double>();
  };
  CHECK(of("row", 0) == std::vector<double>{1, 1, -1});
  CHECK(of("x", 1) == std::vector<double>{1, 1, -1});
  CHECK(of("x", -1)[0] == doctest::Approx(3.0 / 13));
  CHECK(of("x", -1)[2] == doctest::Approx(-12.0 / 13));
}

TEST_CASE("a place of a large image is exact where the points are bf16") {
  const auto sizes = [](const std::string& list) { return R"({"as_ints":[)" + list + "]}"; };
  const std::vector<std::string> nodes{
      op("arange.default", {{"end", number(400)}, {"dtype", R"({"as_scalar_type":7})"}}, "a"),
      op("view.default", {{"self", tensor("a")}, {"size", sizes("1,1,20,20")}}, "image"),
      op("ones.default", {{"size", sizes("1,1,1,2")}, {"dtype", R"({"as_scalar_type":13})"}}, "points"),
      op("grid_sampler.default",
         {{"input", tensor("image")},
          {"grid", tensor("points")},
          {"interpolation_mode", number(1)},
          {"padding_mode", number(0)},
          {"align_corners", truth(true)}},
         "y")};
  CHECK((*made(nodes, {"y"}))(zeros({1, 3})).item() == 399);
}

TEST_CASE("nan_to_num leaves integers") {
  const std::string integers = op("to.dtype", {{"self", tensor("x")}, {"dtype", R"({"as_scalar_type":5})"}}, "i");
  const auto net = made({integers, op("nan_to_num.default", {{"self", tensor("i")}}, "y")}, {"y"});
  const Tensor y = (*net)(from_data(std::vector<float>{1, 2, 3}, {1, 3}));
  CHECK(y.dtype() == DType::i64);
  CHECK(y.to_vector<double>() == std::vector<double>{1, 2, 3});
}

TEST_CASE("three operands promote as in PyTorch, and a factor is applied in the common dtype") {
  const std::string small = op("gt.Scalar", {{"self", tensor("x")}, {"other", number(2)}}, "mask");
  const std::string integers = op("mul.Tensor", {{"self", tensor("mask")}, {"other", number(3)}}, "i");
  const std::string scalar = op("sum.default", {{"self", tensor("x")}}, "s");
  const Tensor x = from_data(std::vector<float>{1, 2, 3}, {1, 3});
  const auto of = [&](const std::string& name, const Named& arguments) {
    return (*made({small, integers, scalar, op(name, arguments, "y")}, {"y"}))(x);
  };
  const Tensor sum_of =
      of("addcmul.default", {{"self", tensor("i")}, {"tensor1", tensor("s")}, {"tensor2", tensor("i")}});
  CHECK(sum_of.dtype() == DType::f32);
  CHECK(sum_of.to_vector<double>() == std::vector<double>{0, 0, 21});
  const Tensor raised = of("clamp.Tensor", {{"self", tensor("i")}, {"min", tensor("s")}});
  CHECK(raised.dtype() == DType::f32);
  CHECK(raised.to_vector<double>() == std::vector<double>{6, 6, 6});
  const Tensor half = of("clamp.default", {{"self", tensor("i")}, {"min", real("0.5")}});
  CHECK(half.dtype() == DType::f32);
  CHECK(half.to_vector<double>() == std::vector<double>{0.5, 0.5, 3});
  CHECK(message_of([&] {
          of("addcdiv.default", {{"self", tensor("i")}, {"tensor1", tensor("i")}, {"tensor2", tensor("i")}});
        }).find("floating for a division") != std::string::npos);

  const std::string narrow = op("to.dtype", {{"self", tensor("x")}, {"dtype", R"({"as_scalar_type":6})"}}, "h");
  const auto first = [&](const std::string& name, const std::string& self, const std::string& other) {
    const Named arguments{{"self", tensor(self)}, {"other", tensor(other)}, {"alpha", number(2)}};
    return (*made({narrow, op(name, arguments, "y")}, {"y"}))(full({1, 3}, 60000)).to_vector<float>()[0];
  };
  CHECK(first("add.Tensor", "x", "h") == 180000);  // 2 h is not a number of f16
  CHECK(first("rsub.Tensor", "h", "x") == -60000);
}

TEST_CASE("lerp with a weight of 1 is the end itself") {
  const std::string end = op("clamp_max.default", {{"self", tensor("x")}, {"max", number(1)}}, "end");
  const std::string weight = op("ones_like.default", {{"self", tensor("x")}}, "w");
  const auto at = [&](const std::string& name, const std::string& by) {
    const Named arguments{{"self", tensor("x")}, {"end", tensor("end")}, {"weight", by}};
    return (*made({end, weight, op(name, arguments, "y")}, {"y"}))(full({1, 3}, 1e8)).to_vector<double>()[0];
  };
  CHECK(at("lerp.Scalar", real("1.0")) == 1);
  CHECK(at("lerp.Tensor", tensor("w")) == 1);
  CHECK(at("lerp.Scalar", real("0.0")) == 1e8);
}

TEST_CASE("whether reshape copied is read from the file's strides") {
  // t = relu(x).t(); t += 1; r = t.reshape(6); r *= 2: PyTorch's t keeps its strides, so that r is a copy.
  const std::vector<std::string> nodes{
      op("relu.default", {{"self", tensor("x")}}, "a"), op("t.default", {{"self", tensor("a")}}, "t"),
      op("add_.Tensor", {{"self", tensor("t")}, {"other", number(1)}}, "t1"),
      op("reshape.default", {{"self", tensor("t1")}, {"shape", R"({"as_ints":[6]})"}}, "r"),
      op("mul_.Tensor", {{"self", tensor("r")}, {"other", number(2)}}, "r2")};
  const auto run = [&](const std::string& strides_of_t) {
    const std::string graph = with(graph_of(nodes, {"a", "t", "r2"}), R"("tensor_values":{)",
                                   layout("t", "32", strides_of_t) + layout("r", "6", "1"));
    const Tensor x = from_data(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
    return (*pt2::load_bytes(test::archive_of(graph), "made.pt2"))(std::vector<Tensor>{x});
  };
  const std::vector<Tensor> copied = run("13");
  CHECK(copied[0].to_vector<double>() == std::vector<double>{2, 3, 4, 5, 6, 7});
  CHECK(copied[1].contiguous().to_vector<double>() == std::vector<double>{2, 5, 3, 6, 4, 7});
  CHECK(copied[2].to_vector<double>() == std::vector<double>{4, 10, 6, 12, 8, 14});
  const std::vector<Tensor> shared = run("21");
  CHECK(shared[1].contiguous().to_vector<double>() == std::vector<double>{4, 10, 6, 12, 8, 14});
  CHECK(shared[0].to_vector<double>() == std::vector<double>{4, 6, 8, 10, 12, 14});
}

TEST_CASE("a move to a device keeps the dtype that a tensor has here; a cast gives the one of the file") {
  const std::string f32 = R"({"as_scalar_type":7})";
  const std::vector<std::string> nodes{
      op("relu.default", {{"self", tensor("x")}}, "a"),
      op("to.dtype_layout", {{"self", tensor("a")}, {"dtype", f32}, {"layout", R"({"as_layout":7})"}}, "moved"),
      op("to.dtype", {{"self", tensor("a")}, {"dtype", f32}}, "cast")};
  const std::string graph = with(graph_of(nodes, {"moved", "cast"}), R"("tensor_values":{)",
                                 layout("a", "32", "21") + layout("moved", "32", "21") + layout("cast", "32", "21"));
  const Tensor x = from_data(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3}).to(DType::bf16);
  const std::vector<Tensor> out = (*pt2::load_bytes(test::archive_of(graph), "made.pt2"))(std::vector<Tensor>{x});
  CHECK(out[0].dtype() == DType::bf16);
  CHECK(out[1].dtype() == DType::f32);
}

TEST_CASE("running statistics that the caller gives are not changed, nor copies of them") {
  const Named arguments{{"input", tensor("x")},        {"weight", none()},           {"bias", none()},
                        {"running_mean", tensor("m")}, {"running_var", tensor("v")}, {"training", truth(true)},
                        {"momentum", real("0.5")},     {"eps", real("1e-5")},        {"cudnn_enabled", truth(false)}};
  std::string graph =
      graph_of({op("clone.default", {{"self", tensor("m")}}, "old"), op("batch_norm.default", arguments, "y"),
                op("alias.default", {{"self", tensor("m")}}, "new")},
               {"old", "y", "new"});
  for (const char* const name : {"v", "m"}) {
    graph = with(graph, R"("graph":{"inputs":[)", tensor(name) + ",");
    graph = with(graph, R"("input_specs":[)", R"({"user_input":{"arg":)" + tensor(name) + "}},");
  }
  graph = with(graph, R"("tensor_values":{)", layout("m", "3", "1") + layout("v", "3", "1"));
  const auto net = pt2::load_bytes(test::archive_of(graph), "made.pt2");
  const Tensor mean = zeros({3});
  const Tensor variance = ones({3});
  const std::vector<Tensor> out = (*net)(std::vector<Tensor>{mean, variance, full({2, 3}, 4)});
  CHECK(out[0].to_vector<double>() == std::vector<double>{0, 0, 0});
  CHECK(out[2].to_vector<double>() == std::vector<double>{2, 2, 2});
  CHECK(mean.to_vector<double>() == std::vector<double>{0, 0, 0});
  CHECK(variance.to_vector<double>() == std::vector<double>{1, 1, 1});
}

TEST_CASE("ops on matrices give PyTorch's numbers") {
  const Tensor x = from_data(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  const auto of = [&](const std::string& name, Named arguments) {
    return result_of(name, std::move(arguments), x).contiguous().to_vector<double>();
  };
  const auto ints = [](const std::string& list) { return R"({"as_ints":[)" + list + "]}"; };
  using Numbers = std::vector<double>;
  CHECK(of("rot90.default", {{"k", number(1)}, {"dims", ints("0,1")}}) == Numbers{3, 6, 2, 5, 1, 4});
  CHECK(of("rot90.default", {{"k", number(-1)}, {"dims", ints("0,1")}}) == Numbers{4, 1, 5, 2, 6, 3});
  CHECK(of("tensordot.default", {{"other", tensor("x")}, {"dims_self", ints("1")}, {"dims_other", ints("1")}}) ==
        Numbers{14, 32, 32, 77});
  const Tensor embedded = result_of("diag_embed.default", {{"offset", number(1)}}, x);
  CHECK(embedded.sizes() == Shape{2, 4, 4});
  CHECK(select(embedded, 0, 1).to_vector<double>() == Numbers{0, 4, 0, 0, 0, 0, 5, 0, 0, 0, 0, 6, 0, 0, 0, 0});
  const Tensor kron = result_of("kron.default", {{"other", tensor("x")}}, x);
  CHECK(kron.sizes() == Shape{4, 9});
  CHECK(select(kron, 0, 1).to_vector<double>() == Numbers{4, 5, 6, 8, 10, 12, 12, 15, 18});
  CHECK(of("logcumsumexp.default", {{"dim", number(1)}})[2] == doctest::Approx(3.4076058864593506));
  CHECK(of("cdist.default", {{"x2", tensor("x")}})[1] == doctest::Approx(5.196152210235596));
  const std::string row = op("select.int", {{"self", tensor("x")}, {"dim", number(0)}, {"index", number(0)}}, "row");
  const auto places = [&](bool right) {
    const Named arguments{{"self", tensor("x")}, {"boundaries", tensor("row")}, {"right", truth(right)}};
    return (*made({row, op("bucketize.Tensor", arguments, "y")}, {"y"}))(x).to_vector<double>();
  };
  CHECK(places(false) == Numbers{0, 1, 2, 3, 3, 3});
  CHECK(places(true) == Numbers{1, 2, 3, 3, 3, 3});
  const std::string weight = op("add.Tensor", {{"self", tensor("row")}, {"other", number(1)}}, "g");
  const Named normed{{"v", tensor("x")}, {"g", tensor("g")}, {"dim", number(1)}};
  const std::vector<double> scaled =
      (*made({row, weight, op("_weight_norm.default", normed, "y")}, {"y"}))(x).to_vector<double>();
  CHECK(scaled[0] == doctest::Approx(2 / std::sqrt(17.0)));
  CHECK(scaled[5] == doctest::Approx(4 * 6 / std::sqrt(45.0)));
}

TEST_CASE("ops on images and volumes give PyTorch's numbers") {
  const Tensor x = from_data(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  const auto ints = [](const std::string& list) { return R"({"as_ints":[)" + list + "]}"; };
  const auto of = [&](const std::string& sizes, const std::string& name, Named arguments) {
    arguments.insert(arguments.begin(), {name.find("upsample") == 0 ? "input" : "self", tensor("image")});
    const std::string view = op("view.default", {{"self", tensor("x")}, {"size", ints(sizes)}}, "image");
    return (*made({view, op(name, arguments, "y")}, {"y"}))(x).contiguous().to_vector<double>();
  };
  const Named windows{
      {"kernel_size", ints("2,2")}, {"dilation", ints("1,1")}, {"padding", ints("0,0")}, {"stride", ints("1,1")}};
  using Numbers = std::vector<double>;
  CHECK(of("1,1,2,3", "im2col.default", windows) == Numbers{1, 2, 2, 3, 4, 5, 5, 6});
  CHECK(of("1,6,1", "col2im.default",
           {{"output_size", ints("2,3")},
            {"kernel_size", ints("2,3")},
            {"dilation", ints("1,1")},
            {"padding", ints("0,0")},
            {"stride", ints("1,1")}}) == Numbers{1, 2, 3, 4, 5, 6});
  CHECK(of("1,2,3", "col2im.default",
           {{"output_size", ints("1,4")},
            {"kernel_size", ints("1,2")},
            {"dilation", ints("1,1")},
            {"padding", ints("0,0")},
            {"stride", ints("1,1")}}) == Numbers{1, 2 + 4, 3 + 5, 6});
  CHECK(of("1,1,2,3", "max_pool2d.default",
           {{"kernel_size", ints("1,2")}, {"stride", number(1)}, {"dilation", ints("1,2")}}) == Numbers{3, 6});
  CHECK(of("1,1,2,3,1", "max_pool3d.default", {{"kernel_size", ints("2,2,1")}, {"stride", number(1)}}) ==
        Numbers{5, 6});
  const Named to_five{{"output_size", ints("5")}, {"align_corners", truth(false)}, {"scale_factors", none()}};
  CHECK(of("1,2,3", "upsample_linear1d.vec", to_five)[3] == doctest::Approx(2.6));
  CHECK(of("1,2,3", "upsample_nearest1d.vec", {{"output_size", ints("5")}, {"scale_factors", none()}}) ==
        Numbers{1, 1, 2, 2, 3, 4, 4, 5, 5, 6});
  // 1 2 3 over 4 5 6, one wide: the window of 2 x 2 spans both slices.
  const std::string volume = op("view.default", {{"self", tensor("x")}, {"size", ints("1,1,2,3,1")}}, "v");
  const std::string part = op("slice.Tensor", {{"self", tensor("v")}, {"dim", number(3)}, {"end", number(2)}}, "w");
  const Named arguments{{"input", tensor("v")}, {"weight", tensor("w")}};
  const Tensor y = (*made({volume, part, op("conv3d.default", arguments, "y")}, {"y"}))(x);
  CHECK(y.sizes() == Shape{1, 1, 1, 2, 1});
  CHECK(y.to_vector<double>() == Numbers{1 + 4 + 16 + 25, 2 + 6 + 20 + 30});
}

TEST_CASE("a write into a part of a tensor goes through to it") {
  const Tensor x = from_data(std::vector<float>{1, 2, 3, 4, 5, 6}, {2, 3});
  const auto parts_of = [](std::string json, const std::vector<std::string>& names) {
    const std::string single = R"([{"as_tensor":{"name":")" + names[0] + R"("}}])";
    std::string list = R"([{"as_tensors":[)";
    for (std::size_t i = 0; i < names.size(); ++i) list += (i ? "," : "") + (R"({"name":")" + names[i]) + R"("})";
    return json.replace(json.find(single), single.size(), list + "]}]");
  };
  const auto after_write = [&](const std::string& part, const std::vector<std::string>& names) {
    const auto net = made({op("relu.default", {{"self", tensor("x")}}, "a"), parts_of(part, names),
                           op("add_.Tensor", {{"self", tensor(names[1])}, {"other", number(10)}}, "done")},
                          {"a", names[0]});
    return (*net)(std::vector<Tensor>{x})[0].to_vector<double>();
  };
  using Numbers = std::vector<double>;
  const std::string rows = op("unbind.int", {{"self", tensor("a")}, {"dim", number(0)}}, "p");
  CHECK(after_write(rows, {"p", "q"}) == Numbers{1, 2, 3, 14, 15, 16});
  const std::string halves =
      op("chunk.default", {{"self", tensor("a")}, {"chunks", number(2)}, {"dim", number(1)}}, "p");
  CHECK(after_write(halves, {"p", "q"}) == Numbers{1, 2, 13, 4, 5, 16});
  const std::string ones_of =
      op("split.Tensor", {{"self", tensor("a")}, {"split_size", number(1)}, {"dim", number(1)}}, "p");
  CHECK(after_write(ones_of, {"p", "q", "r"}) == Numbers{1, 12, 3, 4, 15, 6});
}

TEST_CASE("a model that switches autocast on is refused, one that switches it off is not") {
  const std::string body = R"({"graph":{"inputs":[)" + tensor("u") + R"(],"outputs":[)" + tensor("v") +
                           R"(],"nodes":[)" + op("relu.default", {{"self", tensor("u")}}, "v") + "]}}";
  const auto region = [&](bool on, int dtype) {
    const std::string code = R"({"as_scalar_type":)" + std::to_string(dtype) + "}";
    return node("torch.ops.higher_order.wrap_with_autocast",
                {{"", R"({"as_string":"cpu"})"},
                 {"", code},
                 {"", truth(on)},
                 {"", truth(false)},
                 {"", R"({"as_graph":{"name":"g",)" + body.substr(1) + "}"},
                 {"", tensor("x")}},
                "y");
  };
  constexpr int kBf16 = 13;
  CHECK((*made({region(false, kBf16)}, {"y"}))(full({1, 3}, -2)).to_vector<double>()[0] == 0);
  const std::string message = message_of([&] { made({region(true, kBf16)}, {"y"}); });
  CHECK(message.find("switches torch.autocast on, to bf16") != std::string::npos);
}
