// The probe against dot products of known order and rounding: written here, emulated, and this processor's.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/gradual.h>
#include <gradual/lab/products.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

using namespace gradual;
using namespace gradual::inspect;
using lab::emulated_product, lab::bf16_claim, lab::check_claim, lab::CheckedFact, lab::Product;

namespace {

// Orders of a sum of n terms, over any kind of number: term(i) is one, add(a, b) a sum.
constexpr auto kInTurn = [](int n, const auto& term, const auto& add) {
  auto sum = term(0);
  for (int i = 1; i < n; ++i) sum = add(sum, term(i));
  return sum;
};
constexpr auto kReversed = [](int n, const auto& term, const auto& add) {
  auto sum = term(n - 1);
  for (int i = n - 2; i >= 0; --i) sum = add(sum, term(i));
  return sum;
};
constexpr auto kPairwise = [](int n, const auto& term, const auto& add) {
  const auto of = [&](const auto& self, int from, int to) -> decltype(term(0)) {
    return to - from == 1 ? term(from) : add(self(self, from, (from + to) / 2), self(self, (from + to) / 2, to));
  };
  return of(of, 0, n);
};
constexpr auto kStrided = [](int n, const auto& term, const auto& add) {  // 8 lanes, as with AVX2
  std::vector<decltype(term(0))> lanes;
  for (int i = 0; i < n; ++i) {
    if (i < 8) lanes.push_back(term(i));
    else lanes[static_cast<std::size_t>(i % 8)] = add(lanes[static_cast<std::size_t>(i % 8)], term(i));
  }
  for (std::size_t half = 4; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) lanes[i] = add(lanes[i], lanes[i + half]);
  return lanes[0];
};
template <int length>
constexpr auto kBlocked = [](int n, const auto& term, const auto& add) {
  const auto block = [&](int from) {
    return kInTurn(
        std::min(length, n - from), [&](int i) { return term(from + i); }, add);
  };
  auto sum = block(0);
  for (int from = length; from < n; from += length) sum = add(sum, block(from));
  return sum;
};
// Pairs, the odd place first, as VDPBF16PS adds them.
constexpr auto kPairs = [](int n, const auto& term, const auto& add) {
  auto sum = add(term(1), term(0));
  for (int i = 2; i < n; i += 2) sum = add(add(sum, term(i + 1)), term(i));
  return sum;
};
// Even and odd places of 32 apart, as TDPBF16PS adds them.
constexpr auto kTiles = [](int n, const auto& term, const auto& add) {
  const auto tile = [&](int from) {
    const auto side = [&](int odd) {
      return kInTurn(
          16, [&](int i) { return term(from + odd + 2 * i); }, add);
    };
    return add(side(0), side(1));
  };
  auto sum = tile(0);
  for (int from = 32; from < n; from += 32) sum = add(sum, tile(from));
  return sum;
};

template <class Order> SumTree tree_by(const Order& order, int n) {
  return order(
      n, [](int i) { return SumTree{.first = i}; },
      [](const SumTree& a, const SumTree& b) {
        return sum_of({a, b});
      });
}

// f32 arithmetic. A number is a product that has yet to be made, or a sum.
struct Arithmetic {
  bool fused, flushes;

