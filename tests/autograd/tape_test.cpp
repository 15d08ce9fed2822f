#include "helpers.h"

using namespace gradual;
using namespace gradual::testing;

namespace {

struct Net {
  Tensor x = leaf({1, 2, 3, 4}, {2, 2}, DType::f32);
  Tensor w = leaf({1, 0, 0, 1}, {2, 2}, DType::f32);
  Tensor loss;
  Net() {
    const ModuleScope module("fc");
    loss = tanh(matmul(x, w)).sum();
  }
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("tape: lists each node once, oldest first") {
  const Tensor x = leaf({1, 2});
  const Tensor a = x * 2;
  const Tensor y = (a * a + a).sum();
  const Tape tape = Tape::of(y);
  std::vector<std::string> names;
  for (const auto& n : tape.nodes()) names.push_back(op_name(*n));
  CHECK(names == std::vector<std::string>{"leaf", "mul", "mul", "add", "sum"});
  for (std::size_t i = 1; i < tape.nodes().size(); ++i)
    CHECK(tape.nodes()[i - 1]->sequence < tape.nodes()[i]->sequence);
  check_message(message_of([] { Tape::of(numbers({1})); }), {"Tape::of", "does not require grad"});
  CHECK(Tape::of(x).nodes().size() == 1);
}

TEST_CASE("tape: the table says op, shapes, dtypes, module, line, bytes and total") {
  const Net net;
  Tape tape = Tape::of(net.loss);
  tape.set_name(net.w, "fc.weight");
  const std::string text = tape.to_string();
  const std::string id = std::to_string(tape.nodes()[0]->sequence);
  check_message(
      text, {"inserted by", "leaf fc.weight", "matmul", "#" + id + " [2, 2] f32", "tape_test.cpp:", "fc", "5 nodes"});
  CHECK(tape.saved_bytes() == 3 * 16);  // x, w and tanh's output
  check_message(text, {"48 bytes saved"});
  CHECK(count(text, "\n") == 1 + 5 + 1);
  net.loss.backward();
  check_message(tape.to_string(), {" 0 bytes saved"});
}

TEST_CASE("tape: who cast what") {
  const Tensor x = leaf({1, 2}, {2}, DType::f16);
  const Tensor w = leaf({1, 2}, {2}, DType::f32);
  const std::string text = Tape::of(x * w).to_string();
  check_message(text, {"cast", "[2] f16", "promotion in mul"});
  const Tensor a = leaf({1, 2, 3, 4}, {2, 2}, DType::f32);
  Tensor y;
  {
    const amp::Autocast scope({.dtype = DType::bf16});
    y = matmul(a, a);
  }
  const std::string cast = Tape::of(y).to_string();
  check_message(cast, {"cast", "bf16", "matmul", "amp"});
}

TEST_CASE("tape: stepping back with the gradient in hand") {
  const Net net;
  Tape::Stepper stepper(net.loss);
  std::vector<std::string> names;
  std::uint64_t last = ~std::uint64_t{0};
  while (!stepper.done()) {
    const auto& step = stepper.next();
    names.push_back(op_name(*step.node));
    CHECK(step.node->sequence < last);
    last = step.node->sequence;
    REQUIRE(step.grads_out[0].defined());
    if (names.back() == "sum") {
      CHECK(values(step.grads_out[0]) == Values{1});
      CHECK(values(step.grads_in[0]) == Values{1, 1, 1, 1});
      check_message(to_string(step), {"sum at tape_test.cpp", "[] f32", "[2, 2] f32", "to input 0"});
    }
    if (names.back() == "matmul") CHECK(step.grads_in.size() == 2);
  }
  CHECK(names == std::vector<std::string>{"sum", "tanh", "matmul", "leaf", "leaf"});
  CHECK_THROWS_AS(stepper.next(), Error);
  const Tensor stepped = net.w.grad();
  net.w.zero_grad();
  Net fresh;
  fresh.loss.backward();
  CHECK(values(stepped) == values(fresh.w.grad()));
}

TEST_CASE("tape: a stepper may be let go halfway") {
  const Net net;
  {
    Tape::Stepper stepper(net.loss);
    stepper.next();
  }
  CHECK(!net.w.grad().defined());
  const Net fresh;
  fresh.loss.backward();
  CHECK(fresh.w.grad().defined());
}

TEST_CASE("tape: Graphviz") {
  const Net net;
  Tape tape = Tape::of(net.loss);
  tape.set_name(net.x, "x \"quoted\"");
  const std::string dot = tape.to_dot();
  CHECK(dot.starts_with("digraph"));
  CHECK(dot.ends_with("}\n"));
  check_message(dot, {"label=\"matmul\"", "[2, 2] f32", "x \\\"quoted\\\"", "fc"});
  CHECK(count(dot, "shape=record") == 5);
  CHECK(count(dot, "shape=ellipse") == 3);
  CHECK(count(dot, "->") == 3 + 4);  // an op to its value, a value to the op that used it
  const std::string id = std::to_string(tape.nodes()[2]->sequence);
  check_message(dot, {"v" + std::to_string(tape.nodes()[0]->sequence) + " -> o" + id, "o" + id + " -> v" + id});
}

TEST_CASE("tape: a value used twice by one op") {
  const Tensor x = leaf({3});
  const Tape tape = Tape::of(x * x);
  CHECK(count(tape.to_dot(), "->") == 3);
  CHECK(tape.saved_bytes() == 8);
}
