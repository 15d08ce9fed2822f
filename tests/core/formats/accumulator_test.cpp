#include <gradual/core/ops/accumulator_of.h>

#include <bit>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "accumulation.h"
#include "support/source_dir.h"

using namespace accumulation;

namespace {

const char* const kNames[] = {"f32",
                              "fp16-acc",
                              "bf16-acc",
                              "fp16-unfused",
                              "bf16-unfused/promote=20",
                              "f32/product=f32",
                              "f32/product=e4m3fn",
                              "bf16-acc:up/chunk=7/product=e5m4",
                              "e5m7:down/product=e6m0",
                              "hopper-fp8-14bit",
                              "f32:toward-zero",
                              "fp16-acc:toward-zero",
                              "fp16-acc:up",
                              "e5m7:down",
                              "bf16-acc:to-odd",
                              "e4m3:nearest-away",
                              "e4m3fn",
                              "e3m2fn",
                              "e6m0",
                              "fp16-acc/chunk=64",
                              "bf16-acc/chunk=7",
                              "hopper-fp8-14bit/promote=128",
                              "fp16-acc/promote=5",
                              "e5m4/chunk=3/promote=10",
                              "bf16-acc:up/chunk=1",
                              "f32/promote=64",
                              "volta-fp16",
                              "hopper-fp16",
                              "hopper-fp8",
                              "hopper-fp8/promote=128",
                              "fp16-acc/group=16/fraction=25",
                              "bf16-acc:down/group=5/fraction=9/chunk=7",
                              "e5m4:up/group=64/fraction=3",
                              "hopper-fp16/lowest=-4",
                              "cdna1-fp16",
                              "e5m7:down/group=9/adds=exact/chunk=20"};

}  // namespace

TEST_CASE("a product under an accumulator is its definition") {
  struct Data {
    int bits, top;  // all of a float; values below 1; few bits, so that sums are ties; overflow
  };
  const Shape shapes[] = {{5, 70, 300}, {70, 3, 150}, {1, 1, 257}, {2, 65, 64}, {3, 2, 1}};
  for (const Data data : {Data{24, 6}, Data{24, 0}, Data{4, 3}, Data{11, 12}}) {
    for (const Shape& s : shapes) {
      const Tensor a = numbers({s[0], s[2]}, data.bits, data.top, 1);
      const Tensor b = numbers({s[1], s[2]}, data.bits, data.top, 2);
      for (const std::string name : kNames) {
        const Accumulator how = accumulator(name);
        const Tensor c = under(name, [&] { return matmul(a, b.t()); });
        const int wrong = differing(c, [&](std::int64_t i) { return dot(how, row(a, i / s[1]), row(b, i % s[1])); });
        CHECK_MESSAGE(wrong == 0, name, " with numbers below 2^", data.top, ": ", wrong, " of ", c.numel());
      }
    }
  }
}

TEST_CASE("a sum that has more bits than a double is rounded once") {
  // 32800 has an odd last bit in f16, whose spacing there is 32: 16 more is a tie, 16 - 2^-42 is below it. Their sum in
  // f64 is the tie.
  const float x = 1 + 0x1p-23F;
  const float y = 1 - 0x1p-23F;
  const Tensor a = from_data(std::vector<float>{32800, 4 * x}, {1, 2});
  const Tensor b = from_data(std::vector<float>{1, 4 * y}, {2, 1});
  REQUIRE(32800.0 + 16 * static_cast<double>(x) * y == 32816.0);
  CHECK(under("fp16-acc", [&] { return matmul(a, b); }).item() == 32800);
  CHECK(under("fp16-acc:up", [&] { return matmul(a, b); }).item() == 32832);
  CHECK(under("fp16-acc:toward-zero", [&] { return matmul(-a, b); }).item() == -32800);
}

