// SOAP: against the authors' program, against its paper written in loops, and in every way to keep its state and to
// update low-precision parameters.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <gradual/amp/quantized_results.h>
#include <gradual/amp/recipe.h>
#include <gradual/nn/linear.h>
#include <gradual/optim/eigenbasis.h>
#include <gradual/optim/grad_scaler.h>
#include <gradual/optim/soap.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "../support/source_dir.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

// The start and the gradients of make_soap.py.
Values start_of(const Shape& shape) {
  Values v(size_of(numel(shape)));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(static_cast<double>(i));
  return v;
}
Values gradient_of(const Shape& shape, int step) {
  Values v(size_of(numel(shape)));
  for (std::size_t i = 0; i < v.size(); ++i) {
    const auto at = static_cast<double>(i);
    v[i] = std::cos(0.37 * at * at + 1.3 * step * (at + 1));
  }
  return v;
}

Tensor parameter(const Shape& shape, DType dtype) {
  return from_data(start_of(shape), shape, {.dtype = dtype, .requires_grad = true});
}

void take_steps(Optimizer& optimizer, const Tensor& p, int from, int to, DType gradients) {
  for (int t = from; t <= to; ++t) {
    set_gradient(p, gradient_of(p.sizes(), t), gradients);
    optimizer.step();
  }
}

Shape shape_of(const nlohmann::json& list) { return list.get<std::vector<std::int64_t>>(); }

// --- the paper in loops ---

using Matrix = std::vector<Values>;

Matrix zero_matrix(std::size_t n) { return Matrix(n, Values(n)); }

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out = zero_matrix(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a.size(); ++j)
      for (std::size_t k = 0; k < a.size(); ++k) out[i][j] += a[i][k] * b[k][j];
  return out;
}

Matrix turned(const Matrix& a) {
  Matrix out = zero_matrix(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a.size(); ++j) out[j][i] = a[i][j];
  return out;
}

std::vector<std::size_t> falling(const Values& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  return order;
}

Matrix columns_in_order(const Matrix& a, const std::vector<std::size_t>& order) {
  Matrix out = zero_matrix(a.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a.size(); ++j) out[i][j] = a[i][order[j]];
  return out;
}

// One rotation of Jacobi's method: makes a[p][q] zero and turns the columns of v.
void rotate(Matrix& a, Matrix& v, std::size_t p, std::size_t q) {
  if (a[p][q] == 0) return;
  const double angle = 0.5 * std::atan2(2 * a[p][q], a[q][q] - a[p][p]);
  Matrix turn = zero_matrix(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) turn[i][i] = 1;
  turn[p][p] = std::cos(angle);
  turn[q][q] = std::cos(angle);
  turn[p][q] = std::sin(angle);
  turn[q][p] = -std::sin(angle);
  a = product(turned(turn), product(a, turn));
  v = product(v, turn);
}

Matrix eigenvectors_by_jacobi(Matrix a) {
  Matrix v = zero_matrix(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) v[i][i] = 1;
  for (int sweep = 0; sweep < 30; ++sweep)
    for (std::size_t p = 0; p < a.size(); ++p)
      for (std::size_t q = p + 1; q < a.size(); ++q) rotate(a, v, p, q);
  Values eigenvalues;
  for (std::size_t i = 0; i < a.size(); ++i) eigenvalues.push_back(a[i][i]);
  return columns_in_order(v, falling(eigenvalues));
}

// The Q of a QR decomposition, by Gram and Schmidt, twice.
Matrix orthonormal_columns(const Matrix& a) {
  Matrix q = turned(a);  // rows are columns
  for (int pass = 0; pass < 2; ++pass)
    for (std::size_t i = 0; i < q.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const double along = std::inner_product(q[i].begin(), q[i].end(), q[j].begin(), 0.0);
        for (std::size_t k = 0; k < q.size(); ++k) q[i][k] -= along * q[j][k];
      }
      const double length = std::sqrt(std::inner_product(q[i].begin(), q[i].end(), q[i].begin(), 0.0));
      for (double& value : q[i]) value /= length;
    }
  return turned(q);
}

