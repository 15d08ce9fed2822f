// A network and its tape: forward records, backward reads the record from its end.
#include <gradual/gradual.h>

#include <cstdio>
#include <fstream>

using namespace gradual;

namespace {

struct Net : nn::Module {
  nn::Linear& hidden = register_module("hidden", nn::Linear(2, 2));
  nn::Linear& out = register_module("out", nn::Linear(2, 1));
  Tensor forward(const Tensor& x) override { return out(relu(hidden(x))); }
};

}  // namespace

int main() {
  Net net;
  {
    const NoGrad no_grad;  // writing weights by hand is no part of the tape
    net.hidden.weight.copy_(tensor({{1, 2}, {-1, 1}}));
    net.hidden.bias.copy_(tensor({0.5, 0}));
    net.out.weight.copy_(tensor({{2, 3}}));
    net.out.bias.copy_(tensor({1}));
  }
  const Tensor x = tensor({{1, -0.25}}), target = tensor({{2}});
  const Tensor y = net(x);
  const Tensor loss = mse_loss(y, target);
  std::printf("y = %g, loss = %g\n", y.item(), loss.item());

  Tape tape = Tape::of(loss);
  for (const auto& [path, parameter] : net.named_parameters()) tape.set_name(parameter, path);
  std::printf("\n%s", tape.to_string().c_str());
  std::ofstream("tape.dot") << tape.to_dot();  // dot -Tsvg tape.dot > tape.svg

  std::printf("\n");
  for (Tape::Stepper stepper(loss); !stepper.done();) {
    const auto& step = stepper.next();
    if (!step.node->is_leaf()) std::printf("%s\n", to_string(step).c_str());
  }

  // The gradient of a weight by its definition: move the weight a little and see how the loss moves.
  const NoGrad no_grad;
  net.out.weight.copy_(tensor({{2 + 0x1p-10, 3}}));
  const double moved = mse_loss(net(x), target).item();
  std::printf("\nby backward:       %.2f\nby the definition: %.2f\n", net.out.weight.grad()[0][0].item(),
              (moved - loss.item()) / 0x1p-10);
}
