// The update of one parameter by an optimizer, as observers receive it (core/observe/observer.h).
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "observer.h"

namespace gradual {

struct UpdateEvent {
  std::string_view optimizer;  // its kind: "adam"
  std::optional<OpId> op;      // the op of the table that computes the update; none: the optimizer is written with ops
  const Tensor& parameter;
  const Tensor& target;           // what is written: the parameter, or for `op` its row-major copy
  const Tensor& gradient;         // for an optimizer that is written with ops unscaled, in the dtype of the arithmetic
  const Tensor& master;           // undefined: none
  const Tensor& compensation;     // of Kahan's sum; undefined: none
  std::span<const Tensor> state;  // in the optimizer's order, as stored between steps unless they are kept as codes
  // After the update by an optimizer that is written with ops: the weight and the state that it computed, before they
  // are rounded and stored.
  Tensor next = {};
  std::span<const Tensor> next_state = {};

  void tell_before() const;
  void tell_after() const;
};

}  // namespace gradual