// The elements of a tensor along one dimension: element i of line l.
struct Lines {
  Lines(const Shape& shape, int dim) : n(size_of(shape[dim])) {
    for (int d = dim + 1; d < shape.size(); ++d) stride *= size_of(shape[d]);
    count = size_of(numel(shape)) / n;
  }
  std::size_t at(std::size_t line, std::size_t i) const {
    return line / stride * stride * n + i * stride + line % stride;
  }
  std::size_t n;
  std::size_t stride = 1;
  std::size_t count = 0;
};

// out[.., j, ..] = sum over i of x[.., i, ..] m[i][j].
Values contracted(const Values& x, const Lines& lines, const Matrix& m) {
  Values out(x.size());
  for (std::size_t l = 0; l < lines.count; ++l)
    for (std::size_t j = 0; j < lines.n; ++j)
      for (std::size_t i = 0; i < lines.n; ++i) out[lines.at(l, j)] += x[lines.at(l, i)] * m[i][j];
  return out;
}

struct AdamRates {
  double lr, beta1, beta2, eps, weight_decay;
};

// Keeps the first moment in the eigenbasis, as the authors' program does; optim::Soap keeps it as the paper does.
class SoapInLoops {
 public:
  SoapInLoops(const Shape& shape, const AdamRates& rates, int refresh_every)
      : rates_(rates), refresh_every_(refresh_every), weight(start_of(shape)), first_(weight.size()) {
    second_ = first_;
    for (int d = 0; d < shape.size(); ++d) {
      lines_.emplace_back(shape, d);
      covariances_.push_back(zero_matrix(lines_.back().n));
    }
  }

  void step(const Values& g) {
    if (bases_.empty()) {
      gather(g);
      for (const Matrix& c : covariances_) bases_.push_back(eigenvectors_by_jacobi(c));
      return;
    }
    ++taken_;
    const auto [lr, beta1, beta2, eps, decay] = rates_;
    const Values turned_g = into(g);
    Values direction(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      first_[i] = beta1 * first_[i] + (1 - beta1) * turned_g[i];
      second_[i] = beta2 * second_[i] + (1 - beta2) * turned_g[i] * turned_g[i];
      direction[i] = first_[i] / (std::sqrt(second_[i]) + eps);
    }
    direction = out_of(direction);
    const double rate = lr * std::sqrt(1 - std::pow(beta2, taken_)) / (1 - std::pow(beta1, taken_));
    for (std::size_t i = 0; i < g.size(); ++i) {
      weight[i] -= rate * direction[i];
      weight[i] -= lr * decay * weight[i];
    }
    first_ = out_of(first_);
    gather(g);
    if (taken_ % refresh_every_ == 0) refresh();
    first_ = into(first_);
  }

 private:
  Values into(Values x) const {
    for (std::size_t k = 0; k < lines_.size(); ++k) x = contracted(x, lines_[k], bases_[k]);
    return x;
  }
  Values out_of(Values x) const {
    for (std::size_t k = 0; k < lines_.size(); ++k) x = contracted(x, lines_[k], turned(bases_[k]));
    return x;
  }
  void gather(const Values& g) {
    for (std::size_t k = 0; k < lines_.size(); ++k)
      for (std::size_t i = 0; i < lines_[k].n; ++i)
        for (std::size_t j = 0; j < lines_[k].n; ++j) {
          double sum = 0;
          for (std::size_t l = 0; l < lines_[k].count; ++l) sum += g[lines_[k].at(l, i)] * g[lines_[k].at(l, j)];
          covariances_[k][i][j] = rates_.beta2 * covariances_[k][i][j] + (1 - rates_.beta2) * sum;
        }
  }
  void refresh() {
    for (std::size_t k = 0; k < lines_.size(); ++k) {
      const Matrix diagonal = product(turned(bases_[k]), product(covariances_[k], bases_[k]));
      Values estimates;
      for (std::size_t i = 0; i < lines_[k].n; ++i) estimates.push_back(diagonal[i][i]);
      const std::vector<std::size_t> order = falling(estimates);
      const Values before = second_;
      for (std::size_t l = 0; l < lines_[k].count; ++l)
        for (std::size_t i = 0; i < lines_[k].n; ++i) second_[lines_[k].at(l, i)] = before[lines_[k].at(l, order[i])];
      bases_[k] = orthonormal_columns(product(covariances_[k], columns_in_order(bases_[k], order)));
    }
  }