TEST_CASE("the suffix -acc goes with every format, as in fp16-acc") {
  CHECK(accumulator("e8m18-acc/chunk=64") == accumulator("e8m18/chunk=64"));
  CHECK(accumulator("tf32-acc:stochastic") == accumulator("tf32:stochastic"));
  CHECK_THROWS_AS(accumulator("-acc"), Error);
  CHECK_THROWS_AS(accumulator("e8m18-acc-acc"), Error);
}

TEST_CASE("4096 ones") {
  const Tensor a = ones({1, 4096});
  const std::pair<const char*, double> cases[] = {{"f32", 4096},
                                                  {"f64", 4096},
                                                  {"fp16-acc", 2048},
                                                  {"fp16-acc:toward-zero", 2048},
                                                  {"fp16-acc:up", 8192},  // by 2 from 2048 on, by 4 from 4096 on
                                                  {"bf16-acc", 256},
                                                  {"bf16-acc/chunk=64", 4096},
                                                  {"bf16-acc/promote=128", 4096},
                                                  {"fp16-acc/chunk=64", 4096},
                                                  {"e4m3fn", 16},
                                                  {"hopper-fp8-14bit", 4096}};
  for (const auto& one : cases) {
    const char* const name = one.first;
    const double expected = one.second;
    CHECK_MESSAGE(under(name, [&] { return matmul(a, a.t()); }).item() == expected, name);
    CHECK_MESSAGE(under(name, [&] { return sum(a); }).item() == expected, name);
    CHECK_MESSAGE(under(name, [&] { return mean(a); }).item() == expected / 4096, name);
  }
}

TEST_CASE("beyond the range of an accumulator") {
  const auto twice = [](const char* name, float x) {
    const Tensor a = full({1, 2}, x);
    return under(name, [&] { return matmul(a, ones({2, 1})); }).item();
  };
  CHECK(twice("fp16-acc", 40000) == kInf);
  CHECK(twice("fp16-acc", -40000) == -kInf);
  CHECK(std::isnan(twice("e4m3fn", 300)));
  CHECK(twice("e2m1fn", 5) == 6);
  CHECK(twice("f32", 3e38F) == kInf);
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* name : {"f32", "f64", "fp16-acc", "hopper-fp8-14bit", "bf16-acc/chunk=1", "bf16-acc/promote=1",
                           "cdna1-fp16", "cdna2-bf16", "cdna3-fp16", "cdna3-fp8"}) {
    CHECK(twice(name, inf) == kInf);
    CHECK(std::isnan(twice(name, std::numeric_limits<float>::quiet_NaN())));
    const Tensor a = from_data(std::vector<float>{inf, -inf}, {1, 2});
    CHECK(std::isnan(under(name, [&] { return matmul(a, ones({2, 1})); }).item()));
  }
}

TEST_CASE("a product of 2^128 is Inf where products are added before the sum") {
  const Tensor a = from_data(std::vector<float>{0x1p64F, -0x1p64F}, {1, 2});
  const Tensor b = full({2, 1}, 0x1p64F);
  CHECK(std::isnan(under("cdna3-fp16", [&] { return matmul(a, b); }).item()));
  CHECK(std::isnan(under("cdna2-bf16", [&] { return matmul(a, b); }).item()));
  CHECK(under("cdna1-bf16", [&] { return matmul(a, b); }).item() == 0);
  CHECK(under("cdna3-fp8", [&] { return matmul(a, b); }).item() == 0);
}

TEST_CASE("subnormal operands and products are zero in pairwise sums") {
  const auto product = [](const char* name, float x, float y) {
    const Tensor a = full({1, 1}, x);
    return under(name, [&] { return matmul(a, full({1, 1}, y)); }).item();
  };
  CHECK(product("cdna2-fp16", 0x1p-14F, 1) == 0x1p-14);
  CHECK(product("cdna2-fp16", 0x1.8p-15F, 1) == 0);
  CHECK(product("cdna2-bf16", 0x1.8p-15F, 1) == 0x1.8p-15);
  CHECK(product("cdna2-bf16", 0x1p-63F, 0x1p-63F) == 0x1p-126);
  CHECK(product("cdna2-bf16", 0x1p-63F, 0x1p-64F) == 0);
  CHECK(product("cdna1-bf16", 0x1p-63F, 0x1p-64F) == 0x1p-127);
}