  struct Number {
    float value;
    int at;  // the product; -1: a sum
  };
  float flushed(double x) const {
    const auto rounded = static_cast<float>(x);
    return flushes && std::abs(rounded) < 0x1p-126F ? std::copysign(0.0F, rounded) : rounded;
  }
  template <class Order> DotProduct dot(const Order& order) const {
    return [*this, &order](std::span<const double> a, std::span<const double> b) {
      const auto factor = [&](std::span<const double> x, int at) { return flushed(x[static_cast<std::size_t>(at)]); };
      const auto value = [&](const Number& x) {
        return x.at < 0 ? x.value : flushed(factor(a, x.at) * factor(b, x.at));
      };
      const auto add = [&](const Number& x, const Number& y) -> Number {
        if (!fused || (x.at < 0 && y.at < 0)) return {flushed(value(x) + value(y)), -1};
        const Number& product = y.at < 0 ? x : y;
        const Number& other = y.at < 0 ? y : x;
        return {flushed(std::fma(factor(a, product.at), factor(b, product.at), value(other))), -1};
      };
      const int n = static_cast<int>(a.size());
      return static_cast<double>(value(order(
          n,
          [](int i) {
            return Number{0, i};
          },
          add)));
    };
  }
};

template <class Order> void check_order(const char* name, const Order& order) {
  CAPTURE(name);
  for (const bool fused : {false, true})
    for (const bool flushes : {false, true}) {
      CAPTURE(fused);
      CAPTURE(flushes);
      const DotProduct dot = Arithmetic{fused, flushes}.dot(order);
      const ProbeResult found = probe(dot, {.terms = 64});
      CHECK(found.consistent);
      CHECK(to_string(found.tree) == to_string(tree_by(order, 64)));
      CHECK(shows(found.tree, tree_by(order, 64)));
      CHECK(to_string(probe(dot, {.terms = 64}).tree) == to_string(found.tree));
      CHECK(found.sum == Adder{.bits = 24, .rounding = RoundingMode::nearest_even});
      CHECK_FALSE(found.outer.has_value());
      CHECK(found.products == (fused ? Products::fused : Products::rounded));
      CHECK(found.flushes_operands == flushes);
      CHECK(found.flushes_products == (flushes && !fused));  // a fused product is never there by itself
      CHECK(found.flushes_sums == flushes);
      CHECK(found.replayed == 64);
      CHECK(found.reproduced == 64);
    }
}

double truncated(double x, int last) { return std::ldexp(std::trunc(std::ldexp(x, -last)), last); }
double truncated_to(double x, int bits) { return x == 0 ? 0 : truncated(x, std::ilogb(x) - bits + 1); }

// The sum of a tensor core: each addend keeps `kept` bits from the leading bit of the largest one on, the sum 24.
double add_at_once(const std::vector<double>& addends, int kept) {
  double most = 0;
  double sum = 0;
  for (const double x : addends) most = std::max(most, std::abs(x));
  if (most == 0) return 0;
  for (const double x : addends) sum += truncated(x, std::ilogb(most) - kept + 1);
  return truncated_to(sum, std::min(24, kept));
}

struct TensorCore {
  int width, kept, promote = 0;

  double operator()(std::span<const double> a, std::span<const double> b) const {
    float promoted = 0;
    double sum = 0;
    for (std::size_t at = 0; at < a.size(); at += static_cast<std::size_t>(width)) {
      std::vector<double> addends{sum};
      for (std::size_t i = at; i < at + static_cast<std::size_t>(width); ++i) addends.push_back(a[i] * b[i]);
      sum = add_at_once(addends, kept);
      if (promote == 0 || (at + static_cast<std::size_t>(width)) % static_cast<std::size_t>(promote) != 0) continue;
      promoted += static_cast<float>(sum);
      sum = 0;
    }
    return promote ? promoted : static_cast<float>(sum);
  }
  SumTree tree(int n) const {
    const auto core = [&](int from, int to) {
      SumTree sum;
      for (int at = from; at < to; at += width) {
        std::vector<SumTree> addends;
        if (at > from) addends.push_back(sum);
        for (int i = at; i < at + width; ++i) addends.push_back({.first = i});
        sum = sum_of(addends);
      }
      return sum;
    };
    if (promote == 0) return core(0, n);
    SumTree sum = core(0, promote);
    for (int at = promote; at < n; at += promote) sum = sum_of({sum, core(at, at + promote)});
    return sum;
  }
};

// Every rounding of every accumulator, on 40 products, is what its definition says.
void check_accumulator(const std::string& name) {
  CAPTURE(name);
  Accumulator truth = accumulator(name);
  const bool f32 = truth.format == Accumulator().format && truth.rounding == Rounding() && !truth.f64;
  if (f32 && truth.chunk == 0) std::swap(truth.chunk, truth.promote);  // promotion of f32 sums to f32 is a chunk
  const Product product = emulated_product(name, 40);
  const ProbeResult found = probe(product.dot, product.options);
  CHECK(found.consistent);
  CHECK(shows(found.tree, tree_of(truth, 40)));
  CHECK(found.sum.bits == (truth.f64 ? 53 : truth.format.mantissa_bits + 1));
  CHECK(found.sum.rounding == truth.rounding.mode);
  CHECK(found.chunk == truth.chunk);
  CHECK(found.promote == truth.promote);
  CHECK(found.outer.has_value() == (truth.promote > 0 && !f32));
  if (!truth.f64) {
    CHECK(found.least == std::ilogb(truth.format.min_positive()));
    CHECK(found.largest == truth.format.max_exponent());
  }
  CHECK(found.replayed > 0);
  CHECK(found.reproduced == found.replayed);
  const std::vector<CheckedFact> lines = check_claim(product.claim, found);
  CHECK(lines.size() >= 5);
  for (const CheckedFact& line : lines) {
    CAPTURE(line.what);
    CAPTURE(line.found);
    CHECK(line.agrees);
  }
}

}  // namespace

