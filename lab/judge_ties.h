// Ops that choose one of several elements (max pools, max, topk, sort ..): where elements are as large as each other,
// or nearer than their errors, another implementation may choose another one. Then another element has the gradient,
// and indices differ.
#pragma once

#include "../pt2/plan.h"

namespace gradual::lab {

bool chooses(const pt2::Step& step);

// All tensors are f64, on the CPU. `error` is that of x; undefined: none. y are the chosen values of `step`, which
// chooses among the elements of x.

// How much gradient each element of x may have more or less, |gradient| being that of y. Undefined if there is no tie.
Tensor contested_gradient(const pt2::Step& step, const Tensor& x, const Tensor& error, const Tensor& y,
                          const Tensor& gradient);
// Of the sizes of y: 1 where several elements of x may be the chosen one, else 0. Undefined if there is no tie.
Tensor contested_choice(const pt2::Step& step, const Tensor& x, const Tensor& error, const Tensor& y);

}  // namespace gradual::lab