TEST_CASE("a product of its own format is rounded before it is added, and terms of sums are no products") {
  // 1 + 2^-11 has a square that f16 rounds to 1 + 2^-10; with -1 the sum is 2^-10, and exactly 2^-10 + 2^-22
  const Tensor a = from_data(std::vector<double>{1 + 0x1p-11, -1}, {1, 2}, {.dtype = DType::f32});
  const Tensor b = from_data(std::vector<double>{1 + 0x1p-11, 1}, {2, 1}, {.dtype = DType::f32});
  CHECK(under("f32", [&] { return matmul(a, b); }).item() == 0x1p-10 + 0x1p-22);
  CHECK(under("f32/product=f16", [&] { return matmul(a, b); }).item() == 0x1p-10);
  const Tensor large = from_data(std::vector<double>{300, 300}, {1, 2}, {.dtype = DType::f32});
  CHECK(std::isinf(under("f32/product=f16", [&] { return matmul(large, large.t()); }).item()));
  const Tensor x = full({4}, 1 + 0x1p-12);
  CHECK(under("f32/product=f16", [&] { return sum(x); }).item() == 4 + 0x1p-10);
  CHECK_FALSE(accumulator_of(OpId::matmul).has_value());
  const AccumulatorScope scope(accumulator("fp16-acc/chunk=4/product=e4m3fn"));
  CHECK(accumulator_of(OpId::matmul) == accumulator("fp16-acc/chunk=4/product=e4m3fn"));
  CHECK(accumulator_of(OpId::sum) == accumulator("fp16-acc/chunk=4"));
  CHECK(accumulator_of(OpId::mean) == accumulator("fp16-acc/chunk=4"));
  CHECK_FALSE(accumulator_of(OpId::norm).has_value());
}

TEST_CASE("f64 sums are doubles, and f64 tensors know no accumulator") {
  const Tensor a = numbers({4, 500}, 24, 6, 3);
  const Tensor b = numbers({500, 3}, 24, 6, 4);
  const Tensor bt = b.t().contiguous();
  const Tensor c = under("f64", [&] { return matmul(a, b); });
  const Accumulator f64 = accumulator("f64");
  CHECK(differing(c, [&](std::int64_t i) { return static_cast<float>(dot(f64, row(a, i / 3), row(bt, i % 3))); }) == 0);
  // Rounded to f16 once: 1 + 2^-11 is a tie, and 2^-40 more is above it, but not in f32.
  const Tensor x = from_data(std::vector<double>{1.0, 0x1p-11, 0x1p-20}, {1, 3}, {.dtype = DType::f16});
  const Tensor y = from_data(std::vector<double>{1.0, 1.0, 0x1p-20}, {3, 1}, {.dtype = DType::f16});
  CHECK(under("f64", [&] { return matmul(x, y); }).item() == 1 + 0x1p-10);
  const Tensor d = a.to(DType::f64);
  const Tensor e = b.to(DType::f64);
  CHECK(same_bits(under("e4m3", [&] { return matmul(d, e); }), matmul(d, e)));
  CHECK(same_bits(under("e4m3", [&] { return sum(d); }), sum(d)));
}