  AdamRates rates_;
  int refresh_every_;
  int taken_ = 0;
  std::vector<Lines> lines_;
  std::vector<Matrix> covariances_;
  std::vector<Matrix> bases_;

 public:
  Values weight;

 private:
  Values first_;
  Values second_;
};

// The moments of recipe adam8.
UpdateOptions of_8_bits() {
  UpdateOptions o;
  const amp::Recipe recipe = amp::recipe("adam8");
  o.moments[0] = recipe.quantization->moment1;
  o.moments[1] = recipe.quantization->moment2;
  return o;
}

}  // namespace

TEST_CASE("SOAP takes the steps of its authors' program") {
  std::ifstream file(source_dir() + "/tests/golden/soap.json");
  const auto golden = nlohmann::json::parse(file);
  for (const auto& c : golden["cases"]) {
    const Shape shape = shape_of(c["shape"]);
    CAPTURE(to_string(shape));
    const Tensor w = parameter(shape, DType::f64);
    Soap soap({w}, {.lr = 0.01,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .weight_decay = 0.1,
                    .refresh_every = c["precondition_frequency"].get<int>(),
                    .largest_dim = c["max_precond_dim"].get<int>()});
    take_steps(soap, w, 1, golden["steps"].get<int>(), DType::f64);
    CHECK(max_difference(w.to_vector<double>(), c["weight"].get<Values>()) < 1e-10);
  }
}

TEST_CASE("SOAP follows its paper, written in loops") {
  const AdamRates rates{0.02, 0.9, 0.95, 1e-8, 0.05};
  // A matrix of covariances with a null space of several dimensions has no eigenbasis of its own.
  for (const Shape& shape : {Shape{5, 4}, Shape{5, 6}, Shape{3, 2, 2, 3}})
    for (const int refresh_every : {1, 3}) {
      CAPTURE(to_string(shape));
      CAPTURE(refresh_every);
      SoapInLoops loops(shape, rates, refresh_every);
      const SoapOptions options{.lr = rates.lr,
                                .beta1 = rates.beta1,
                                .beta2 = rates.beta2,
                                .eps = rates.eps,
                                .weight_decay = rates.weight_decay,
                                .refresh_every = refresh_every};
      const Tensor w = parameter(shape, DType::f64);
      const Tensor single = parameter(shape, DType::f32);
      Soap soap({w}, options);
      Soap in_f32({single}, options);
      for (int t = 1; t <= 12; ++t) {
        loops.step(gradient_of(shape, t));
        take_steps(soap, w, t, t, DType::f64);
        take_steps(in_f32, single, t, t, DType::f32);
        CHECK(max_difference(w.to_vector<double>(), loops.weight) < 1e-10);
      }
      CHECK(max_difference(single.to_vector<double>(), loops.weight) < 2e-4);
    }
}

TEST_CASE("SOAP's first step starts its statistics and leaves the weight") {
  const Tensor w = parameter({4, 3}, DType::f32);
  const Values before = w.to_vector<double>();
  Soap soap({w}, {.statistics_beta = 0.75});
  take_steps(soap, w, 1, 1, DType::f32);
  CHECK(w.to_vector<double>() == before);
  const StateDict state = soap.state_dict();
  const Tensor g = w.grad();
  const Tensor expected = 0.25 * matmul(g.t(), g);
  CHECK(same_bits(state.tensor("params.0.covariance.1"), expected));
  CHECK(state.tensor("params.0.basis.0").sizes() == Shape{4, 4});
  CHECK(state.integer("params.0.steps") == 1);
}