TEST_CASE("the probe finds the order of dot products, their rounding and what they flush") {
  check_order("in turn", kInTurn);
  check_order("reversed", kReversed);
  check_order("pairwise", kPairwise);
  check_order("strided", kStrided);
  check_order("blocked", kBlocked<16>);
  check_order("blocked, the last one shorter", kBlocked<24>);
  check_order("pairs", kPairs);
  check_order("tiles", kTiles);
}

TEST_CASE("the probe recovers every emulated accumulator, rounding, chunk and promotion") {
  std::vector<std::string> bases{"f32", "fp16-acc", "bf16-acc", "hopper-fp8-14bit", "e5m7"};
  for (const NamedFormat& named : named_formats())
    if (named.common && named.format.is_signed) bases.emplace_back(named.name);
  CHECK(bases.size() == 16);
  const std::string options[] = {"", "/chunk=7", "/promote=12", "/chunk=3/promote=10"};
  for (const std::string& base : bases)
    for (int mode = 0; mode < static_cast<int>(RoundingMode::stochastic); ++mode)
      for (const std::string& option : options)
        check_accumulator(fmt::format("{}:{}{}", base, to_string(static_cast<RoundingMode>(mode)), option));
  for (const std::string& option : options) check_accumulator("f64" + option);
}

TEST_CASE("the probe finds how many terms a tensor core adds at once, what alignment drops, and promotion") {
  for (const int width : {4, 8, 16})
    for (const int extra : {0, 1, 3}) {
      CAPTURE(width);
      CAPTURE(extra);
      const TensorCore core{width, 24 + extra};
      const ProbeResult found = probe(core, {.terms = 64, .operands = DType::f16});
      CHECK(found.consistent);
      CHECK(to_string(found.tree) == to_string(core.tree(64)));
      CHECK(ways(found.tree) == width + 1);
      CHECK(found.tree.adder == Adder{24, RoundingMode::toward_zero, 24 + extra, RoundingMode::toward_zero});
      CHECK(found.sum == found.tree.adder);
      CHECK(found.products == Products::fit);
      CHECK(found.reproduced == 64);
    }
  const TensorCore hopper{32, 14, 128};  // of FP8 operands, with the promotion of libraries
  const ProbeResult found = probe(hopper, {.terms = 256, .operands = DType::f8e4m3fn});
  CHECK(to_string(found.tree) == to_string(hopper.tree(256)));
  CHECK(ways(found.tree) == 33);
  CHECK(found.sum == Adder{14, RoundingMode::toward_zero, 14, RoundingMode::toward_zero});
  CHECK(found.outer == Adder{24, RoundingMode::nearest_even, 0, {}});
  CHECK(found.reproduced == found.replayed);
}

TEST_CASE("the probe tells stochastic rounding, exact sums and exact sums of a few terms") {
  std::mt19937 random(7);
  const auto noisy = [&](std::span<const double> a, std::span<const double> b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += a[i] * b[i];  // of f16: exact but for what is smaller by 29 bits, which rounding here never brings back
      if (sum == 0) continue;
      const double last = std::ldexp(1.0, std::ilogb(sum) - 10);
      const double below = std::floor(sum / last) * last;
      sum = below + (std::uniform_real_distribution<double>(0, 1)(random) < (sum - below) / last ? last : 0);
    }
    return sum;
  };
  const ProbeResult stochastic = probe(noisy, {.terms = 24, .operands = DType::f16});
  CHECK(to_string(stochastic.tree) == "0+1+..+23");
  CHECK(stochastic.sum == Adder{.bits = 11, .rounding = RoundingMode::stochastic});
  CHECK(stochastic.replayed == 0);

  // Multiples of 2^-28 below 2^35 are exact in 64 bits.
  const auto fixed = [](std::span<const double> a, std::span<const double> b, std::size_t from, std::size_t to) {
    std::int64_t sum = 0;
    for (std::size_t i = from; i < to; ++i) sum += std::llround(std::ldexp(a[i] * b[i], 28));
    return std::ldexp(static_cast<double>(sum), -28);
  };
  const auto exact = [&](std::span<const double> a, std::span<const double> b) {
    return static_cast<double>(static_cast<float>(fixed(a, b, 0, a.size())));
  };
  const ProbeResult all = probe(exact, {.terms = 12, .operands = DType::f16});
  CHECK(to_string(all.tree) == "0&1&2&3&4&5&6&7&8&9&10&11");
  CHECK(all.reproduced == 64);

  // Four products, exact, are added to an f32 sum.
  const auto fours = [&](std::span<const double> a, std::span<const double> b) {
    float sum = 0;
    for (std::size_t i = 0; i < a.size(); i += 4) sum += static_cast<float>(fixed(a, b, i, i + 4));
    return static_cast<double>(sum);
  };
  const ProbeResult four = probe(fours, {.terms = 16, .operands = DType::f16});
  CHECK(four.consistent);
  CHECK(to_string(four.tree) == "(0&1&2&3)+(4&5&6&7)+(8&9&10&11)+(12&13&14&15)");
  CHECK(four.reproduced == 64);
}