TEST_CASE("a bias is added to the finished sum, and the result rounded once") {
  const Tensor x = numbers({9, 40}, 8, 3, 5).to(DType::f16);
  const Tensor w = numbers({11, 40}, 8, 3, 6).to(DType::f16);
  const Tensor bias = numbers({11}, 8, 3, 7).to(DType::f16);
  for (const std::string name : {"f32", "e5m4", "hopper-fp8-14bit/promote=16"}) {
    const Accumulator how = accumulator(name);
    const Tensor y = under(name, [&] { return linear(x, w, bias); });
    CHECK(y.dtype() == DType::f16);
    const auto expected = [&](std::int64_t i) {
      const double total = dot(how, row(x, i / 11), row(w, i % 11));
      return rounded(fixed(total) + fixed(at(bias, i % 11)), Format::ieee(5, 10), RoundingMode::nearest_even);
    };
    CHECK(differing(y, expected) == 0);
  }
}

TEST_CASE("batches, vectors and layouts take the same chains") {
  const Tensor a = numbers({3, 4, 50}, 11, 2, 8);
  const Tensor b = numbers({3, 50, 6}, 11, 2, 9);
  const AccumulatorScope scope(accumulator("bf16-acc/chunk=9"));
  const Tensor c = matmul(a, b);
  for (std::int64_t i = 0; i < 3; ++i) {
    CHECK(same_bits(c.select(0, i), matmul(a.select(0, i), b.select(0, i))));
    const Tensor v = matmul(a.select(0, i), b.select(0, i).select(1, 2));
    CHECK(same_bits(v, c.select(0, i).select(1, 2).contiguous()));
  }
  CHECK(same_bits(matmul(a, b.transpose(1, 2).contiguous().transpose(1, 2)), c));
  CHECK(same_bits(matmul(b.transpose(1, 2), a.transpose(1, 2)).transpose(1, 2), c));
}

TEST_CASE("sums take elements in row-major order") {
  const Tensor x = numbers({5, 6, 70}, 11, 4, 10);
  for (const std::string name : {"fp16-acc", "e5m4:toward-zero/chunk=8", "bf16-acc/promote=16", "f32"}) {
    const Accumulator how = accumulator(name);
    for (const Tensor& t : {x, x.transpose(0, 2), x.permute({1, 2, 0}).contiguous().permute({2, 0, 1})}) {
      for (const int kept : {0, 1, 2}) {
        Shape dims;
        for (int d = 0; d < 3; ++d)
          if (d != kept) dims.push_back(d);
        const Tensor s = under(name, [&] { return sum(t, dims); });
        const auto expected = [&](std::int64_t i) {
          const std::vector<double> v = values(t.select(kept, i));
          return dot(how, v, std::vector<double>(v.size(), 1.0));
        };
        CHECK(differing(s, expected) == 0);
        const auto n = static_cast<float>(t.numel() / s.numel());
        const Tensor m = under(name, [&] { return mean(t, dims); });
        CHECK(differing(m, [&](std::int64_t i) { return static_cast<float>(expected(i)) / n; }) == 0);
      }
    }
  }
  const Tensor none = zeros({3, 0});
  CHECK(under("fp16-acc", [&] { return sum(none, {1}); }).sum().item() == 0);
}

TEST_CASE("gradients under a scope take its accumulator") {
  Tensor x = numbers({4, 30}, 11, 2, 17);
  Tensor w = numbers({5, 30}, 11, 2, 18);
  x.set_requires_grad();
  w.set_requires_grad();
  const Tensor dy = numbers({4, 5}, 11, 2, 19);
  const AccumulatorScope scope(accumulator("e5m3"));
  linear(x, w).backward(dy);
  CHECK(same_bits(x.grad(), matmul(dy, w.detach())));
  CHECK(same_bits(w.grad(), matmul(dy.t(), x.detach())));
}