TEST_CASE("SOAP updates what has one dimension, or none of 2 to largest_dim elements, as Adam does a step later") {
  for (const Shape& shape : {Shape{9}, Shape{1}, Shape{1, 1}, Shape{7, 8}}) {
    CAPTURE(to_string(shape));
    const Tensor w = parameter(shape, DType::f64);
    const Tensor a = parameter(shape, DType::f64);
    Soap soap({w}, {.lr = 0.01, .eps = 0, .weight_decay = 0, .largest_dim = 6});
    Adam adam({a}, {.lr = 0.01, .beta1 = 0.95, .beta2 = 0.95, .eps = 0});
    take_steps(soap, w, 1, 8, DType::f64);
    take_steps(adam, a, 2, 8, DType::f64);
    CHECK(max_difference(w.to_vector<double>(), a.to_vector<double>()) < 1e-13);
    CHECK_FALSE(soap.state_dict().contains("params.0.basis.0"));
  }
}

TEST_CASE("a dimension longer than largest_dim has no matrix") {
  const Tensor w = parameter({4, 6}, DType::f32);
  Soap soap({w}, {.largest_dim = 5});
  take_steps(soap, w, 1, 3, DType::f32);
  CHECK(soap.state_dict().contains("params.0.basis.0"));
  CHECK_FALSE(soap.state_dict().contains("params.0.basis.1"));
}

TEST_CASE("SOAP's matrices are f32 whatever its moments are, and low precision of these stays near") {
  const Shape shape{24, 16};
  const auto trained = [&](const UpdateOptions& precision) {
    const Tensor w = parameter(shape, DType::f32);
    Soap soap({w}, {.lr = 0.01, .precision = precision});
    take_steps(soap, w, 1, 25, DType::f32);
    const StateDict state = soap.state_dict();
    CHECK(state.tensor("params.0.covariance.0").dtype() == DType::f32);
    CHECK(state.tensor("params.0.basis.1").dtype() == DType::f32);
    if (precision.state_dtype) CHECK(state.tensor("params.0.exp_avg_sq").dtype() == *precision.state_dtype);
    if (precision.moments[0]) CHECK(state.contains("params.0.exp_avg_sq.codes"));
    return w.detach().clone();
  };
  const Tensor exact = trained({});
  const double moved = norm(exact - parameter(shape, DType::f32).detach()).item();
  for (const UpdateOptions& precision :
       {UpdateOptions{.state_dtype = DType::f16}, UpdateOptions{.state_dtype = DType::bf16}, of_8_bits()}) {
    const double off = norm(trained(precision) - exact).item();
    CHECK(off > 0);
    CHECK(off < 0.2 * moved);
  }
}

TEST_CASE("SOAP resumes from its state dict to the bit, with moments of every kind") {
  for (const UpdateOptions& precision :
       {UpdateOptions{}, UpdateOptions{.state_dtype = DType::bf16}, of_8_bits(),
        UpdateOptions{.update = LowPrecisionUpdate::kahan}, UpdateOptions{.update = LowPrecisionUpdate::stochastic},
        UpdateOptions{.update = LowPrecisionUpdate::masters}}) {
    const SoapOptions options{.lr = 0.01, .refresh_every = 3, .precision = precision};
    const Tensor p = parameter({10, 8}, DType::bf16);
    const Tensor q = parameter({10, 8}, DType::bf16);
    Soap whole({p}, options);
    Soap resumed({q}, options);
    take_steps(whole, p, 1, 7, DType::bf16);
    {
      const NoGrad off;
      q.copy_(p);
    }
    resumed.load_state_dict(whole.state_dict());
    take_steps(whole, p, 8, 14, DType::bf16);
    take_steps(resumed, q, 8, 14, DType::bf16);
    CHECK(same_bits(p, q));
    CHECK(same_bits(whole.master(p), resumed.master(q)));
  }
}

