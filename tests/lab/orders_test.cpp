// Many random orders of one product, against the bound that tolerance() has for it: by hand for f32, where any tree of
// additions is tried, and by the emulated sums of every accumulator.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/recorded_ops.h>
#include <gradual/lab/tolerance.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace gradual;

namespace {

constexpr std::size_t kTerms = 64;
constexpr std::size_t kRows = 4;
constexpr std::size_t kResults = kRows * kRows;

using Row = std::array<float, kResults>;  // of all results at once: they have the same order

lab::Tolerated bound_of(const Tensor& a, const Tensor& b) {
  const nn::Linear none(1, 1);
  lab::RecordedOps ops(none);
  {
    const ObserverScope scope(ops);
    matmul(a, b);
  }
  return lab::tolerance_of(ops, {.orders = 1}).tensors.at(0);
}

// The largest share of its bound that an element's error has.
class Share {
 public:
  explicit Share(const lab::Tolerated& t)
      : exact_(t.reference.contiguous().to_vector<double>()), bound_(t.always.contiguous().to_vector<double>()) {}

  void add(const float* results) {
    for (std::size_t i = 0; i < kResults; ++i)
      largest_ = std::max(largest_, std::abs(static_cast<double>(results[i]) - exact_[i]) / bound_[i]);
  }
  double largest() const { return largest_; }

 private:
  std::vector<double> exact_;
  std::vector<double> bound_;
  double largest_ = 0;
};

struct Factors {
  explicit Factors(double mean) {
    default_generator().manual_seed(11);
    a = randn({kRows, kTerms}) + mean;
    b = randn({kTerms, kRows}) + mean;
  }
  float left(std::size_t result, std::size_t k) const { return a.data<float>()[result / kRows * kTerms + k]; }
  float right(std::size_t result, std::size_t k) const { return b.data<float>()[k * kRows + result % kRows]; }

  Tensor a, b;
};

Row plus(const Row& x, const Row& y) {
  Row sum;
  for (std::size_t i = 0; i < kResults; ++i) sum[i] = x[i] + y[i];
  return sum;
}

// Adds two terms at a time, whichever come next: any tree of additions.
Row random_tree(std::vector<Row> terms, std::mt19937_64& random) {
  while (terms.size() > 1) {
    std::swap(terms[random() % terms.size()], terms.back());
    const Row last = terms.back();
    terms.pop_back();
    Row& other = terms[random() % terms.size()];
    other = plus(other, last);
  }
  return terms[0];
}

Row one_by_one(const std::vector<Row>& terms) {
  Row sum = terms[0];
  for (std::size_t k = 1; k < terms.size(); ++k) sum = plus(sum, terms[k]);
  return sum;
}

Row fused(const Factors& of, const std::vector<std::size_t>& order) {
  Row sum{};
  for (const std::size_t k : order)
    for (std::size_t i = 0; i < kResults; ++i) sum[i] = std::fma(of.left(i, k), of.right(i, k), sum[i]);
  return sum;
}

double share_of_random_orders(const Factors& of, int orders) {
  std::mt19937_64 random(7);
  Share share(bound_of(of.a, of.b));
  std::vector<std::size_t> order(kTerms);
  std::iota(order.begin(), order.end(), 0);
  for (int trial = 0; trial < orders; ++trial) {
    std::ranges::shuffle(order, random);
    std::vector<Row> terms(kTerms);
    for (std::size_t k = 0; k < kTerms; ++k)
      for (std::size_t i = 0; i < kResults; ++i) terms[k][i] = of.left(i, order[k]) * of.right(i, order[k]);
    const Row sums[] = {random_tree(terms, random), one_by_one(terms), fused(of, order)};
    share.add(sums[trial % 3].data());
  }
  return share.largest();
}

// The same product in so many orders at once.
double share_in(const Accumulator& accumulator, const Factors& of, std::int64_t orders) {
  std::mt19937_64 random(7);
  const AccumulatorScope scope(accumulator);
  Share share(bound_of(of.a, of.b));
  std::vector<Tensor> lefts;
  std::vector<Tensor> rights;
  std::vector<std::int64_t> order(kTerms);
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t trial = 0; trial < orders; ++trial) {
    std::ranges::shuffle(order, random);
    const Tensor places = from_data(order, {kTerms}, {.dtype = DType::i64});
    lefts.push_back(index_select(of.a, 1, places));
    rights.push_back(index_select(of.b, 0, places));
  }
  const Tensor all = matmul(stack(lefts, 0), stack(rights, 0)).contiguous();
  for (std::int64_t trial = 0; trial < orders; ++trial)
    share.add(all.data<float>() + static_cast<std::size_t>(trial) * kResults);
  return share.largest();
}

}  // namespace

