// Printed tensors, by PyTorch's rules.
#include <doctest/doctest.h>

#include <cmath>

#include "gradual/core/ops/ops.h"

using namespace gradual;

namespace {
Tensor of(const std::vector<double>& v, DType d = DType::f32) {
  const auto n = static_cast<std::int64_t>(v.size());
  return from_data(v, {n}, {.dtype = d});
}
}  // namespace

TEST_CASE("numbers take one format and one width") {
  CHECK(to_string(of({1, 2, 3})) == "tensor([1., 2., 3.], shape=[3], dtype=f32)");
  CHECK(to_string(of({1, -2.5, 300})) == "tensor([  1.0000,  -2.5000, 300.0000], shape=[3], dtype=f32)");
  CHECK(to_string(of({0.1, 1e-5})) == "tensor([1.0000e-01, 1.0000e-05], shape=[2], dtype=f32)");
  CHECK(to_string(of({1, 2000.5})) == "tensor([1.0000e+00, 2.0005e+03], shape=[2], dtype=f32)");
  CHECK(to_string(of({1, 1000})) == "tensor([   1., 1000.], shape=[2], dtype=f32)");
  CHECK(to_string(of({1, 1001})) == "tensor([1.0000e+00, 1.0010e+03], shape=[2], dtype=f32)");
  CHECK(to_string(of({2e8})) == "tensor([2.0000e+08], shape=[1], dtype=f32)");
  CHECK(to_string(of({1e-4})) == "tensor([1.0000e-04], shape=[1], dtype=f32)");
  CHECK(to_string(of({0, 0})) == "tensor([0., 0.], shape=[2], dtype=f32)");
}

TEST_CASE("NaN and Inf") {
  CHECK(to_string(of({NAN, INFINITY, -1})) == "tensor([nan, inf, -1.], shape=[3], dtype=f32)");
  CHECK(to_string(of({NAN, -INFINITY, -1.5})) == "tensor([    nan,    -inf, -1.5000], shape=[3], dtype=f32)");
  CHECK(to_string(of({NAN})) == "tensor([nan], shape=[1], dtype=f32)");
}

TEST_CASE("every dtype") {
  CHECK(to_string(of({1, -20}, DType::i64)) == "tensor([  1, -20], shape=[2], dtype=i64)");
  CHECK(to_string(of({1, 255}, DType::u8)) == "tensor([  1, 255], shape=[2], dtype=u8)");
  CHECK(to_string(of({1, 0}, DType::bool_)) == "tensor([ True, False], shape=[2], dtype=bool)");
  CHECK(to_string(of({0.1}, DType::f16)) == "tensor([0.1000], shape=[1], dtype=f16)");
  CHECK(to_string(of({0.1}, DType::f8e4m3fn)) == "tensor([0.1016], shape=[1], dtype=f8e4m3fn)");
  CHECK(to_string(full({1}, INT64_MIN, {.dtype = DType::i64})) ==
        "tensor([-9223372036854775808], shape=[1], dtype=i64)");
}

TEST_CASE("shapes") {
  CHECK(to_string(scalar(3.5)) == "tensor(3.5000, shape=[], dtype=f32)");
  CHECK(to_string(zeros({0, 3})) == "tensor([], shape=[0, 3], dtype=f32)");
  CHECK(to_string(Tensor()) == "tensor(undefined)");
  const Tensor m = arange(0, 6).reshape({2, 3});
  CHECK(to_string(m) == "tensor([[0, 1, 2],\n        [3, 4, 5]], shape=[2, 3], dtype=i64)");
  CHECK(to_string(m.t()) == "tensor([[0, 3],\n        [1, 4],\n        [2, 5]], shape=[3, 2], dtype=i64)");
  CHECK(to_string(stack({m, m})) ==
        "tensor([[[0, 1, 2],\n         [3, 4, 5]],\n\n        [[0, 1, 2],\n         [3, 4, 5]]], shape=[2, "
        "2, 3], "
        "dtype=i64)");
  CHECK(to_string(scalar(1).set_requires_grad()) == "tensor(1., shape=[], dtype=f32, requires_grad=True)");
}

TEST_CASE("long rows wrap, large tensors are summarised") {
  CHECK(to_string(arange(0, 30)) ==
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n"
        "        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29], shape=[30], dtype=i64)");
  CHECK(to_string(arange(0, 1000)).find("...") == std::string::npos);
  CHECK(to_string(arange(0, 1001)) == "tensor([   0,    1,    2,  ...,  998,  999, 1000], shape=[1001], dtype=i64)");
  CHECK(to_string(arange(0, 10000).reshape({100, 100})) ==
        "tensor([[   0,    1,    2,  ...,   97,   98,   99],\n"
        "        [ 100,  101,  102,  ...,  197,  198,  199],\n"
        "        [ 200,  201,  202,  ...,  297,  298,  299],\n"
        "        ...,\n"
        "        [9700, 9701, 9702,  ..., 9797, 9798, 9799],\n"
        "        [9800, 9801, 9802,  ..., 9897, 9898, 9899],\n"
        "        [9900, 9901, 9902,  ..., 9997, 9998, 9999]],\n"
        "       shape=[100, 100], dtype=i64)");
  // Only what is printed decides the format: the large number lies in the middle.
  const Tensor x = ones({2000});
  x[1000].fill_(1e9);
  CHECK(to_string(x) == "tensor([1., 1., 1.,  ..., 1., 1., 1.], shape=[2000], dtype=f32)");
  CHECK(to_string(ones({1 << 12, 1 << 12}).expand({8, 1 << 12, 1 << 12})).size() < 2000);
}
