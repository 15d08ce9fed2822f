// A classifier that reads an image row by row.
#pragma once

#include <gradual/gradual.h>

namespace models {

using namespace gradual;

// Images [N, C, H, W] are H rows of C W numbers; the last hidden state of an LSTM gives the logits [N, classes].
struct RowReader : nn::Module {
  RowReader(std::int64_t row, std::int64_t hidden, std::int64_t classes)
      : lstm(register_module("lstm", nn::LSTM(row, hidden))),
        head(register_module("head", nn::Linear(hidden, classes))) {}

  Tensor forward(const Tensor& x) override {
    const Tensor rows = flatten(transpose(x, 1, 2), 2);  // [N, H, C W]
    return head(select(lstm(rows), 1, -1));
  }

  nn::LSTM& lstm;
  nn::Linear& head;
};

}  // namespace models
