// A model for planted faults: a linear layer, a function of its numbers, and a linear layer, for the digits.
#pragma once

#include <gradual/gradual.h>

#include <functional>
#include <utility>

namespace gradual::test {

struct Between : nn::Module {
  std::function<Tensor(const Tensor&)> f;
  nn::Linear& in = register_module("in", nn::Linear(64, 64));
  nn::Linear& out = register_module("out", nn::Linear(64, 10));
  explicit Between(std::function<Tensor(const Tensor&)> between) : f(std::move(between)) {}
  Tensor forward(const Tensor& x) override { return out(f(in(x.reshape({x.size(0), 64})))); }
};

}  // namespace gradual::test
