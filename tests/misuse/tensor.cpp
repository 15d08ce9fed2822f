#include <cmath>

#include "misuse.h"

using namespace gradual;

namespace test {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;
Tensor six() { return arange(0, 6, 1, {.dtype = DType::f32}).reshape({2, 3}); }
Tensor integers() { return arange(0, 3); }

}  // namespace

Misuses tensor_misuses() {
  return {
      // undefined tensors, and questions that a tensor cannot answer
      {"dtype of an undefined tensor", [] { return std::string(to_string(Tensor().dtype())); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"sizes of an undefined tensor", [] { return to_string(Tensor().sizes()); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an undefined tensor as a number", [] { return Tensor().item(); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an undefined tensor moved", [] { return Tensor().to(DType::f16); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an undefined tensor reshaped", [] { return Tensor().reshape({1}); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an undefined tensor filled", [] { Tensor().fill_(1); }, "fill_: 1: needs a tensor"},
      {"an undefined tensor drawn", [] { Tensor().uniform_(0, 1); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an undefined tensor detached", [] { return Tensor().detach(); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an undefined tensor asked for a gradient", [] { return Tensor().grad(); }, "= undefined"},
      {"set_requires_grad() on an undefined tensor", [] { Tensor().set_requires_grad(); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"backward of an undefined tensor", [] { Tensor().backward(); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"an undefined tensor printed", [] { return to_string(Tensor()); }, "= tensor(undefined)"},
      {"zeros_like of an undefined tensor", [] { return zeros_like(Tensor()); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"a view of an undefined tensor", [] { return as_strided(Tensor(), {1}, {1}, 0); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      {"item of six elements", [] { return six().item(); },
       "item: needs exactly one element, the tensor has shape [2, 3]"},
      {"item of no element", [] { return zeros({0}).item(); },
       "item: needs exactly one element, the tensor has shape [0]"},
      {"size of a dim too far", [] { return static_cast<double>(six().size(2)); },
       "size: dim 2 is out of range for a 2-d tensor; allowed are -2 to 1"},
      {"size of a 0-d tensor", [] { return static_cast<double>(scalar(1).size(0)); },
       "size: a 0-d tensor has no dim 0"},
      {"data as doubles of f32", [] { return *six().data<double>(); }, "data: the tensor is f32, asked for f64"},
      {"data as floats of i64", [] { return static_cast<double>(*integers().data<float>()); },
       "data: the tensor is i64, asked for f32"},
      {"sizes of another device's name", [] { return to_string(device_from_name("gpu")); },
       "no device 'gpu'; allowed are cpu, cuda and cuda:0 to cuda:9"},
      {"a GPU that is not there", [] { return six().to(Device::cuda(9)); }, "no device cuda:9"},
      {"zeros on a GPU of a negative number", [] { return zeros({1}, Device::cuda(-1)); }, "no device cuda:-1"},
      {"a GPU with letters", [] { return to_string(device_from_name("cuda:one")); },
       "no device 'cuda:one'; allowed are cpu, cuda and cuda:0 to cuda:9"},
      // creation
      {"a negative size",
       [] {
         return zeros({2, -1});
       },
       "a size cannot be negative: [2, -1]"},
      {"too many elements",
       [] {
         return zeros({kHuge, kHuge});
       },
       "too many elements: [1099511627776, 1099511627776]"},
      {"too many bytes", [] { return zeros({std::int64_t{1} << 62}, DType::f64); },
       "too many bytes: [4611686018427387904] f64"},
      {"more memory than there is", [] { return empty({std::int64_t{1} << 50}); },
       "out of memory: asked for 4.00 PiB (4503599627370496 bytes)"},
      {"too many dims",
       [] {
         return zeros({1, 1, 1, 1, 1, 1, 1, 1, 1});
       },
       "a tensor has at most 8 dimensions"},
      {"integers that require a gradient", [] { return zeros({2}, {.dtype = DType::i64, .requires_grad = true}); },
       "set_requires_grad: only f64, f32, f16 and bf16 tensors carry gradients, this one is i64"},
      {"f8 that requires a gradient", [] { return zeros({2}, {.dtype = DType::f8e4m3fn, .requires_grad = true}); },
       "set_requires_grad: only f64, f32, f16 and bf16 tensors carry gradients, this one is f8e4m3fn"},
      {"integers full of NaN", [] { return full({2}, NAN, DType::i64); }, "full: nan does not fit into i64"},
      {"integers full of Inf", [] { return full({2}, INFINITY, DType::i32); }, "full: inf does not fit into i32"},
      {"integers full of 1e300", [] { return full({2}, 1e300, DType::i64); }, "full: 1e+300 does not fit into i64"},
      {"bytes full of 256", [] { return full({2}, 256, DType::u8); }, "full: 256 does not fit into u8"},
      {"bytes full of -1", [] { return full({2}, -1, DType::u8); }, "full: -1 does not fit into u8"},
      {"integers full of 2.5", [] { return full({2}, 2.5, DType::i64); }, "= i64: 2 2"},
      {"bools full of NaN", [] { return full({1}, NAN, DType::bool_); }, "= bool: 1"},
      {"f16 full of 1e300", [] { return full({1}, 1e300, DType::f16); }, "= f16: inf"},
      {"a scalar of NaN in i32", [] { return scalar(NAN, {.dtype = DType::i32}); }, "full: nan does not fit into i32"},
      {"integers filled with NaN", [] { return integers().fill_(NAN); }, "fill_: nan does not fit into i64"},
      {"integers filled with 1e300", [] { return integers().fill_(1e300); }, "fill_: 1e+300 does not fit into i64"},
      {"integers from NaN",
       [] {
         return from_data(std::vector<double>{1, NAN}, {2}, {.dtype = DType::i64});
       },
       "from_data: nan does not fit into i64"},
      {"integers from 1e300", [] { return from_data(std::vector<double>{1e300}, {1}, {.dtype = DType::i32}); },
       "from_data: 1e+300 does not fit into i32"},
      {"bytes from 300", [] { return from_data(std::vector<std::int64_t>{300}, {1}, {.dtype = DType::u8}); },
       "from_data: 300 does not fit into u8"},
      {"too few values",
       [] {
         return from_data(std::vector<float>{1, 2}, {3});
       },
       "from_data: 2 values do not fill [3]"},
      {"values of a negative size",
       [] {
         return from_data(std::vector<float>{1, 2}, {-2});
       },
       "a size cannot be negative: [-2]"},
      {"NaN cast to integers", [] { return full({1}, NAN).to(DType::i64); }, "= i64: 0"},
      {"1e30 cast to i32", [] { return full({1}, 1e30).to(DType::i32); }, "= i32: 2.14748e+09"},
      {"-1 cast to bytes", [] { return full({1}, -1).to(DType::u8); }, "= u8: 0"},
      {"integers copied from NaN", [] { return integers().copy_(full({3}, NAN)); }, "= i64: 0 0 0"},
      {"a range that never arrives", [] { return arange(0, 10, -1); },
       "arange: from 0 by steps of -1 never arrives at 10"},
      {"a falling range by rising steps", [] { return arange(10, 0); },
       "arange: from 10 by steps of 1 never arrives at 0"},
      {"a range by steps of 0", [] { return arange(0, 10, 0); },
       "arange: start, stop and step must be finite and step not 0"},
      {"a range by steps of NaN", [] { return arange(0, 10, NAN); },
       "arange: start, stop and step must be finite and step not 0"},
      {"a range to Inf", [] { return arange(0, INFINITY); },
       "arange: start, stop and step must be finite and step not 0"},
      {"a range of 1e30 elements", [] { return arange(0, 1e30); }, "arange: too many elements"},
      {"an empty range", [] { return arange(5, 5); }, "= i64:"},
      {"a range beyond its dtype", [] { return arange(0, 300, 1, {.dtype = DType::u8}); },
       "arange: 299 does not fit into u8"},
      {"linspace of -1 numbers", [] { return linspace(0, 1, -1); },
       "linspace: count -1 is not allowed; it must be at least 0"},
      {"linspace of NaN in integers", [] { return linspace(NAN, 1, 2, {.dtype = DType::i64}); },
       "linspace: nan does not fit into i64"},
      {"eye of a negative size", [] { return eye(-2); }, "a size cannot be negative: [-2, -2]"},
      {"random integers from an empty range", [] { return randint(5, 5, {2}); },
       "randint: low 5 must lie below high 5"},
      {"random integers from a reversed range", [] { return randint(5, 1, {2}); },
       "randint: low 5 must lie below high 1"},
      {"random bytes up to 1000", [] { return randint(0, 1000, {2}, {.dtype = DType::u8}); },
       "randint: 999 does not fit into u8"},
      {"a permutation of -1", [] { return randperm(-1); }, "randperm: -1 is not allowed; it must be at least 0"},
      {"rand of integers", [] { return rand({2}, {.dtype = DType::i64}); },
       "i64: rand, randn, uniform_ and normal_ fill floats; use randint"},
      {"randn of integers", [] { return randn({2}, {.dtype = DType::i64}); },
       "i64: rand, randn, uniform_ and normal_ fill floats; use randint"},
      {"randn of bools", [] { return randn({2}, {.dtype = DType::bool_}); },
       "bool: rand, randn, uniform_ and normal_ fill floats; use randint"},
      {"uniform_ on integers", [] { return integers().uniform_(0, 5); },
       "i64: rand, randn, uniform_ and normal_ fill floats; use randint"},
      {"uniform_ from NaN", [] { return six().uniform_(NAN, 1); }, "uniform_: from nan to 1 is not a finite range"},
      {"uniform_ to Inf", [] { return six().uniform_(0, INFINITY); }, "uniform_: from 0 to inf is not a finite range"},
      {"uniform_ with low above high", [] { return six().uniform_(2, 1); },
       "uniform_: from 2 to 1 is not a finite range"},
      {"normal_ on integers", [] { return integers().normal_(0, 1); },
       "i64: rand, randn, uniform_ and normal_ fill floats; use randint"},
      {"normal_ with a negative deviation", [] { return six().normal_(0, -1); },
       "normal_: mean 0 and deviation -1 must be finite, the deviation at least 0"},
      {"normal_ with a deviation of NaN", [] { return six().normal_(0, NAN); },
       "normal_: mean 0 and deviation nan must be finite, the deviation at least 0"},
      {"normal_ around NaN", [] { return six().normal_(NAN, 1); },
       "normal_: mean nan and deviation 1 must be finite, the deviation at least 0"},
      {"a null blob with elements", [] { return from_blob(nullptr, {2}, DType::f32); },
       "from_blob: the memory for [2] f32 is null"},
      {"a null blob without elements", [] { return from_blob(nullptr, {0}, DType::f32); }, "= f32:"},
      {"a blob of a negative size",
       [] {
         float x = 0;
         return from_blob(&x, {-1}, DType::f32);
       },
       "a size cannot be negative: [-1]"},
      {"a blob of too many bytes",
       [] {
         float x = 0;
         return from_blob(&x, {std::int64_t{1} << 62}, DType::f32);
       },
       "too many bytes: [4611686018427387904] f32"},
      // views
      {"as_strided beyond the storage",
       [] {
         return as_strided(six(), {2, 4}, {3, 1}, 0);
       },
       "as_strided: sizes [2, 4], strides [3, 1] (one for each size, at least 0) and offset 0 leave a"},
      {"as_strided with a negative stride", [] { return as_strided(six(), {3}, {-1}, 2); },
       "as_strided: sizes [3], strides [-1] (one for each size, at least 0) and offset 2 leave a storage of"},
      {"as_strided with a negative offset", [] { return as_strided(six(), {2}, {1}, -1); },
       "as_strided: sizes [2], strides [1] (one for each size, at least 0) and offset -1 leave a storage of"},
      {"as_strided with too few strides",
       [] {
         return as_strided(six(), {2, 3}, {1}, 0);
       },
       "as_strided: sizes [2, 3], strides [1] (one for each size, at least 0) and offset 0 leave a storage"},
      {"as_strided that overflows", [] { return as_strided(six(), {3}, {std::int64_t{1} << 62}, 0); },
       "as_strided: sizes [3], strides [4611686018427387904] (one for each size, at least 0) and offset 0"},
      {"reshape to another count", [] { return six().reshape({4}); }, "reshape: 6 elements do not fit [4]"},
      {"reshape with two -1",
       [] {
         return six().reshape({-1, -1});
       },
       "reshape: only one size can be -1, given [-1, -1]"},
      {"reshape to a negative size",
       [] {
         return six().reshape({-2, 3});
       },
       "reshape: a size cannot be negative: [-2, 3]"},
      {"reshape with -1 that no number fits",
       [] {
         return six().reshape({-1, 4});
       },
       "reshape: 6 elements do not fit [-1, 4]"},
      {"view that needs a copy", [] { return six().t().view({6}); },
       "view: [3, 2] f32: strides [1, 3] cannot be seen as [6] without a copy; use reshape"},
      {"permute of too few dims", [] { return six().permute({0}); },
       "permute: [0] does not list every dim of [2, 3] once"},
      {"permute of one dim twice",
       [] {
         return six().permute({0, 0});
       },
       "permute: [0, 0] does not list every dim of [2, 3] once"},
      {"transpose of a dim too far", [] { return six().transpose(0, 2); },
       "transpose: dim 2 is out of range for a 2-d tensor; allowed are -2 to 1"},
      {"t of a vector", [] { return integers().t(); }, "t: needs at least two dims, the tensor has shape [3]"},
      {"expand of a size above 1",
       [] {
         return six().expand({2, 6});
       },
       "expand: [2, 3] does not expand to [2, 6]; only dims of size 1 and new leading dims can grow"},
      {"expand to fewer dims", [] { return six().expand({3}); },
       "expand: [2, 3] does not expand to [3]; only dims of size 1 and new leading dims can grow"},
      {"expand of a new dim by -1",
       [] {
         return six().expand({-1, 2, 3});
       },
       "expand: [2, 3] does not expand to [-1, 2, 3]; only dims of size 1 and new leading dims can grow"},
      {"squeeze of a dim too far", [] { return six().squeeze(2); },
       "squeeze: dim 2 is out of range for a 2-d tensor; allowed are -2 to 1"},
      {"unsqueeze of a dim too far", [] { return six().unsqueeze(4); },
       "unsqueeze: dim 4 is out of range for a 3-d tensor; allowed are -3 to 2"},
      {"flatten from behind the end", [] { return six().flatten(1, 0); }, "flatten: start 1 is after end 0"},
      {"select beyond the end", [] { return six().select(0, 2); },
       "select: index 2 is out of range for dim 0 of [2, 3]"},
      {"select of a 0-d tensor", [] { return scalar(1).select(0, 0); },
       "select: a 0-d tensor has no dim to select from; use item()"},
      {"narrow beyond the end", [] { return six().narrow(1, 2, 2); },
       "narrow: start 2 and length 2 leave dim 1 of [2, 3]"},
      {"narrow of a negative length", [] { return six().narrow(1, 0, -1); },
       "narrow: start 0 and length -1 leave dim 1 of [2, 3]"},
      {"an index beyond the end", [] { return six()[5]; }, "select: index 5 is out of range for dim 0 of [2, 3]"},
      {"more indices than dims",
       [] {
         return six().index({0, 0, 0});
       },
       "index: 3 indices for a tensor of shape [2, 3]"},
      {"a slice by steps of 0", [] { return six().index({Slice{.start = {}, .stop = {}, .step = 0}}); },
       "slice: step 0 is not allowed; it must be at least 1"},
      {"a slice backwards", [] { return six().index({Slice{.start = {}, .stop = {}, .step = -1}}); },
       "slice: step -1 is not allowed; it must be at least 1"},
      {"a slice beyond the end", [] { return integers().index({Slice{.start = 2, .stop = 9}}); }, "= i64: 2"},
      {"a mask of numbers", [] { return six()[ones({2})]; },
       "index: a mask must be bool and have the leading sizes of [2, 3], given [2] f32"},
      {"a mask of another shape", [] { return six()[zeros({3}, DType::bool_)]; },
       "index: a mask must be bool and have the leading sizes of [2, 3], given [3] bool"},
      {"a mask without dims", [] { return six()[scalar(1, {.dtype = DType::bool_})]; },
       "index: a mask must be bool and have the leading sizes of [2, 3], given [] bool"},
      {"an undefined mask", [] { return six()[Tensor()]; },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
      // in place
      {"add_ of a larger tensor", [] { return ones({2}).add_(six()); },
       "add_: [2] and [2, 3] do not broadcast: sizes 2 and 3 at dim 1 differ and neither is 1"},
      {"add_ of an undefined tensor", [] { return ones({2}).add_(Tensor()); },
       "add_: the operand is an undefined tensor"},
      {"add_ to bools", [] { return zeros({2}, DType::bool_).add_(1); },
       "add_: [2] bool x 1: takes f64, f32, f16, bf16 and integers"},
      {"mul_ of f8", [] { return zeros({2}, DType::f8e4m3fn).mul_(2); },
       "mul_: [2] f8e4m3fn x 2: takes f64, f32, f16, bf16 and integers"},
      {"add_ of a fraction to integers", [] { return integers().add_(0.5); },
       "add_: [3] i64 x 0.5: the number 0.5 is not an integer of 64 bits; cast the tensor with"},
      {"mul_ of integers by a fraction", [] { return integers().mul_(0.5); },
       "mul_: [3] i64 x 0.5: the number 0.5 is not an integer of 64 bits; cast the tensor with"},
      {"add_ of NaN to integers", [] { return integers().add_(NAN); },
       "add_: [3] i64 x nan: the number nan is not an integer of 64 bits; cast the tensor with"},
      {"add_ of floats to integers", [] { return integers().add_(full({3}, 0.5)); },
       "add_: [3] i64 x [3] f32: a floating operand cannot be written into an integer tensor; cast it with to()"},
      {"division of integers in place", [] { return integers() /= 2; },
       "/=: the quotient is floating and cannot be written into [3] i64; write x = x / y"},
      {"copy_ of another shape", [] { return ones({2}).copy_(ones({3})); },
       "copy_: [2] and [3] do not broadcast: sizes 2 and 3 at dim 0 differ and neither is 1"},
      {"an expanded tensor written", [] { return ones({1}).expand({3}).add_(1); },
       "add_: [3] f32 x 1: an expanded tensor cannot be written; clone() it first"},
      {"a leaf written with gradients on", [] { return ones({2}, {.requires_grad = true}).add_(1); },
       "add_: [2] f32 x 1: a leaf that requires grad cannot be written in place; use the functional form x"},
      {"another tensor's numbers that are not there", [] { six().swap_data(Tensor()); },
       "an undefined tensor was used; it has no dtype, shape or numbers"},
  };
}

}  // namespace test