TEST_CASE("the number of threads changes no bit of an accumulated product") {
  const Tensor a = numbers({90, 200}, 11, 2, 20);
  const Tensor b = numbers({200, 130}, 11, 2, 21);
  const Tensor x = numbers({8, 3, 12, 12}, 11, 2, 22);
  const Tensor w = numbers({5, 3, 3, 3}, 11, 2, 23);
  const AccumulatorScope scope(accumulator("fp16-acc/chunk=16"));
  const Tensor c = matmul(a, b);
  const Tensor s = sum(a, {0});
  const Tensor y = conv2d(x, w);
  for_thread_counts([&] { return matmul(a, b); }, [&](const Tensor& t) { CHECK(same_bits(t, c)); });
  for_thread_counts([&] { return sum(a, {0}); }, [&](const Tensor& t) { CHECK(same_bits(t, s)); });
  for_thread_counts([&] { return conv2d(x, w); }, [&](const Tensor& t) { CHECK(same_bits(t, y)); });
}

TEST_CASE("scopes nest, and end") {
  CHECK(!current_accumulator());
  {
    const AccumulatorScope outer(accumulator("fp16-acc"));
    CHECK_THROWS_AS(AccumulatorScope(Accumulator{.chunk = -1}), Error);
    CHECK(to_string(*current_accumulator()) == "fp16-acc");
    {
      const AccumulatorScope inner(std::nullopt);
      CHECK(!current_accumulator());
    }
    CHECK(to_string(*current_accumulator()) == "fp16-acc");
    const Tensor x = numbers({4, 32}, 24, 6, 24);  // the transform of a recipe's operands is exact work of its own
    const Tensor h = hadamard16(x, 0x1234);
    const AccumulatorScope none(std::nullopt);
    CHECK(same_bits(h, hadamard16(x, 0x1234)));
  }
  CHECK(!current_accumulator());
}

TEST_CASE("names of accumulators and back") {
  for (const char* text :
       {"f32", "f64", "fp16-acc", "bf16-acc", "hopper-fp8-14bit", "e5m2", "e8m13", "e8m13:up", "e4m3fn", "tf32",
        "e6m9:toward-zero", "fp16-acc:to-odd/chunk=64", "f32/promote=4", "hopper-fp8-14bit/chunk=32/promote=128",
        "f64/chunk=2", "fp16-unfused/chunk=8", "bf16-acc/product=fp16", "f32/product=bf16"})
    CHECK(to_string(accumulator(text)) == text);
  for (int x = 1; x <= 8; ++x)
    for (int m = 1; m <= 23; ++m) {
      if (format("e" + std::to_string(x) + "m" + std::to_string(m)) != Format::ieee(x, m))
        continue;  // e2m1, e2m3 and e3m2 are the OCP formats
      const Accumulator a{.format = Format::ieee(x, m), .rounding = {.mode = RoundingMode::down}, .chunk = m};
      CHECK(accumulator(to_string(a)) == a);
    }
  CHECK(accumulator("e8m13:toward-zero") == accumulator("hopper-fp8-14bit"));
  CHECK(accumulator("hopper-fp8-14bit:nearest-even") == accumulator("e8m13"));
  CHECK(accumulator("e5m10") == accumulator("fp16-acc"));
  CHECK(accumulator("e5m7/promote=3/chunk=2") == accumulator("e5m7/chunk=2/promote=3"));
}

TEST_CASE("names of accumulators that add groups") {
  for (const NamedAccumulator& known : accumulators()) CHECK(to_string(accumulator(known.name)) == known.name);
  CHECK(to_string(accumulator("hopper-fp8/promote=128")) == "hopper-fp8/promote=128");
  CHECK(to_string(accumulator("e8m23:toward-zero/fraction=24/group=8")) == "ampere-fp16");
  CHECK(to_string(accumulator("bf16-acc/group=4/fraction=20")) == "bf16-acc/group=4/fraction=20");
  for (const char* text :
       {"cdna3-fp16/lowest=-14", "f32/group=8/adds=pairwise", "cdna1-fp16/promote=128", "hopper-fp8/lowest=-6",
        "cdna2-fp16/chunk=8", "bf16-acc/group=4/fraction=9/adds=late-even-odd"})
    CHECK(to_string(accumulator(text)) == text);
  CHECK(accumulator("f32/group=4/adds=pairwise/lowest=-14") == accumulator("cdna2-fp16"));
  CHECK(to_string(accumulator("e5m4:stochastic:8")) == "e5m4:stochastic:8");
  const Accumulator table{.format = format("posit8")};
  CHECK_THROWS_WITH_AS(check_valid(table), doctest::Contains("not the table posit8"), Error);
}

