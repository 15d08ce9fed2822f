// Functions that are made of other ops and have no row: amp and the tape see the parts. Names and meaning are
// PyTorch's.
#pragma once

#include <vector>

#include "ops.h"

namespace gradual {

// Elementwise, to bool; of integers false, false and true.
Tensor isnan(const Tensor& x, Loc loc = Loc::current());
Tensor isinf(const Tensor& x, Loc loc = Loc::current());
Tensor isfinite(const Tensor& x, Loc loc = Loc::current());
// Over `dims` (none: all), to bool: an element, or every element, is not 0 (NaN is not 0).
Tensor any(const Tensor& x, const Shape& dims = {}, bool keepdim = false, Loc loc = Loc::current());
Tensor all(const Tensor& x, const Shape& dims = {}, bool keepdim = false, Loc loc = Loc::current());
// The root of var(): PyTorch's std.
Tensor stddev(const Tensor& x, const Shape& dims = {}, bool keepdim = false, double correction = 1,
              Loc loc = Loc::current());
// Whether |a - b| <= atol + rtol |b| or a = b for every element; NaN is equal to nothing. a and b broadcast.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);

// x with `value` where the mask (bool, which broadcasts) is true.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value, Loc loc = Loc::current());
// Zeros left of the diagonal of the last two dims.
Tensor triu(const Tensor& x, std::int64_t diagonal = 0, Loc loc = Loc::current());
// The order of the elements along these dims reversed.
Tensor flip(const Tensor& x, const Shape& dims, Loc loc = Loc::current());
// Elements move `shift` places along `dim`; those that leave the end come back at the start.
Tensor roll(const Tensor& x, std::int64_t shift, int dim, Loc loc = Loc::current());
// x repeated along each dim; more entries than dims add dims in front.
Tensor repeat(const Tensor& x, const Shape& times, Loc loc = Loc::current());
// At most `count` parts of equal size along `dim`; the last may be smaller.
std::vector<Tensor> chunk(const Tensor& x, std::int64_t count, int dim = 0, Loc loc = Loc::current());

Tensor full_like(const Tensor& t, double value);
Tensor randn_like(const Tensor& t, Generator& g = default_generator());
// 1 with probability p, element by element, else 0; in p's dtype.
Tensor bernoulli(const Tensor& p, Generator& g = default_generator());

}  // namespace gradual
