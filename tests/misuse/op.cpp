#include <cmath>
#include <limits>

#include "misuse.h"

using namespace gradual;

namespace test {
namespace {

Tensor six() { return arange(1, 7, 1, {.dtype = DType::f32}).reshape({2, 3}); }
Tensor integers() { return arange(0, 3); }
Tensor bools() { return zeros({3}, DType::bool_); }
Tensor bytes8() { return zeros({3}, DType::f8e4m3fn); }

}  // namespace

Misuses op_misuses() {
  return {
      // elementwise
      {"shapes that do not broadcast", [] { return six() + ones({2}); },
       "add: [2, 3] and [2] do not broadcast: sizes 3 and 2 at dim 1 differ and neither is 1"},
      {"an undefined operand", [] { return six() * Tensor(); }, "mul: an operand is an undefined tensor"},
      {"an undefined operand on the left", [] { return Tensor() - six(); }, "sub: an operand is an undefined tensor"},
      {"two numbers", [] { return add(1, 2); }, "add: needs a tensor, given two numbers"},
      {"bools added", [] { return bools() + bools(); },
       "add: [3] bool x [3] bool: takes numbers, not bool; use logical ops or cast with to(DType::i64)"},
      {"bools negated", [] { return -bools(); },
       "neg: [3] bool: takes numbers, not bool; cast with to(DType::i64) or to(DType::f32)"},
      {"f8 added", [] { return bytes8() + bytes8(); },
       "add: [3] f8e4m3fn x [3] f8e4m3fn: f8 tensors allow cast, copies, views and contractions only; cast"},
      {"f8 with f32", [] { return bytes8() * ones({3}); },
       "mul: [3] f8e4m3fn x [3] f32: f8 tensors allow cast, copies, views and contractions only; cast to a"},
      {"exp of f8", [] { return exp(bytes8()); },
       "exp: [3] f8e4m3fn: f8 tensors allow cast, copies, views and contractions only; cast to a wider"},
      {"a power of integers", [] { return pow(integers(), 2); },
       "pow: [3] i64 x 2: takes floats only; cast with to(DType::f32)"},
      {"f16 with bf16", [] { return ones({1}, DType::f16) + ones({1}, DType::bf16); }, "= f32: 2"},
      {"integers with a fraction", [] { return integers() + 0.5; },
       "add: [3] i64 x 0.5: the number 0.5 is not an integer of 64 bits; cast the tensor with to(DType::f32)"},
      {"integers with NaN", [] { return integers() + NAN; },
       "add: [3] i64 x nan: the number nan is not an integer of 64 bits; cast the tensor with to(DType::f32)"},
      {"an integer divided by zero", [] { return integers() / 0; }, "= f32: nan inf inf"},
      {"relu of bools", [] { return relu(bools()); },
       "relu: [3] bool: takes numbers, not bool; cast with to(DType::i64) or to(DType::f32)"},
      {"the logarithm of a negative number", [] { return log(full({1}, -1)); }, "= f32: nan"},
      {"the inverse of integers", [] { return ~integers(); }, "& | ^ ! "},
      {"a bitwise and of integers", [] { return integers() & 1; }, "& | ^ ! "},
      {"where by numbers", [] { return where(ones({2}), 1, 2); },
       "where: [2] f32 x [] f32 x 2: the condition must be bool"},
      {"where without a condition", [] { return where(Tensor(), 1, 2); }, "where: an operand is an undefined tensor"},
      {"where of an undefined choice", [] { return where(bools(), Tensor(), 2); },
       "where: an operand is an undefined tensor"},
      {"where of shapes that do not broadcast", [] { return where(bools(), ones({2}), 2); },
       "where: [3] and [2] do not broadcast: sizes 3 and 2 at dim 0 differ and neither is 1"},
      {"clamp with low above high", [] { return clamp(six(), 5, 2); }, "= f32: 2 2 2 2 2 2"},
      {"clamp from NaN", [] { return clamp(full({2}, 3), NAN, 4); }, "clamp: from nan to 4: a bound must not be NaN"},
      {"clamp to NaN", [] { return clamp(full({2}, 3), 0, NAN); }, "clamp: from 0 to nan: a bound must not be NaN"},
      {"clamp of NaN", [] { return clamp(full({1}, NAN), 0, 1); }, "= f32: nan"},
      {"clamp of integers with low above high", [] { return clamp(integers(), 5, 1); }, "= i64: 1 1 1"},
      {"clamp of integers to a fraction", [] { return clamp(integers(), 0.5, 1.5); }, "= i64: 1 1 1"},
      {"clamp of integers from NaN", [] { return clamp(integers(), NAN, 1); },
       "clamp: from nan to 1: a bound must not be NaN"},
      {"clamp of bools", [] { return clamp(bools(), 0, 1); },
       "clamp: [3] bool: takes numbers, not bool; cast with to(DType::i64) or to(DType::f32)"},
      {"a cast to an f8 of integers", [] { return integers().to(DType::f8e5m2); }, "= f8e5m2: 0 1 2"},
      // reductions
      {"a sum over a dim too far", [] { return sum(six(), {2}); },
       "sum: dim 2 is out of range for a 2-d tensor; allowed are -2 to 1"},
      {"a sum over one dim twice",
       [] {
         return sum(six(), {1, -1});
       },
       "sum: dim -1 is listed twice"},
      {"a sum of f8", [] { return sum(bytes8()); },
       "sum: [3] f8e4m3fn: f8 tensors allow cast, copies, views and contractions only; cast to a wider"},
      {"a sum of nothing", [] { return sum(zeros({0})); }, "= f32: 0"},
      {"a mean of nothing", [] { return mean(zeros({0})); }, "= f32: nan"},
      {"a mean of integers", [] { return mean(integers()); }, "= f32: 1"},
      {"a maximum of nothing", [] { return max(zeros({0})); }, "max: [0] f32: an empty range has no extreme"},
      {"a minimum of nothing",
       [] {
         return min(zeros({2, 0}), {1});
       },
       "min: [2, 0] f32: an empty range has no extreme"},
      {"a maximum of bools", [] { return max(bools()); },
       "max: [3] bool: takes numbers, not bool; cast with to(DType::i64) or to(DType::f32)"},
      {"argmax of nothing", [] { return argmax(zeros({0}), 0); }, "argmax: [0] f32: an empty range has no extreme"},
      {"argmax of a dim too far", [] { return argmax(six(), 2); },
       "argmax: dim 2 is out of range for a 2-d tensor; allowed are -2 to 1"},
      {"argmin of bools", [] { return argmin(bools(), 0); }, "argmin: [3] bool: takes numbers"},
      {"logsumexp of nothing", [] { return logsumexp(zeros({0})); }, "= f32: -inf"},
      {"logsumexp of integers", [] { return logsumexp(integers()); },
       "logsumexp: [3] i64: takes floating tensors; cast with to(DType::f32)"},
      {"a variance of integers", [] { return var(integers()); },
       "var: [3] i64: takes floating tensors; cast with to(DType::f32)"},
      {"a variance of nothing", [] { return var(zeros({0})); }, "= f32: nan"},
      {"a variance of one number", [] { return var(ones({1})); }, "= f32: nan"},
      {"a variance with a correction of n", [] { return var(six(), {}, false, 6); }, "= f32: inf"},
      {"a variance with a correction above n", [] { return var(six(), {}, false, 7); }, "= f32: inf"},
      {"a variance of rows with a correction above n", [] { return var(six(), {1}, false, 9); }, "= f32: inf inf"},
      {"a variance with a correction of NaN", [] { return var(six(), {}, false, NAN); },
       "var: the correction must not be NaN"},
      {"a variance with a negative correction", [] { return var(full({2}, 1), {}, false, -1); }, "= f32: 0"},
      {"a norm of p = 0", [] { return norm(six(), 0); }, "= f32: 6"},
      {"a norm of p = NaN", [] { return norm(six(), NAN); }, "norm: p must not be NaN"},
      {"a norm of p = -1", [] { return norm(six(), -1); }, "= f32: 0.408163"},
      {"a norm of p = Inf", [] { return norm(six(), INFINITY); }, "= f32: 6"},
      {"a norm of p = -Inf", [] { return norm(six(), -INFINITY); }, "= f32: 1"},
      {"a norm of integers", [] { return norm(integers()); },
       "norm: [3] i64: takes floating tensors; cast with to(DType::f32)"},
      {"a norm of nothing", [] { return norm(zeros({0})); }, "= f32: 0"},
      // movement and lookup
      {"cat of nothing", [] { return cat({}); }, "cat: needs at least one tensor"},
      {"cat of 0-d tensors",
       [] {
         return cat({scalar(1), scalar(2)});
       },
       "cat: [] f32 x [] f32: 0-d tensors cannot be concatenated; use stack"},
      {"cat of other sizes",
       [] {
         return cat({six(), ones({2, 2})});
       },
       "cat: [2, 3] f32 x [2, 2] f32: all sizes but those of dim 0 must be equal"},
      {"cat of other dims",
       [] {
         return cat({six(), ones({3})});
       },
       "cat: [2, 3] f32 x [3] f32: all sizes but those of dim 0 must be equal"},
      {"cat of an undefined tensor",
       [] {
         return cat({six(), Tensor()});
       },
       "cat: [2, 3] f32 x none: needs defined tensors"},
      {"cat along a dim too far",
       [] {
         return cat({six(), six()}, 2);
       },
       "cat: dim 2 is out of range for a 2-d tensor; allowed are -2 to 1"},
      {"stack of nothing", [] { return stack({}); }, "stack: needs at least one tensor"},
      {"stack of other sizes",
       [] {
         return stack({six(), ones({2})});
       },
       "stack: all shapes must be equal, given [2, 3] and [2]"},
      {"stack of an undefined tensor", [] { return stack({Tensor()}); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"split by 0", [] { return split(six(), 0).at(0); }, "split: size 0 is not allowed; it must be at least 1"},
      {"gather by floats",
       [] {
         return gather(six(), 1, ones({2, 1}));
       },
       "gather: [2, 3] f32 x [2, 1] f32: an index must be i64, given f32"},
      {"gather beyond the end",
       [] {
         return gather(six(), 1, full({2, 1}, 3, DType::i64));
       },
       "gather: [2, 3] f32 x [2, 1] i64: index 3 at [0, 0] is out of range; allowed are 0 to 2"},
      {"gather before the start",
       [] {
         return gather(six(), 1, full({2, 1}, -1, DType::i64));
       },
       "gather: [2, 3] f32 x [2, 1] i64: index -1 at [0, 0] is out of range; allowed are 0 to 2"},
      {"gather by another number of dims", [] { return gather(six(), 1, zeros({2}, DType::i64)); },
       "gather: [2, 3] f32 x [2] i64: x and index must have the same number of dims"},
      {"gather by more rows",
       [] {
         return gather(six(), 1, zeros({3, 1}, DType::i64));
       },
       "gather: [2, 3] f32 x [3, 1] i64: the index is larger than x at dim 0"},
      {"scatter_add of another dtype",
       [] {
         return scatter_add(six(), 1, zeros({2, 1}, DType::i64), ones({2, 1}, DType::f64));
       },
       "scatter_add: [2, 3] f32 x [2, 1] i64 x [2, 1] f64: x and src must have one dtype"},
      {"scatter_add beyond the end",
       [] {
         return scatter_add(six(), 1, full({2, 1}, 9, DType::i64), ones({2, 1}));
       },
       "scatter_add: [2, 3] f32 x [2, 1] i64 x [2, 1] f32: index 9 at [0, 0] is out of range; allowed are 0"},
      {"scatter_add of too small a source",
       [] {
         return scatter_add(six(), 1, zeros({2, 2}, DType::i64), ones({2, 1}));
       },
       "scatter_add: [2, 3] f32 x [2, 2] i64 x [2, 1] f32: the index is larger than src at dim 1"},
      {"index_select by floats", [] { return index_select(six(), 0, ones({1})); },
       "index_select: [2, 3] f32 x [1] f32: an index must be i64, given f32"},
      {"index_select by a matrix",
       [] {
         return index_select(six(), 0, zeros({1, 1}, DType::i64));
       },
       "index_select: [2, 3] f32 x [1, 1] i64: input 1 must be 1-d, given [1, 1]"},
      {"index_select beyond the end", [] { return index_select(six(), 0, full({1}, 2, DType::i64)); },
       "index_select: [2, 3] f32 x [1] i64: index 2 at [0] is out of range; allowed are 0 to 1"},
      {"index_select of a 0-d tensor", [] { return index_select(scalar(1), 0, zeros({1}, DType::i64)); },
       "index_select: [] f32 x [1] i64: a 0-d tensor has no dim to index"},
      {"index_add of another count", [] { return index_add(six(), 0, zeros({3}, DType::i64), 2); },
       "index_add: [2, 3] f32 x [3] i64: the index must be [2], given [3]"},
      {"index_add beyond the end", [] { return index_add(six(), 0, full({2}, 2, DType::i64), 2); },
       "index_add: [2, 3] f32 x [2] i64: index 2 at [0] is out of range; allowed are 0 to 1"},
      {"index_add to a negative size", [] { return index_add(six(), 0, zeros({2}, DType::i64), -1); },
       "a size cannot be negative: [-1, 3]"},
      {"embedding by floats", [] { return embedding(six(), ones({2})); },
       "index_select: [2, 3] f32 x [2] f32: an index must be i64, given f32"},
      {"embedding beyond the end", [] { return embedding(six(), full({1}, 2, DType::i64)); },
       "index_select: [2, 3] f32 x [1] i64: index 2 at [0] is out of range; allowed are 0 to 1"},
      {"embedding from a vector", [] { return embedding(ones({2}), zeros({1}, DType::i64)); },
       "embedding: [2] f32 x [1] i64: the weight must be [entries, size]"},
      {"pad by a negative number",
       [] {
         return pad(six(), {0, -1}, {0, 0});
       },
       "padding must not be negative; use narrow to crop (and at most 2147483647)"},
      {"pad of too few dims", [] { return pad(six(), {1}, {1}); },
       "pad: before [1] and after [1] need one entry for each dim of [2, 3]"},
      {"pad of integers with NaN", [] { return pad(integers(), {1}, {0}, NAN); }, "pad: nan does not fit into i64"},
      {"pad of too many",
       [] {
         return pad(six(), {std::numeric_limits<std::int64_t>::max(), 0}, {1, 0});
       },
       "padding must not be negative; use narrow to crop (and at most 2147483647)"},
      {"tril of a vector", [] { return tril(integers()); }, "tril: [3] i64: needs at least two dims"},
      {"one_hot of floats", [] { return one_hot(ones({2}), 3); }, "one_hot: [2] f32: the index must be i64, given f32"},
      {"one_hot of no class", [] { return one_hot(integers(), 0); },
       "one_hot: [3] i64: the number of classes must be at least 1"},
      {"one_hot of too large a class", [] { return one_hot(integers(), 2); },
       "one_hot: [3] i64: index 2 at [2] is out of range; allowed are 0 to 1"},
      {"one_hot of a negative class", [] { return one_hot(integers() - 1, 2); },
       "one_hot: [3] i64: index -1 at [0] is out of range; allowed are 0 to 1"},
      {"sum_to another shape", [] { return sum_to(six(), {4}); },
       "sum_to: [4] and [2, 3] do not broadcast: sizes 4 and 3 at dim 1 differ and neither is 1"},
      {"sum_to more dims",
       [] {
         return sum_to(six(), {1, 2, 3});
       },
       "sum_to: [1, 2, 3] does not broadcast to [2, 3]"},
      {"channels_last of a matrix", [] { return channels_last(six()); },
       "channels_last: takes images [N, C, H, W], given [2, 3]"},
      // settings
      {"no thread", [] { set_num_threads(0); }, "set_num_threads: 0 is not allowed; it must be 1 to 4096"},
      {"a negative number of threads", [] { set_num_threads(-4); },
       "set_num_threads: -4 is not allowed; it must be 1 to 4096"},
      {"an op of no name", [] { return std::string(to_string(op_from_name("matmull"))); },
       "no op 'matmull'; did you mean 'matmul'?"},
      {"a dtype of no name", [] { return std::string(to_string(dtype_from_name("float33"))); },
       "unknown dtype 'float33'; known are f64, f32, f16, bf16, f8e4m3fn, f8e5m2, i64, i32, u8, bool"},
      {"the range of integers", [] { return float_info(DType::i64).max; }, "float_info: i64 is not a floating dtype"},
      {"f8 promoted", [] { return std::string(to_string(promote(DType::f8e4m3fn, DType::f32))); },
       "promote: f8e4m3fn with f32: f8 tensors never promote; cast one operand to the dtype that is meant"},
  };
}

}  // namespace test