TEST_CASE("tensor and matrix cores add up as MMA-Sim says") {
  std::ifstream file(source_dir() + "/tests/golden/mmasim.csv");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::vector<std::string> cells;
    std::istringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) cells.push_back(cell);
    REQUIRE(cells.size() == 7);
    const int bits = std::stoi(cells[1]);
    const int low = std::stoi(cells[2]);
    const int high = std::stoi(cells[3]);
    const std::int64_t length = std::stoi(cells[4]);
    auto state = static_cast<std::uint64_t>(std::stoi(cells[5]));
    const auto vector = [&] {  // the generator of make_mmasim.py
      std::vector<float> v;
      for (std::int64_t i = 0; i < length; ++i) {
        state = state * 6364136223846793005 + 1442695040888963407;
        const auto mantissa = static_cast<double>(state >> 40 & ((1u << bits) - 1));
        const int exponent = low + static_cast<int>((state >> 33 & 127) % static_cast<unsigned>(high - low + 1));
        const double size = state >> 59 == 0 ? 0 : std::ldexp(1 + std::ldexp(mantissa, -bits), exponent);
        v.push_back(static_cast<float>((state >> 58 & 1) != 0 ? -size : size));
      }
      return v;
    };
    std::istringstream sums(cells[6]);
    for (std::string sum; sums >> sum;) {
      const Tensor a = from_data(vector(), {1, length});
      const Tensor b = from_data(vector(), {length, 1});
      const float got = under(cells[0], [&] { return matmul(a, b); }).item<float>();
      const auto wanted = static_cast<std::uint32_t>(std::stoul(sum, nullptr, 16));
      if (cells[0].starts_with("fp16")) CHECK(got == format("fp16").decode(wanted));
      else CHECK(std::bit_cast<std::uint32_t>(got) == wanted);
    }
  }
  CHECK(lines == 28);
}

TEST_CASE("stochastic sums: unbiased, the same on any number of threads, with words of their key") {
  Accumulator how = accumulator("bf16-acc:stochastic");
  const auto under_key = [&](std::uint64_t seed, const Tensor& a, const Tensor& b) {
    how.key = {seed, 3};
    const AccumulatorScope scope(how);
    return matmul(a, b);
  };
  // 4096 ones: a bf16 sum to nearest stays at 256. Each addition errs by less than the spacing, 16 at most.
  const Tensor ones_a = ones({1, 4096});
  const Tensor ones_b = ones({4096, 64});
  double mean = 0;
  for (std::int64_t j = 0; j < 64; ++j) mean += under_key(1, ones_a, ones_b).select(1, j).item() / 64;
  CHECK(std::abs(mean - 4096) < 4 * 16 * std::sqrt(4096.0) / std::sqrt(64.0));
  CHECK(under("bf16-acc", [&] { return matmul(ones_a, ones_b); }).select(1, 0).item() == 256);
  const Tensor a = numbers({70, 150}, 8, 3, 1);
  const Tensor b = numbers({150, 130}, 8, 3, 2);
  const Tensor first = under_key(7, a, b);
  CHECK(same_bits(first, under_key(7, a, b)));
  CHECK_FALSE(same_bits(first, under_key(8, a, b)));
  for_thread_counts([&] { return under_key(7, a, b); }, [&](const Tensor& c) { CHECK(same_bits(c, first)); });
  // An element's words do not depend on the shape around it, but on its place.
  const Tensor twice = cat({a, a}, 0);
  CHECK(same_bits(slice(under_key(7, twice, b), 0, {0, 70}), first));
  CHECK_FALSE(same_bits(slice(under_key(7, twice, b), 0, {70, 140}), first));
  // A sum that needs no rounding stays exact.
  CHECK(same_bits(under_key(5, numbers({5, 9}, 2, 0, 3).to(DType::f32), zeros({9, 4})), zeros({5, 4})));
}