TEST_CASE("a half parameter with masters has the steps of an f32 one, rounded") {
  const Shape shape{6, 5};
  const Tensor half = from_data(start_of(shape), shape, {.dtype = DType::bf16, .requires_grad = true});
  const Tensor full = half.detach().to(DType::f32).set_requires_grad();
  const SoapOptions options{.lr = 0.01, .refresh_every = 2, .precision = {.update = LowPrecisionUpdate::masters}};
  Soap low({half}, options);
  Soap wide({full}, options);
  take_steps(low, half, 1, 9, DType::f32);
  take_steps(wide, full, 1, 9, DType::f32);
  CHECK(same_bits(low.master(half), full));
  CHECK(same_bits(half, full.detach().to(DType::bf16)));
}

TEST_CASE("pure arithmetic keeps SOAP's matrices in f32 and rounds the rest to the parameter's dtype") {
  const Tensor w = parameter({6, 5}, DType::bf16);
  const Values before = w.to_vector<double>();
  Soap soap({w}, {.lr = 0.1, .precision = {.pure_arithmetic = true}});
  take_steps(soap, w, 1, 3, DType::bf16);
  CHECK(w.to_vector<double>() != before);
  CHECK(soap.state_dict().tensor("params.0.basis.0").dtype() == DType::f32);
  CHECK(soap.state_dict().tensor("params.0.exp_avg").dtype() == DType::bf16);
}

TEST_CASE("where a recipe rounds the results of ops, SOAP's matrices stay exact") {
  const Shape shape{6, 5};
  const SoapOptions options{.lr = 0.01, .refresh_every = 2};
  const Tensor p = parameter(shape, DType::f32);
  const Tensor q = parameter(shape, DType::f32);
  Soap exact({p}, options);
  Soap rounded({q}, options);
  const auto recipe = amp::recipe("pure:e8m7");
  take_steps(exact, p, 1, 7, DType::f32);
  for (int t = 1; t <= 7; ++t) {
    set_gradient(q, gradient_of(shape, t), DType::f32);
    const amp::ResultScope rounds(recipe.quantization);
    rounded.step();
  }
  CHECK_FALSE(same_bits(p, q));
  const StateDict wanted = exact.state_dict();
  const StateDict got = rounded.state_dict();
  CHECK_FALSE(same_bits(got.tensor("params.0.exp_avg"), wanted.tensor("params.0.exp_avg")));
  for (const char* name : {"covariance.0", "covariance.1", "basis.0", "basis.1"}) {
    CAPTURE(name);
    const std::string key = fmt::format("params.0.{}", name);
    CHECK(same_bits(got.tensor(key), wanted.tensor(key)));
  }
}

TEST_CASE("SOAP's bases stay orthogonal in a run of pure:e8m7") {
  manual_seed(1);
  nn::Linear net(6, 5);
  amp::RecipeRun run(amp::recipe("pure:e8m7"), net, [](auto groups, const UpdateOptions& precision) {
    return std::make_unique<Soap>(std::move(groups), SoapOptions{.refresh_every = 2, .precision = precision});
  });
  const Tensor x = random_tensor({9, 6}, 2, DType::f32);
  for (int i = 0; i < 5; ++i) run.step([&] { return net(x).square().mean(); });
  for (const int dim : {0, 1}) {
    const std::string key = fmt::format("optimizer.params.0.basis.{}", dim);
    const Tensor basis = run.state_dict().tensor(key).to(DType::f64);
    const Values products = matmul(basis.t(), basis).to_vector<double>();
    const std::size_t n = size_of(basis.size(0));
    CHECK(n == (dim == 0 ? 5 : 6));
    for (std::size_t i = 0; i < products.size(); ++i) CHECK(std::abs(products[i] - (i % (n + 1) == 0 ? 1 : 0)) < 1e-6);
  }
}

