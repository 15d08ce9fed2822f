// Backward, one node at a time.
//
// A network of three linear layers is small enough to read every number. The program prints the tape that forward
// recorded (ops, inputs, source lines, saved tensors), then backward as the engine runs it: newest node first, the
// gradient that it receives, the rule of the op, the gradients that it passes on. At the end backward() computes the
// same gradients in one call, and the tape is written as a drawing.
#include <gradual/gradual.h>

#include <algorithm>
#include <map>

#include "example.h"

using namespace gradual;

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = register_module("fc1", nn::Linear(3, 4));
  nn::Linear& fc2 = register_module("fc2", nn::Linear(4, 4));
  nn::Linear& head = register_module("head", nn::Linear(4, 2));

  Tensor forward(const Tensor& x) override {
    const Tensor h = relu(fc1(x));
    return head(h + tanh(fc2(h)));  // h is used twice: its gradients will be added
  }
};

// The rules of this network's nodes, for the gradient g of their result.
const std::map<std::string, const char*> kRules{
    {"cross_entropy", "logits get g * (softmax(logits) - one_hot(class)) / rows"},
    {"linear", "x gets g W; W gets g^T x; the bias gets the sum of g over rows"},
    {"add", "both terms get g"},
    {"tanh", "x gets g * (1 - y^2)"},
    {"relu", "x gets g where y > 0, else 0"},
    {"cast", "g is cast back to the dtype it came from"}};

Tensor loss_of(Net& net, const Tensor& x, const Tensor& classes, bool amp) {
  const amp::Autocast scope({.dtype = DType::f16, .device = x.device(), .enabled = amp});
  return cross_entropy(net(x), classes);
}

void print_step(int number, const Tape& tape, const Tape::Stepper::Step& step) {
  const Node& node = *step.node;
  std::printf("\n--- step %d: #%llu %s %s\n", number, static_cast<unsigned long long>(node.sequence),
              op_name(node).c_str(), node.is_leaf() ? tape.name_of(node).c_str() : node.module);
  const auto rule = kRules.find(op_name(node));
  if (node.is_leaf()) std::printf("    gathered in grad()\n");
  else if (rule != kRules.end()) std::printf("    rule: %s\n", rule->second);
  std::printf("%s\n", to_string(step).c_str());
}

// The largest difference between the gradients left by stepping and those of backward() on a fresh tape.
double compare_with_backward(Net& net, const Tensor& x, const Tensor& classes, bool amp) {
  std::vector<Tensor> stepped;
  for (const Tensor& p : net.parameters()) stepped.push_back(p.grad().clone());
  net.zero_grad();
  loss_of(net, x, classes, amp).backward();
  double largest = 0;
  for (std::size_t i = 0; i < stepped.size(); ++i)
    largest = std::max(largest, max(abs(stepped[i] - net.parameters()[i].grad())).item());
  return largest;
}

void write(const std::string& path, const std::string& text) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file) throw std::runtime_error("cannot write " + path);
  const bool written = std::fputs(text.c_str(), file) >= 0;
  if (std::fclose(file) != 0 || !written) throw std::runtime_error("cannot write " + path);
}

constexpr const char* kUsage =
    "Backward, one node at a time.\n"
    "  step_through                              # f32\n"
    "  step_through --amp                        # forward under autocast: the casts, and the dtype of each gradient\n"
    "  step_through --dot tape.dot               # then: dot -Tsvg tape.dot > tape.svg\n";

void body(example::Arguments& arguments) {
  const bool amp = arguments.flag("--amp");
  const std::string dot = arguments.text("--dot", "");
  arguments.done();

  manual_seed(1);
  Net net;
  net.to(example::device());
  const Tensor x = from_data(std::vector<double>{1, -2, 0.5, 0.25, 3, -1}, {2, 3}, example::on_device());
  const Tensor classes = from_data(std::vector<std::int64_t>{0, 1}, {2}, example::on_device(DType::i64));
  const Tensor loss = loss_of(net, x, classes, amp);

  Tape tape = Tape::of(loss);
  for (const auto& [path, parameter] : net.named_parameters()) tape.set_name(parameter, path);
  tape.set_name(loss, "loss");
  std::printf("loss: %.6f\n\nThe tape, oldest first:\n%s", loss.item(), tape.to_string().c_str());

  if (!dot.empty()) {
    write(dot, tape.to_dot());
    std::printf("\nwrote %s; draw it with: dot -Tsvg %s > tape.svg\n", dot.c_str(), dot.c_str());
  }

  std::printf("\nBackward, newest first:\n");
  int steps = 0;
  for (Tape::Stepper stepper(loss); !stepper.done();) print_step(++steps, tape, stepper.next());

  std::printf("\n");
  example::claim(steps == static_cast<int>(tape.nodes().size()), "every node of the tape ran once");
  example::claim(compare_with_backward(net, x, classes, amp) == 0,
                 "stepping leaves the gradients of backward(), to the bit");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage); }