TEST_CASE("bad accumulators say what is allowed") {
  const std::pair<const char*, const char*> cases[] = {
      {"fp16-ac",
       "accumulator 'fp16-ac': there are f32, f64, fp16-acc, bf16-acc, fp16-unfused, bf16-unfused, "
       "hopper-fp8-14bit, volta-fp16, ampere-fp16, ampere-tf32, hopper-fp16, hopper-tf32, ada-fp8, hopper-fp8, "
       "blackwell-fp8, cdna1-fp16, cdna1-bf16, cdna2-fp16, cdna2-bf16, cdna2-bf16-1k, cdna3-fp16, cdna3-tf32, "
       "cdna3-fp8, formats as bf16 and eXmY (or eXmY-acc); then :ROUNDING, /chunk=N, /promote=N, /group=N, "
       "/fraction=N, /adds=WAY, /lowest=N, /product=FORMAT; did you mean 'fp16-acc'?"},
      {"", "there are f32"},
      {"e9m3", "9 exponent bits; allowed are 1 to 8"},
      {"e5m24", "24 mantissa bits; allowed are 0 to 23"},
      {"e8m0fnu", "sums need a sign"},
      {"fp16-acc:towards-zero", "did you mean 'toward-zero'?"},
      {"fp16-acc:stochastic:40", "the number of random bits, 1 to 32"},
      {"fp16-acc/group=4",
       "a group of 1 to 64 products is cut at 1 to 40 fraction bits (both 0: no groups), not 4 at 0"},
      {"hopper-fp8/group=65", "not 65 at 13"},
      {"f64/group=4/fraction=9", "f64 sums have no groups"},
      {"nf4", "there are f32"},
      {"fp16-acc:", "no rounding ''"},
      {"fp16-acc/chunk=0", "chunk=N takes a whole number from 1 on, not 'chunk=0'"},
      {"fp16-acc/chunk=-4", "chunk=N takes a whole number from 1 on"},
      {"fp16-acc/chunk", "chunk=N takes a whole number from 1 on"},
      {"fp16-acc/promote=12x", "promote=N takes a whole number from 1 on"},
      {"fp16-acc/promote=99999999999", "promote=N takes a whole number from 1 on"},
      {"fp16-acc/chunks=4",
       "no option 'chunks=4'; there are chunk=N, promote=N, group=N, fraction=N, adds=WAY, lowest=N, product=FORMAT; "
       "did you mean 'chunk=N'?"},
      {"fp16-acc/product=e8m0fnu", "products need a sign"},
      {"fp16-acc/product=e5m10/product=e5m10", "product is given twice"},
      {"fp16-acc/product=fp17", "fp17"},
      {"volta-fp16/product=fp16", "products are rounded one by one (product=fp16): not in groups, nor for f64 sums"},
      {"f64/product=bf16", "not in groups, nor for f64 sums"},
      {"cdna1-fp16/adds=exactly", "adds=WAY takes aligned, exact, pairwise, late, late-even-odd, not 'exactly'"},
      {"cdna1-fp16/adds=exact/adds=late", "adds is given twice"},
      {"cdna1-fp16/fraction=3", "add exact have a group of 1 to 64 products and no fraction bits, not 4 at 3"},
      {"f32/adds=pairwise", "not 0 at 0"},
      {"f32/group=8/adds=late", "not 8 at 0"},
      {"cdna2-bf16:stochastic", "pairwise sums are not rounded by chance"},
      {"f32/lowest=-14", "lowest, an exponent of operands, is for groups"},
      {"hopper-fp8/lowest=-200", "-149 to 0, not -200"},
      {"hopper-fp8/lowest=e", "lowest=N takes a whole number"},
      {"hopper-fp8/lowest=-6/lowest=-6", "lowest is given twice"},
      {"fp16-acc/", "no option ''"},
      {"fp16-acc/chunk=2/chunk=3", "chunk is given twice"},
      {"f64:toward-zero", "f64 sums are doubles"}};
  for (const auto& one : cases) {
    const std::string text = one.first;
    const std::string message = one.second;
    std::string said;
    try {
      static_cast<void>(accumulator(text));
    } catch (const Error& e) { said = e.what(); }
    CHECK_MESSAGE(said.find(message) != std::string::npos, text, " said: ", said);
  }
  Accumulator unsigned_sums;
  unsigned_sums.format = format("e8m0fnu");
  CHECK_THROWS_WITH_AS(check_valid(unsigned_sums), doctest::Contains("sums need a sign"), Error);
  CHECK_THROWS_WITH_AS(check_valid(Accumulator{.promote = -2}), doctest::Contains("(0: never), not -2"), Error);
}