TEST_CASE("tolerance: the bound of a product holds for 10^5 random trees of its sum, and is not far from some") {
  const double centred = share_of_random_orders(Factors(0), 100'000);
  CAPTURE(centred);
  CHECK(centred <= 1);
  CHECK(centred > 0.02);
  const double positive = share_of_random_orders(Factors(3), 100'000);
  CAPTURE(positive);
  CHECK(positive <= 1);
  CHECK(positive > 0.02);
}

TEST_CASE("tolerance: the bound of a product holds for random orders in every accumulator") {
  for (const NamedAccumulator& named : accumulators()) {
    CAPTURE(named.name);
    for (const double mean : {0.0, 1.0}) CHECK(share_in(named.accumulator, Factors(mean), 2000) <= 1);
  }
}

TEST_CASE("tolerance: bounds hold where accumulators take subnormal operands for zero or for larger ones") {
  // Two in three operands are up to eight times smaller than 2^-6.
  const auto with_small_ones = [](double mean) {
    Factors f(mean);
    for (Tensor* t : {&f.a, &f.b}) {
      const Tensor r = rand(t->sizes());
      *t = where(lt(r, 0.66), mul(*t, 0x1p-8), *t);
    }
    return f;
  };
  const char* const names[] = {
      "f32/group=4/adds=pairwise/lowest=-6",
      "f32/group=8/fraction=6/lowest=-6",
      "e8m13:toward-zero/group=32/fraction=8/lowest=-6",
      "f32/group=8/fraction=6/adds=late/lowest=-6",
      "f32/group=16/fraction=6/adds=late-even-odd/lowest=-6",
      "f32/group=4/adds=exact/lowest=-6",
  };
  for (const char* name : names) {
    CAPTURE(std::string(name));
    for (const double mean : {0.0, 1.0}) CHECK(share_in(accumulator(name), with_small_ones(mean), 2000) <= 1);
  }
}

TEST_CASE("tolerance: one subnormal operand is dropped, or cuts off the other products") {
  struct Case {
    const char* name;
    std::vector<float> a, b;
    double stored;
  };
  const Case cases[] = {
      {"f32/group=2/adds=pairwise/lowest=-6", {0x1p-7F, 1}, {1, 0}, 0},
      // 2^-16 2^3 counts as 2^-6 2^3: all below 2^-7 is cut off, which is more than both products.
      {"f32/group=2/fraction=4/lowest=-6", {0x1p-16F, 0x1p-7F}, {8, 0x1.FCp-1F}, 0},
  };
  for (const Case& c : cases) {
    CAPTURE(std::string(c.name));
    const Tensor a = from_data(c.a, {1, 2});
    const Tensor b = from_data(c.b, {2, 1});
    const AccumulatorScope scope(accumulator(c.name));
    const lab::Tolerated t = bound_of(a, b);
    CHECK(matmul(a, b).item() == c.stored);
    CHECK(std::abs(t.reference.item() - c.stored) > 0);
    CHECK(std::abs(t.reference.item() - c.stored) <= t.always.item());
  }
}

TEST_CASE("tolerance: the bound holds for many roundings of few bits per addition") {
  // r n u is more than 1.26, where errors of higher order more than double those of the first.
  for (const char* name : {"e8m7:toward-zero/group=4/fraction=7", "e8m6/group=4/fraction=6/adds=late"}) {
    CAPTURE(std::string(name));
    const lab::Tolerated t = [&] {
      const AccumulatorScope scope(accumulator(name));
      return bound_of(ones({1, 128}), ones({128, 1}));
    }();
    const double u = std::string(name).starts_with("e8m7") ? 0x1p-7 : 0x1p-6;
    const double roundings = std::string(name).ends_with("late") ? 4 : 3;
    const double x = 128 * roundings * u;
    CHECK(t.always.item() >= 0.99 * 128 * std::expm1(x));
    for (const double mean : {0.0, 1.0}) CHECK(share_in(accumulator(name), Factors(mean), 500) <= 1);
  }
}
