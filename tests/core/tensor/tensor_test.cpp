// Handles, views, creation, indexing, and the messages of what cannot be.
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <sstream>
#include <string>

#include "gradual/core/support/error.h"
#include "gradual/core/tensor/literal.h"
#include "support/tensors.h"

using namespace gradual;
using namespace gradual::testing;

TEST_CASE("creation") {
  CHECK(values(arange(2, 10, 3)) == std::vector<double>{2, 5, 8});
  CHECK(values(arange(1, 0, -0.25, {.dtype = DType::f32})) == std::vector<double>{1, 0.75, 0.5, 0.25});
  CHECK(arange(5, 5).sizes() == Shape{0});
  CHECK(values(linspace(0, 1, 5)) == std::vector<double>{0, 0.25, 0.5, 0.75, 1});
  CHECK(values(linspace(3, 9, 1)) == std::vector<double>{3});
  CHECK(linspace(0, 1, 0).numel() == 0);
  CHECK(values(eye(2)) == std::vector<double>{1, 0, 0, 1});
  CHECK(values(full({2}, 1.5, {.dtype = DType::i32})) == std::vector<double>{1, 1});
  CHECK(values(ones({3}, {.dtype = DType::bool_})) == std::vector<double>{1, 1, 1});
  CHECK(scalar(2.5).dim() == 0);
  CHECK(zeros({2, 3}).is_contiguous());
  CHECK(from_data(std::vector<float>{1, 2}, {2, 1}, {.dtype = DType::f16}).dtype() == DType::f16);
  CHECK(full({5}, 1e6, {.dtype = DType::f16})[4].item() == INFINITY);
  CHECK_THROWS_WITH_AS(from_data(std::vector<double>{1, 2, 3}, {2, 2}), "from_data: 3 values do not fill [2, 2]",
                       Error);
  CHECK_THROWS_AS(zeros({2, -1}), Error);
  CHECK_THROWS_AS(arange(0, 1, 0), Error);
  CHECK_THROWS_AS(zeros({1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
}

TEST_CASE("random creation follows the generator") {
  Generator a(4);
  Generator b(4);
  const Tensor x = randn({1000}, {}, a);
  CHECK(same_bits(x, randn({1000}, {}, b)));
  CHECK(!same_bits(x, randn({1000}, {}, b)));
  const Tensor u = rand({10000}, {}, a);
  CHECK(u.min().item() >= 0);
  CHECK(u.max().item() < 1);
  CHECK(u.mean().item() == doctest::Approx(0.5).epsilon(0.02));
  const Tensor i = randint(-2, 3, {1000}, {.dtype = DType::i64}, a);
  CHECK(i.min().item() == -2);
  CHECK(i.max().item() == 2);
  const std::vector<double> p = values(randperm(100, a));
  CHECK(std::set<double>(p.begin(), p.end()).size() == 100);
  manual_seed(9);
  const Tensor y = rand({3});
  manual_seed(9);
  CHECK(same_bits(y, rand({3})));
  const Tensor strided = zeros({4, 4});
  Generator c(1);
  Generator d(1);
  strided.t().uniform_(0, 1, c);
  CHECK(same_bits(strided.t(), zeros({4, 4}).uniform_(0, 1, d)));
}

TEST_CASE("rand stays below 1 in every dtype, and takes the number before it as often as its neighbours or more") {
  for (const DType d : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3fn, DType::f8e5m2}) {
    Generator g(3);
    const double step = float_info(d).epsilon / 2;
    const double most = 1 - step;
    const Tensor u = rand({100000}, {.dtype = d}, g).to(DType::f64);
    CHECK(u.min().item() >= 0);
    if (d == DType::f64 || d == DType::f32) CHECK(u.max().item() < 1);
    else CHECK(u.max().item() == most);
    if (step < 1e-3) continue;
    CHECK(sum((u == most).to(DType::f64)).item() == doctest::Approx(1.5 * step * 1e5).epsilon(0.1));
    CHECK(sum((u == most - step).to(DType::f64)).item() == doctest::Approx(step * 1e5).epsilon(0.1));
  }
}

TEST_CASE("views share numbers and version") {
  const Tensor x = zeros({3, 4});
  const Tensor row = x[1];
  const Tensor t = x.t();
  CHECK(row.shares_storage(x));
  CHECK(!x.clone().shares_storage(x));
  const std::uint32_t version = x.version();
  row.fill_(5);
  CHECK(x.version() == version + 1);
  CHECK(t.version() == version + 1);
  CHECK(at(t, 1) == 5);
  CHECK(x.reshape({4, 3}).shares_storage(x));
  CHECK(!t.reshape({12}).shares_storage(x));  // a copy, where no view can be
  CHECK(values(t.reshape({12})) == std::vector<double>{0, 5, 0, 0, 5, 0, 0, 5, 0, 0, 5, 0});
  CHECK_THROWS_WITH_AS(t.view({12}), doctest::Contains("use reshape"), Error);
  CHECK(x.expand({2, 3, 4}).strides() == Shape{0, 4, 1});
  CHECK(x.squeeze(0).sizes() == x.sizes());
  CHECK(x.unsqueeze(-1).sizes() == Shape{3, 4, 1});
  CHECK(x.flatten().sizes() == Shape{12});
  CHECK(scalar(1).flatten().sizes() == Shape{1});
  CHECK(x.permute({1, 0}).strides() == Shape{1, 4});
  Tensor handle;
  handle = x;
  CHECK(handle.is_same(x));
  CHECK(!t.t().is_same(x));
}

TEST_CASE("indexing and slicing") {
  const Tensor x = arange(0, 24).reshape({2, 3, 4});
  CHECK(x[1][2][3].item() == 23);
  CHECK(x[-1].sizes() == Shape{3, 4});
  CHECK(values(x.index({1, Slice{}, 2})) == std::vector<double>{14, 18, 22});
  CHECK(values(x.index({0, Slice{1, {}}, Slice{0, 4, 3}})) == std::vector<double>{4, 7, 8, 11});
  CHECK(values(x.index({Slice{}, -1, -1})) == std::vector<double>{11, 23});
  CHECK(x.index({Slice{5, 9}}).sizes() == Shape{0, 3, 4});  // clamped
  CHECK(x.index({0, Slice{-2, {}}}).sizes() == Shape{2, 4});
  CHECK(values(x.narrow(2, 1, 2).select(1, 0)) == std::vector<double>{1, 2, 13, 14});
  CHECK(split(x, 2, 1)[1].sizes() == Shape{2, 1, 4});
  REQUIRE(split(zeros({2, 0}), 3, 1).size() == 1);  // so that cat puts back what was split
  CHECK(split(zeros({2, 0}), 3, 1)[0].sizes() == Shape{2, 0});
  CHECK_THROWS_WITH_AS(x[2], doctest::Contains("index 2 is out of range"), Error);
  CHECK_THROWS_WITH_AS(x.narrow(1, 2, 2), doctest::Contains("narrow: start 2 and length 2"), Error);
  CHECK_THROWS_AS(x.index({0, 0, 0, 0}), Error);
  CHECK_THROWS_AS(slice(x, 0, {0, 1, 0}), Error);
  CHECK_THROWS_AS(scalar(1)[0], Error);
}

TEST_CASE("reading numbers out") {
  CHECK(scalar(2.5).item() == 2.5);
  CHECK(full({1, 1}, 3).item<std::int64_t>() == 3);
  const std::int64_t big = (std::int64_t{1} << 60) + 1;
  CHECK(from_data(std::vector<std::int64_t>{big}, {1}).item<std::int64_t>() == big);
  CHECK(arange(0, 6).reshape({2, 3}).t().to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
  CHECK_THROWS_WITH_AS(zeros({2}).item(), "item: needs exactly one element, the tensor has shape [2]", Error);
  CHECK_THROWS_AS(zeros({0}).item(), Error);
  CHECK(zeros({2}).data<float>()[1] == 0);
  CHECK_THROWS_WITH_AS(zeros({2}).data<double>(), "data: the tensor is f32, asked for f64", Error);
}

TEST_CASE("an undefined tensor says so") {
  const Tensor none;
  CHECK(!none.defined());
  CHECK_THROWS_WITH_AS(static_cast<void>(none.sizes()), doctest::Contains("undefined"), Error);
  CHECK_THROWS_AS(static_cast<void>(none + ones({1})), Error);
  CHECK_THROWS_AS(exp(none), Error);
}

TEST_CASE("broadcasts and dims that do not fit name the shapes") {
  CHECK_THROWS_WITH_AS(static_cast<void>(zeros({2, 3}) + zeros({4})), doctest::Contains("[2, 3]"), Error);
  CHECK_THROWS_WITH_AS(zeros({2}).sum({1}), doctest::Contains("sum"), Error);
  CHECK_THROWS_WITH_AS(zeros({2, 2}).sum({0, -2}), doctest::Contains("listed twice"), Error);
  CHECK_THROWS_WITH_AS(zeros({2, 3}).reshape({4, -1}), doctest::Contains("reshape"), Error);
  CHECK_THROWS_WITH_AS(zeros({2, 3}).expand({4, 3}), doctest::Contains("expand"), Error);
  CHECK_THROWS_WITH_AS(zeros({2, 3}).permute({0, 0}), doctest::Contains("permute"), Error);
  CHECK_THROWS_WITH_AS(zeros({3}).t(), doctest::Contains("two dims"), Error);
  CHECK_THROWS_WITH_AS(exp(zeros({2}, {.dtype = DType::f8e4m3fn})), doctest::Contains("f8"), Error);
}

TEST_CASE("0-d and empty tensors work everywhere") {
  const Tensor s = scalar(2);
  CHECK((s + s * 3).item() == 8);
  CHECK(s.sum().item() == 2);
  CHECK(s.to(DType::f16).clone().dim() == 0);
  CHECK(s.expand({2, 2}).sum().item() == 8);
  CHECK(s.max().item() == 2);
  CHECK((s + ones({2, 2})).sizes() == Shape{2, 2});
  const Tensor e = zeros({0, 4});
  CHECK((e + 1).sizes() == Shape{0, 4});
  CHECK((e + ones({4})).sizes() == Shape{0, 4});
  CHECK(e.t().clone().sizes() == Shape{4, 0});
  CHECK(e.to(DType::bf16).numel() == 0);
  CHECK(e.reshape({2, 0}).sizes() == Shape{2, 0});
  CHECK(cat({e, ones({2, 4})}).sizes() == Shape{2, 4});
  CHECK(e.sum({0}).sizes() == Shape{4});
  CHECK(zeros({0}).to_vector<double>().empty());
  // in any order of memory
  const Tensor none = zeros({6, 0});
  const Tensor turned = zeros({3, 5}).t().narrow(1, 0, 0);
  CHECK(none.add_(none).mul_(2).fill_(1).copy_(none).numel() == 0);
  CHECK(turned.unsqueeze(1).squeeze(1).sizes() == Shape{5, 0});
  CHECK(turned.view({0, 7}).sizes() == Shape{0, 7});
}

TEST_CASE("promotion: the wider tensor decides, numbers never do") {
  const Tensor h = ones({2}, {.dtype = DType::f16});
  CHECK((h + 1e10).dtype() == DType::f16);
  CHECK((h + ones({}, {.dtype = DType::f32})).dtype() == DType::f32);
  CHECK((h + h.to(DType::bf16)).dtype() == DType::f32);
  CHECK((h * arange(0, 2)).dtype() == DType::f16);
  CHECK((arange(0, 2) + arange(0, 2).to(DType::u8)).dtype() == DType::i64);
  CHECK(exp(arange(0, 2)).dtype() == DType::f32);
  CHECK((h > 0).dtype() == DType::bool_);
  CHECK(values(arange(0, 2) / 2) == std::vector<double>{0, 0.5});
  CHECK_THROWS_AS(static_cast<void>((h > 0) + (h > 0)), Error);
}

TEST_CASE("swap_data exchanges the numbers inside a handle") {
  const Tensor x = ones({2, 2});
  Tensor handle;
  handle = x;
  x.swap_data(zeros({3}, {.dtype = DType::f16}));
  CHECK(handle.dtype() == DType::f16);
  CHECK(handle.sizes() == Shape{3});
  CHECK(handle.is_same(x));
}

TEST_CASE("as_strided stays inside its storage") {
  const Tensor x = arange(0, 10);
  CHECK(values(as_strided(x, {3, 2}, {3, 1}, 1)) == std::vector<double>{1, 2, 4, 5, 7, 8});
  CHECK_THROWS_WITH_AS(as_strided(x, {4}, {3}, 1), doctest::Contains("leave a storage of 80 bytes"), Error);
  CHECK_THROWS_AS(as_strided(x, {2}, {-1}, 0), Error);
}

TEST_CASE("what cannot be is an Error, whatever function is asked for it") {
  const double many = 1e15;
  CHECK_THROWS_WITH_AS(arange(0, many), doctest::Contains("out of memory"), Error);
  CHECK_THROWS_WITH_AS(linspace(0, 1, static_cast<std::int64_t>(many)), doctest::Contains("out of memory"), Error);
  CHECK_THROWS_WITH_AS(randint(0, 2, {static_cast<std::int64_t>(many)}), doctest::Contains("out of memory"), Error);
  const Tensor x = ones({3, 4});
  CHECK_THROWS_WITH_AS(narrow(x, 0, 1, INT64_MAX), doctest::Contains("leave dim 0 of [3, 4]"), Error);
  CHECK_THROWS_WITH_AS(conv2d(ones({1, 1, 4, 4}), ones({1, 1, 0, 3})), doctest::Contains("at least 1 x 1"), Error);
  CHECK_THROWS_WITH_AS(scaled_dot_product_attention(x, x, x, {}, {.dropout = 2}), doctest::Contains("0 to 1"), Error);
  CHECK_THROWS_WITH_AS(cross_entropy(ones({2, 3, 4}), zeros({4, 2}, {.dtype = DType::i64})),
                       doctest::Contains("must be [2, 4], given [4, 2]"), Error);
}

TEST_CASE("one integer is a shape or a dim; a dtype or a device alone are options") {
  CHECK(zeros(3).sizes() == Shape{3});
  CHECK(values(arange(0, 6).reshape({2, 3}).sum(1)) == std::vector<double>{3, 12});
  CHECK(zeros({2}, DType::f16).dtype() == DType::f16);
  CHECK(full(2, 3, Device::cpu()).device().is_cpu());
  CHECK(ones(2).to(Device::cpu(), DType::bf16).dtype() == DType::bf16);
  CHECK(rand({2}, DType::f16).dtype() == DType::f16);
  CHECK(randn(2, DType::bf16).dtype() == DType::bf16);
  CHECK(randn({2, 3}, Device::cpu()).sizes() == Shape{2, 3});
  CHECK(tensor({{1, 2}, {3, 4}}, DType::f64).dtype() == DType::f64);
}

TEST_CASE("gelu, var and norm are methods") {
  const Tensor x = tensor({{1, -5, 3}, {3, 2, -1}}, DType::f64);
  CHECK(values(x.gelu()) == values(gelu(x)));
  CHECK(values(x.gelu(Gelu::tanh)) == values(gelu(x, Gelu::tanh)));
  CHECK(x.norm().item() == 7);
  CHECK(values(x.norm(1, 1, true)) == std::vector<double>{9, 6});
  CHECK(values(x.var(0)) == std::vector<double>{2, 24.5, 8});
  CHECK(values(x.var(0, false, 0)) == std::vector<double>{1, 12.25, 4});
}

TEST_CASE("amax is a tensor, over any dims") {
  Tensor x = tensor({{1, -5, 3}, {3, 2, -1}});
  CHECK(x.amax().item() == 3);
  CHECK(values(amax(x, 1)) == std::vector<double>{3, 3});
  CHECK(values(x.amax(0)) == std::vector<double>{3, 2, 3});
  CHECK(amax(x, {0, -1}, true).sizes() == Shape{1, 1});
  CHECK(amax(x.to(DType::i64), 0).dtype() == DType::i64);
  CHECK(values(x.amax(0)) == values(x.max(0)));
  x.set_requires_grad();
  amax(x).backward();  // equals share it, as torch.amax says
  CHECK(values(x.grad()) == std::vector<double>{0, 0, 0.5, 0.5, 0, 0});
}

TEST_CASE("assignment operators work in place, with gradients") {
  Tensor x = ones({2});
  const Tensor same = x;  // NOLINT(performance-unnecessary-copy-initialization): x changes in place
  x += 3;
  x -= ones({2});
  x *= 4;
  x /= full({2}, 2);
  CHECK(x.is_same(same));
  CHECK(values(x) == std::vector<double>{6, 6});
  Tensor a = full({2}, 6);
  Tensor b = full({2}, 2);
  a.set_requires_grad();
  b.set_requires_grad();
  Tensor y = a * 1;
  y /= b;
  y.sum().backward();
  CHECK(values(a.grad()) == std::vector<double>{0.5, 0.5});
  CHECK(values(b.grad()) == std::vector<double>{-1.5, -1.5});
}

TEST_CASE("binary ops and softmax are methods") {
  const Tensor x = arange(1, 4, 1, {.dtype = DType::f32});
  CHECK(values(x.maximum(2).add(x)) == std::vector<double>{3, 4, 6});
  CHECK(values(x.pow(2)) == std::vector<double>{1, 4, 9});
  CHECK(x.softmax(0).sum().item() == doctest::Approx(1));
  CHECK(x.argmin(0).item() == 0);
  CHECK(values(x.clamp(2, 3)) == std::vector<double>{2, 2, 3});
}

TEST_CASE("operators on masks, and the elements that a mask selects") {
  Tensor x = arange(0, 6, 1, {.dtype = DType::f32}).reshape({2, 3});
  x.set_requires_grad();
  const Tensor mask = ((x > 0) & (x < 4) & !(x == 2)) | (x == 5);
  const Tensor picked = x[mask];
  CHECK(values(picked) == std::vector<double>{1, 3, 5});
  picked.sum().backward();
  CHECK(values(x.grad()) == std::vector<double>{0, 1, 0, 1, 0, 1});
  CHECK(x[(x > 2).select(1, 0)].sizes() == Shape{1, 3});
  CHECK(x[x > 9].sizes() == Shape{0});
  CHECK(values(~(x > 2) ^ (x > 1)) == std::vector<double>{1, 1, 0, 1, 1, 1});
  CHECK_THROWS_WITH_AS(x & mask, doctest::Contains("take masks (bool)"), Error);
  CHECK_THROWS_WITH_AS(x[ones({2})], doctest::Contains("a mask must be bool"), Error);
}

TEST_CASE("a stream shows a tensor as to_string does") {
  const Tensor x = arange(0, 3);
  std::ostringstream out;
  out << x;
  CHECK(out.str() == to_string(x));
}