// An emulated FP8 product runs as an f32 product of numbers that f32 (and bf16) hold. By Higham (2002), 3.1, a sum of k
// terms in any order is off by at most gamma_(k-1) sum |a b|; gamma_k = k u / (1 - k u), u = 2^-24.
TEST_CASE("products of 8-, 6- and 4-bit numbers are exact, and an f32 product is f32 accumulation") {
  for (const char* name : {"e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m3fn", "e3m2fn", "e2m1fn"}) {
    CAPTURE(name);
    const Format f = format(name);
    std::vector<float> all;
    for (std::uint32_t c = 0; c < 1u << f.bits(); ++c)
      if (std::isfinite(f.decode(c))) all.push_back(f.decode(c));
    int inexact = 0;
    for (const float x : all) {
      for (const float y : all)
        inexact += static_cast<double>(x * y) != static_cast<double>(x) * static_cast<double>(y);
    }
    CHECK(inexact == 0);

    const std::int64_t m = 24;
    const std::int64_t n = 40;
    const std::int64_t k = 777;
    const auto draw = [&](const Shape& s, std::uint64_t seed) {
      Generator g(seed);
      const Tensor index = randint(0, static_cast<std::int64_t>(all.size()), s, {.dtype = DType::i64}, g);
      return index_select(from_data(all, {static_cast<std::int64_t>(all.size())}), 0, index.reshape({-1})).reshape(s);
    };
    const Tensor a = draw({m, k}, 25);
    const Tensor b = draw({n, k}, 26);
    const Tensor c = matmul(a, b.t());
    CHECK(same_bits(a.to(DType::bf16).to(DType::f32), a));
    CHECK(same_bits(matmul(a.to(DType::bf16), b.to(DType::bf16).t()), c.to(DType::bf16)));
    // In units of the smallest product: rounding to f32 leaves multiples of it.
    const double unit = f.min_positive() * f.min_positive();
    const double u = 0x1p-24;
    const double gamma = static_cast<double>(k - 1) * u / (1 - static_cast<double>(k - 1) * u);
    int beyond = 0;
    for (std::int64_t i = 0; i < c.numel(); ++i) {
      const std::vector<double> x = row(a, i / n);
      const std::vector<double> y = row(b, i % n);
      Int exact = 0;
      Int size = 0;
      for (std::size_t p = 0; p < x.size(); ++p) {
        const auto term = static_cast<Int>(x[p] * y[p] / unit);
        exact += term;
        size += term < 0 ? -term : term;
      }
      const Int error = static_cast<Int>(at(c, i) / unit) - exact;
      beyond += std::fabs(static_cast<double>(error)) > gamma * static_cast<double>(size);
    }
    CHECK(beyond == 0);
  }
}