TEST_CASE("where every op rounds eps to 0, SOAP divides 0 by 0, as Adam does in pure arithmetic") {
  const Values nothing(12);
  const auto stands = [&](Optimizer& optimizer, const Tensor& w) {
    const Values before = w.to_vector<double>();
    for (int t = 0; t < 2; ++t) {
      set_gradient(w, nothing, w.dtype());
      optimizer.step();
    }
    const Values after = w.to_vector<double>();
    const bool broken = std::ranges::all_of(after, [](double value) { return std::isnan(value); });
    CHECK((broken || after == before));
    return !broken;
  };
  for (const double eps : {1e-8, 1e-4}) {
    CAPTURE(eps);
    const Tensor p = parameter({4, 3}, DType::f16);
    Soap soap({p}, {.eps = eps, .weight_decay = 0, .precision = {.pure_arithmetic = true}});
    CHECK(stands(soap, p) == (eps == 1e-4));
    const Tensor q = parameter({4, 3}, DType::f16);
    Adam adam({q}, {.eps = eps, .precision = {.pure_arithmetic = true}});
    CHECK(stands(adam, q) == (eps == 1e-4));
    const amp::Recipe recipe = amp::recipe("pure:e5m7");
    const amp::ResultScope rounds(recipe.quantization);
    const Tensor r = parameter({4, 3}, DType::f32);
    r.detach().copy_(r.detach() * 1.0);
    Soap by_ops({r}, {.eps = eps, .weight_decay = 0});
    CHECK(stands(by_ops, r) == (eps == 1e-4));
  }
}

TEST_CASE("a step of SOAP that a loss scale skips changes nothing") {
  const Tensor p = parameter({4, 3}, DType::f16);
  Soap soap({p}, {.lr = 0.01, .precision = {.update = LowPrecisionUpdate::masters}});
  GradScaler scaler({.init_scale = 4, .growth_interval = 100});
  const auto step = [&](const Values& gradient) {
    scaler.scale(from_data(Values{1}, {}, {}));
    set_gradient(p, gradient, DType::f16);
    const bool applied = scaler.step(soap).applied();
    scaler.update();
    return applied;
  };
  CHECK(step(gradient_of({4, 3}, 1)));
  CHECK(step(gradient_of({4, 3}, 2)));
  const Tensor weight = p.detach().clone();
  const Tensor covariance = soap.state_dict().tensor("params.0.covariance.0").clone();
  Values bad = gradient_of({4, 3}, 3);
  bad[5] = INFINITY;
  CHECK_FALSE(step(bad));
  CHECK(same_bits(p, weight));
  CHECK(same_bits(soap.state_dict().tensor("params.0.covariance.0"), covariance));
  CHECK(soap.state_dict().integer("params.0.steps") == 2);
}

TEST_CASE("a gradient with NaN makes SOAP's weights NaN, also when the basis is refreshed") {
  const Tensor w = parameter({4, 3}, DType::f32);
  Soap soap({w}, {.refresh_every = 1});
  take_steps(soap, w, 1, 2, DType::f32);
  Values bad = gradient_of({4, 3}, 3);
  bad[0] = NAN;
  set_gradient(w, bad, DType::f32);
  soap.step();
  take_steps(soap, w, 4, 5, DType::f32);
  for (const double value : w.to_vector<double>()) CHECK(std::isnan(value));
}

