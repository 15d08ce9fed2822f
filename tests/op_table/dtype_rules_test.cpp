// What dtype comes out: integers into float ops, f16 with bf16, tensors with numbers.
#include <doctest/doctest.h>
#include <gradual/core/tensor/literal.h>

#include <array>
#include <cmath>

#include "op_table.h"

namespace gradual::test {
namespace {

Tensor as_integer(const Tensor& t, DType dtype) {
  const Array a = to_array(t);
  std::vector<std::int64_t> v;
  for (double x : a.v) v.push_back(static_cast<std::int64_t>(x));
  return from_data(v, t.sizes(), {.dtype = DType::i64}).to(dtype);  // u8 saturates
}

const Sample* plain_sample(const std::vector<Sample>& samples, std::size_t floating) {
  for (const Sample& s : samples) {
    std::size_t n = 0;
    for (const Tensor& t : s.inputs) n += t.defined() && t.is_floating() ? 1 : 0;
    if (!s.large && n >= floating && s.inputs[0].numel() > 0) return &s;
  }
  return nullptr;
}

TEST_CASE("integers into a Float row give f32, and are refused by a FloatOnly row") {
  for (const Row* row : rows_under_test()) {
    const DTypeRule rule = op_info(row->op).dtype_rule;
    if (!row->samples || (rule != DTypeRule::Float && rule != DTypeRule::FloatOnly)) continue;
    const std::vector<Sample> samples = samples_of(*row, DType::f32);
    const Sample* sample = plain_sample(samples, 1);
    REQUIRE(sample != nullptr);
    for (DType dtype : {DType::i64, DType::i32, DType::u8, DType::bool_}) {
      Tensors inputs = sample->inputs;
      for (Tensor& t : inputs)
        if (t.defined() && t.is_floating()) t = as_integer(t, dtype);
      CAPTURE(describe(*row, *sample, inputs, "integers"));
      if (rule == DTypeRule::FloatOnly) {
        CHECK_THROWS_WITH_AS(sample->call(inputs), doctest::Contains("takes floating tensors"), Error);
      } else {
        const Tensors out = sample->call(inputs);
        CHECK(out[0].dtype() == DType::f32);
        // and the numbers are those of the floats
        Tensors floats = inputs;
        for (Tensor& t : floats) t = from_data(to_array(t).v, t.sizes());
        CHECK(bytes_of(out[0]) == bytes_of(sample->call(floats)[0]));
      }
    }
  }
}

TEST_CASE("f16 with bf16 gives f32, a narrow float with f32 gives f32, f32 with f64 gives f64") {
  const std::vector<std::array<DType, 3>> cases{{DType::f16, DType::bf16, DType::f32},
                                                {DType::bf16, DType::f16, DType::f32},
                                                {DType::f16, DType::f32, DType::f32},
                                                {DType::f32, DType::bf16, DType::f32},
                                                {DType::f32, DType::f64, DType::f64}};
  for (const Row* row : rows_under_test()) {
    const DTypeRule rule = op_info(row->op).dtype_rule;
    if (!row->samples || (rule != DTypeRule::Promote && rule != DTypeRule::Float && rule != DTypeRule::Compare &&
                          rule != DTypeRule::FloatOnly))
      continue;
    const std::vector<Sample> samples = samples_of(*row, DType::f32);
    const Sample* sample = plain_sample(samples, 2);
    if (!sample) continue;  // one input
    for (const auto& [first, rest, expected] : cases) {
      Tensors inputs;
      bool any = false;
      for (const Tensor& t : sample->inputs) {
        const bool floating = t.defined() && t.is_floating();
        inputs.push_back(floating ? converted(t, any ? rest : first) : t);
        any = any || floating;
      }
      CAPTURE(describe(*row, *sample, inputs, "mixed"));
      const Tensors out = sample->call(inputs);
      CHECK(out[0].dtype() == (rule == DTypeRule::Compare ? DType::bool_ : expected));
      Tensors widened;
      for (const Tensor& t : inputs) widened.push_back(converted(t, expected));
      CHECK(bytes_of(out[0]) == bytes_of(sample->call(widened)[0]));
    }
  }
}

TEST_CASE("numbers never promote a tensor") {
  using OpFn = Tensor (*)(const Operand&, const Operand&);
  for (const OpFn op : {static_cast<OpFn>(add), static_cast<OpFn>(sub), static_cast<OpFn>(mul),
                        static_cast<OpFn>(maximum), static_cast<OpFn>(minimum)}) {
    for (DType dtype : kNumbers) {
      const Tensor x = full({2}, 3, {.dtype = dtype});
      CHECK(op(x, 2).dtype() == dtype);
      CHECK(op(2, x).dtype() == dtype);
    }
  }
  for (const OpFn op : {static_cast<OpFn>(div), static_cast<OpFn>(pow)}) {
    for (DType dtype : kFloats) {
      CHECK(op(full({2}, 3, {.dtype = dtype}), 2.5).dtype() == dtype);
      CHECK(op(2.5, full({2}, 3, {.dtype = dtype})).dtype() == dtype);
    }
  }
  const Tensor half = full({2}, 3, {.dtype = DType::f16});
  CHECK(where(half > 2, half, 1e5).dtype() == DType::f16);
  CHECK((half > 1e6).dtype() == DType::bool_);
  // A number that the tensor's dtype does not hold is rounded with the result, not before.
  CHECK((half + 0.0001).to_vector<double>() == std::vector<double>{3, 3});
}

TEST_CASE("bool and integers with floats promote to the float, f8 with another dtype is refused") {
  const Tensor i = full({2}, 3, {.dtype = DType::i64});
  const Tensor b = full({2}, 1, {.dtype = DType::bool_});
  for (DType dtype : kFloats) {
    const Tensor x = full({2}, 0.5, {.dtype = dtype});
    CHECK((i + x).dtype() == dtype);
    CHECK((x * b).dtype() == dtype);
    CHECK((x + i).to_vector<double>() == std::vector<double>{3.5, 3.5});
  }
  CHECK((i + full({2}, 2, {.dtype = DType::u8})).dtype() == DType::i64);
  const Tensor f8 = full({2, 2}, 1, {.dtype = DType::f8e4m3fn});
  CHECK_THROWS_WITH_AS(matmul(f8, ones({2, 2})), doctest::Contains("f8"), Error);
  CHECK_THROWS_WITH_AS(f8 + f8, doctest::Contains("cast to a wider float first"), Error);
  CHECK(matmul(f8, f8).dtype() == DType::f32);
}

// As PyTorch, whose default dtype is f32; its mean refuses integers.
TEST_CASE("true division and mean of integers give f32") {
  const Tensor seven = full({2}, 7, {.dtype = DType::i64});
  for (DType dtype : {DType::i64, DType::i32, DType::u8, DType::bool_}) {
    const Tensor x = full({2}, 1, {.dtype = dtype});
    for (const Tensor& y : {seven / x, x / seven, x / x, x / 4, 4 / x, x / 2.5, x.mean(), x.mean(0, true)})
      CHECK(y.dtype() == DType::f32);
    for (DType wide : kFloats) CHECK((x / full({2}, 4, {.dtype = wide})).dtype() == wide);
    CHECK((x / 4).to_vector<double>() == std::vector<double>{0.25, 0.25});
    CHECK_THROWS_WITH_AS(x /= 2, doctest::Contains("cannot be written into [2]"), Error);
    CHECK_THROWS_WITH_AS(x /= full({2}, 0.5), doctest::Contains("cannot be written into [2]"), Error);
  }
  CHECK((seven / 2).to_vector<double>() == std::vector<double>{3.5, 3.5});
  CHECK((-seven / 2).to_vector<double>() == std::vector<double>{-3.5, -3.5});
  CHECK(std::isinf((seven / (seven - 7)).to_vector<double>()[0]));
  // Operands are rounded to f32 first.
  CHECK((full({1}, 16777217, {.dtype = DType::i64}) / 1).item() == 16777216);
  CHECK(tensor({1, 2, 4}, {.dtype = DType::i64}).mean().item() == 7.0F / 3);
  CHECK(tensor({1, 0, 1, 1}, {.dtype = DType::bool_}).mean().item() == 0.75);
  CHECK(std::isnan(zeros({0}, {.dtype = DType::i64}).mean().item()));
  Tensor half = full({2}, 3, {.dtype = DType::f16}).set_requires_grad();
  (half / seven).sum().backward();
  CHECK(half.grad().dtype() == DType::f16);
  CHECK_THROWS_WITH_AS(full({2}, 1, {.dtype = DType::f8e4m3fn}).mean(),
                       doctest::Contains("cast to a wider float first"), Error);
}

TEST_CASE("rows of numbers refuse bool") {
  for (const Row* row : rows_under_test()) {
    if (!row->samples || op_info(row->op).dtype_rule != DTypeRule::Number) continue;
    const std::vector<Sample> samples = samples_of(*row, DType::f32);
    const Sample& sample = *plain_sample(samples, 1);
    CAPTURE(to_string(row->op));
    CHECK_THROWS_WITH_AS(sample.call({as_integer(sample.inputs[0], DType::bool_)}),
                         doctest::Contains("takes numbers, not bool"), Error);
  }
}

}  // namespace
}  // namespace gradual::test