TEST_CASE("the processor's manual, followed here, gives the claims of VDPBF16PS and TDPBF16PS") {
  const Arithmetic manual{.fused = true, .flushes = true};
  const auto check = [&](CpuIsa isa, const DotProduct& dot) {
    const ProbeResult found = probe(dot, {.terms = 128, .operands = DType::bf16});
    const std::vector<CheckedFact> lines = check_claim(bf16_claim(isa, 128), found);
    CHECK(lines.size() >= 6);
    for (const CheckedFact& line : lines) {
      CAPTURE(line.what);
      CAPTURE(line.found);
      CHECK(line.agrees);
    }
  };
  check(CpuIsa::avx512, manual.dot(kPairs));
  check(CpuIsa::amx, manual.dot(kTiles));
}

TEST_CASE("this machine's products agree with what is documented of them" * doctest::test_suite("slow")) {
  const std::vector<Product> products = lab::products_of_this_machine(256);
  CHECK(products.size() >= 10);
  for (const Product& product : products) {
    CAPTURE(product.name);
    const ProbeResult found = probe(product.dot, product.options);
    CHECK(found.consistent);
    CHECK((found.replayed > 0) == (product.options.result != DType::f64));
    CHECK(found.reproduced == found.replayed);
    for (const CheckedFact& line : check_claim(product.claim, found)) {
      CAPTURE(line.what);
      CAPTURE(line.claimed);
      CAPTURE(line.found);
      CHECK(line.agrees);
    }
  }
}

TEST_CASE("a tree is drawn with its repeats left out") {
  CHECK(to_string(tree_of({}, 3)) == "0+1+2");
  // (0 + 1) + 2: the root above the sum of 0 and 1, and above 2
  const std::vector<std::array<double, 3>> points = {{1.25, 2, -1}, {0.5, 1, 0}, {0, 0, 1}, {1, 0, 1}, {2, 0, 0}};
  CHECK(points_of(tree_of({}, 3)) == points);
  CHECK(to_string(tree_of({}, 100)) == "0+1+..+99");
  CHECK(to_string(tree_of({.chunk = 32}, 512)) == "(0+1+..+31)+(32+33+..+63)+..+(480+481+..+511)");
  CHECK(to_string(tree_by(kPairs, 64)) == "0+1+3+2+5+4+..+63+62");
  CHECK(to_string(tree_by(kStrided, 64)) ==
        "(((0+8+..+56)+(4+12+..+60))+((2+10+..+58)+(6+14+..+62)))+"
        "(((1+9+..+57)+(5+13+..+61))+((3+11+..+59)+(7+15+..+63)))");
  CHECK(to_string(TensorCore{4, 24}.tree(32)) == "0&1&2&3+4&5&6&7+..+28&29&30&31");
  CHECK(shows(tree_of({}, 9), tree_of({}, 9)));
  CHECK_FALSE(shows(tree_of({}, 9), tree_of({.chunk = 3}, 9)));
  CHECK_FALSE(shows(tree_by(kReversed, 9), tree_of({}, 9)));
}

TEST_CASE("the probe refuses what is no dot product") {
  CHECK_THROWS_WITH_AS(probe(Arithmetic{}.dot(kInTurn), {.terms = 3}), "probe: 3 terms; 4 to 4096 are allowed", Error);
  CHECK_THROWS_AS(probe([](auto...) { return 1.0; }), Error);
  CHECK_THROWS_AS(
      probe([](std::span<const double> a, auto b) { return std::abs(a[0] * b[0]) + std::abs(a[1] * b[1]); }), Error);
}