TEST_CASE("SOAP's bad options and states are Errors that name what is allowed") {
  const Tensor w = parameter({4, 3}, DType::f32);
  CHECK(error_of([&] { Soap({w}, {.statistics_beta = 1}); }) ==
        "optimizer: soap: statistics_beta 1 is out of range; it must be in [0, 1)");
  CHECK(error_of([&] { Soap({w}, {.refresh_every = 0}); }) ==
        "optimizer: soap: refresh_every 0 is out of range; it must be at least 1");
  CHECK(error_of([&] { Soap({w}, {.largest_dim = 0}); }) ==
        "optimizer: soap: largest_dim 0 is out of range; it must be at least 1");
  CHECK(error_of([&] { Soap({w}, {.beta1 = 1}); }) == "optimizer: beta1 1 is out of range; it must be in [0, 1)");
  Soap eco({w}, {.precision = {.update = LowPrecisionUpdate::eco}});
  set_gradient(w, gradient_of({4, 3}, 1), DType::f32);
  CHECK(error_of([&] { eco.step(); }) == "optimizer: soap: eco updates are for SGD, Adam and AdamW");

  Soap soap({w});
  take_steps(soap, w, 1, 2, DType::f32);
  StateDict without;
  StateDict other;
  for (const auto& [name, value] : soap.state_dict()) {
    if (name != "params.0.basis.1") without.set(name, value);
    if (name == "params.0.basis.1") other.set(name, zeros({2, 2}));
    else other.set(name, value);
  }
  CHECK(error_of([&] { soap.load_state_dict(without); }) ==
        "load_state_dict: basis.1 of parameter 0 is missing; after 2 steps the state has it");
  CHECK(error_of([&] { soap.load_state_dict(other); }) ==
        "load_state_dict: basis.1 of parameter 0 is [2, 2] f32, it should be floating [3, 3]");
  const Optimizer::Choices expected{{"statistics_beta", "beta2"}, {"refresh_every", "10"}, {"largest_dim", "10000"}};
  CHECK(soap.choices() == expected);
}

TEST_CASE("a state with more matrices than SOAP keeps is an Error") {
  const Tensor w = parameter({5, 4}, DType::f32);
  Soap both({w});
  take_steps(both, w, 1, 2, DType::f32);
  Soap one({w}, {.largest_dim = 4});
  const StateDict state = both.state_dict();
  CHECK(error_of([&] { one.load_state_dict(state); }) ==
        "load_state_dict: the state of parameter 0 has 'covariance.0', which soap does not keep for it; it keeps "
        "steps, master, compensation, exp_avg, exp_avg_sq, covariance.1, basis.1");
  CHECK(one.state_dict().integer("params.0.steps") == 0);
}

TEST_CASE("eigenvectors are orthonormal, from the largest eigenvalue to the smallest") {
  for (const std::int64_t n : {1, 2, 7, 40}) {
    const Tensor x = random_tensor({n, n + 3}, static_cast<std::uint64_t>(n), DType::f64);
    const Tensor a = matmul(x, x.t());
    const Tensor v = eigenvectors(a);
    const Tensor eye = matmul(v.t(), v);
    const Tensor diagonal = matmul(v.t(), matmul(a, v));
    double last = INFINITY;
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        CHECK(eye[i][j].item() == doctest::Approx(i == j ? 1 : 0).epsilon(1e-12));
        if (i != j) CHECK(std::abs(diagonal[i][j].item()) < 1e-11 * static_cast<double>(n));
        if (i != j) continue;
        CHECK(diagonal[i][i].item() <= last);
        last = diagonal[i][i].item();
      }
  }
  const Tensor none = eigenvectors(zeros({3, 3}));
  CHECK(same_bits(matmul(none.t(), none), eigenvectors(none) * 0 + matmul(none, none.t())));
  for (const double bad : {INFINITY, NAN})
    for (const double value : eigenvectors(full({2, 2}, bad)).to_vector<double>()) CHECK(std::isnan(value));
}

TEST_CASE("a refined basis tends to the eigenvectors, whose order follows the eigenvalues") {
  const Tensor x = random_tensor({6, 9}, 3, DType::f64);
  const Tensor a = matmul(x, x.t());
  Tensor basis = from_data(Values(36, 0), {6, 6}, {.dtype = DType::f64});
  for (std::int64_t i = 0; i < 6; ++i) basis[i][5 - i].fill_(1);
  for (int i = 0; i < 400; ++i) basis = refined_eigenvectors(a, basis).vectors;
  CHECK(refined_eigenvectors(a, basis).order.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
  const Tensor exact = eigenvectors(a);
  const Tensor overlap = matmul(exact.t(), basis);
  for (std::int64_t i = 0; i < 6; ++i) CHECK(std::abs(overlap[i][i].item()) == doctest::Approx(1).epsilon(1e-9));
}
