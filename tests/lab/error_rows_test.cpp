// Norms of the errors of rows: what arrives at an op's result for errors of that norm, against the op itself on inputs
// that are moved as far.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/error_rows.h>
#include <gradual/lab/recorded_ops.h>
#include <gradual/lab/tolerance_bounds.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

using namespace gradual;

namespace {

constexpr TensorOptions kF64{.dtype = DType::f64};

// The recorded op `wanted` of a program.
lab::RecordedOp recorded(OpId wanted, const std::function<void()>& program) {
  const nn::Linear none(1, 1);
  lab::RecordedOps ops(none);
  {
    const ObserverScope scope(ops);
    program();
  }
  const auto found = std::ranges::find(ops.all(), wanted, &lab::RecordedOp::op);
  REQUIRE(found != ops.all().end());
  return *found;
}

Tensor random_leaf(const Shape& sizes) {
  Tensor t = randn(sizes);
  t.set_requires_grad();
  return t;
}

struct Case {
  OpId op;
  std::function<void()> program;
  std::vector<std::size_t> moved;  // the inputs with errors
};

std::vector<Case> cases() {
  const auto backward_of = [](const std::function<Tensor(const Tensor&)>& f) {
    return [f] { (f(random_leaf({4, 8})) * randn({4, 8})).sum().backward(); };
  };
  const auto norm = [](const Tensor& x) { return layer_norm(x, 1, randn({8}), randn({8})); };
  const auto rms = [](const Tensor& x) { return rms_norm(x, 1, randn({8})); };
  return {{OpId::linear,
           [] {
             linear(randn({4, 8}), randn({6, 8}), randn({6}));
           },
           {0, 1}},
          {OpId::matmul,
           [] {
             matmul(randn({2, 4, 8}), randn({2, 8, 5}));
           },
           {0, 1}},
          {OpId::relu,
           [] {
             relu(randn({4, 8}));
           },
           {0}},
          {OpId::gelu,
           [] {
             gelu(randn({4, 8}));
           },
           {0}},
          {OpId::gelu_backward, backward_of([](const Tensor& x) { return gelu(x); }), {0, 1}},
          {OpId::mul,
           [] {
             mul(randn({4, 8}), randn({4, 8}));
           },
           {0, 1}},
          {OpId::sub,
           [] {
             sub(randn({4, 8}), randn({4, 8}));
           },
           {0, 1}},
          {OpId::softmax,
           [] {
             softmax(randn({4, 8}) * 3.0, -1);
           },
           {0}},
          {OpId::softmax_backward, backward_of([](const Tensor& x) { return softmax(x, -1); }), {0, 1}},
          {OpId::layer_norm,
           [norm] {
             norm(randn({4, 8}));
           },
           {0}},
          {OpId::rms_norm,
           [rms] {
             rms(randn({4, 8}));
           },
           {0}},
          {OpId::layer_norm_backward, backward_of(norm), {0, 1}},
          {OpId::rms_norm_backward, backward_of(rms), {0, 1}}};
}

// Rows of this norm, in random directions; the first trials along single elements.
Tensor moves_of(const Shape& sizes, double norm, int trial) {
  Tensor d = cast(randn(sizes), DType::f64);
  if (trial % 3 == 0) d = mul(square(d), d);
  return mul(div(d, lab::norm_of_rows(d)), norm);
}

// The first result. Statistics that forward has saved for a gradient follow from the inputs that are moved.
Tensor run(const lab::RecordedOp& op, std::vector<Tensor> inputs) {
  const bool centred = op.op == OpId::layer_norm_backward;
  if (centred || op.op == OpId::rms_norm_backward) {
    const Tensor middle = centred ? mean(inputs[1], {-1}, true) : zeros({1}, kF64);
    const Tensor squares = mean(square(sub(inputs[1], middle)), {-1}, true);
    const Tensor root = rsqrt(add(squares, op.attrs.get<NormAttrs>().eps));
    if (centred) inputs[3] = reshape(middle, op.inputs[3].sizes);
    inputs.back() = reshape(root, op.inputs.back().sizes);
  }
  return lab::run_in_f64(op, inputs)[0];
}

}  // namespace

TEST_CASE("rows of errors: the largest singular value is at least the true one, and near it") {
  const Tensor diagonal = from_data(std::vector<double>{3, 0, 0, 0, -5, 0}, {2, 3}, kF64);
  CHECK(lab::largest_singular_value(diagonal).item() >= 5);
  CHECK(lab::largest_singular_value(diagonal).item() < 5.01);
  // A rotation has singular values of 1: the worst case for a norm of all of them.
  const Tensor turned = hadamard(eye(64), std::vector<bool>(64, false));
  const double value = lab::largest_singular_value(cast(turned, DType::f64)).item();
  CHECK(value >= 1 - 1e-6);
  CHECK(value < 1.04);
  const Tensor random = cast(randn({40, 30}), DType::f64);
  Tensor v = ones({30, 1}, kF64);
  for (int i = 0; i < 200; ++i) {
    v = matmul(random.transpose(0, 1), matmul(random, v));
    v = div(v, sqrt(sum(square(v))));
  }
  const double by_iteration = sqrt(sum(square(matmul(random, v)))).item();
  CHECK(lab::largest_singular_value(random).item() >= by_iteration);
  CHECK(lab::largest_singular_value(random).item() < 1.1 * by_iteration);
  CHECK(lab::largest_singular_value(zeros({2, 2}, kF64)).item() < 1e-100);
}

TEST_CASE("rows of errors: a view's rows have the norms of their groups, each as often as the view repeats it") {
  const auto of = [](const Tensor& t) {
    return lab::RecordedTensor{.storage = 1,
                               .elements = 8,
                               .sizes = t.sizes(),
                               .strides = t.strides(),
                               .offset = t.offset(),
                               .dtype = t.dtype()};
  };
  const Tensor t = zeros({2, 4});
  const Tensor e = from_data(std::vector<double>{3, 3, 3, 3, 1, 1, 1, 1}, {2, 4}, kF64);
  lab::ErrorRows rows;
  rows.write(of(t), from_data(std::vector<double>{3, 1}, {2, 1}, kF64));
  const auto near = [](const Tensor& found, const std::vector<double>& wanted) {
    const std::vector<double> numbers = found.to_vector<double>();
    REQUIRE(numbers.size() == wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) CHECK(numbers[i] == doctest::Approx(wanted[i]).epsilon(1e-9));
  };
  near(rows.rows(of(t), e), {3, 1});
  // A column has an element of each row.
  near(rows.columns(of(t), e), std::vector<double>(4, std::sqrt(10)));
  // Both rows after each other.
  near(rows.rows(of(t.reshape({8})), e.reshape({8})), {std::sqrt(10)});
  // The first column, nine times beside itself: a row may have moved by 3 in each of its nine elements.
  const Tensor wide = as_strided(t, {2, 9}, {4, 0}, 0);
  near(rows.rows(of(wide), contiguous(as_strided(e, {2, 9}, {4, 0}, 0))), {9, 3});
  // The first row, nine times below itself.
  const Tensor high = as_strided(t, {9, 4}, {0, 1}, 0);
  const Tensor high_errors = full({9, 4}, 3, kF64);
  near(rows.rows(of(high), high_errors), std::vector<double>(9, 3));
  near(rows.columns(of(high), high_errors), std::vector<double>(4, 9));
}

TEST_CASE("rows of errors: no input within them gives a result beyond the bound of its row, however large they are") {
  default_generator().manual_seed(5);
  for (const Case& c : cases())
    for (const double norm : {1e-6, 1e-2, 0.5, 3.0}) {
      const lab::RecordedOp op = recorded(c.op, c.program);
      CAPTURE(std::string(to_string(c.op)));
      CAPTURE(norm);
      lab::RecordedNumbers numbers;
      numbers.start(op);
      lab::ExactOp exact{.op = op, .units = lab::units_of(DType::f32)};
      for (const lab::RecordedTensor& t : op.inputs) {
        const Tensor given = numbers.read(t);
        exact.x.push_back(given.defined() && !numbers.knows(t) ? cast(randn(t.sizes), DType::f64) : given);
      }
      if (c.op == OpId::softmax_backward) exact.x[1] = softmax(exact.x[1], -1);
      exact.error.assign(exact.x.size(), Tensor());
      for (const std::size_t i : c.moved) exact.error[i] = full(exact.x[i].sizes(), norm, kF64);
      exact.rows.assign(exact.x.size(), Tensor());
      for (const std::size_t i : c.moved) exact.rows[i] = full(lab::norm_of_rows(exact.x[i]).sizes(), norm, kF64);
      const Tensor y = run(op, exact.x);
      exact.y[0] = y;
      const std::optional<lab::RowErrors> bound = lab::row_errors_of(exact);
      REQUIRE(bound.has_value());
      double beyond = -1;
      double share = 0;
      for (int trial = 0; trial < 200; ++trial) {
        std::vector<Tensor> inputs = exact.x;
        for (const std::size_t i : c.moved) inputs[i] = add(inputs[i], moves_of(inputs[i].sizes(), norm, trial));
        const Tensor away = abs(sub(run(op, inputs), y));
        const Tensor rows = lab::norm_of_rows(away);
        beyond = std::max(beyond, max(sub(rows, bound->rows)).item());
        beyond = std::max(beyond, max(sub(away, bound->elements)).item());
        share = std::max(share, max(div(rows, bound->rows)).item());
      }
      CHECK(beyond <= 0);
      if (norm == 1e-2) CHECK(share > 0.05);  // it is no empty statement
    }
}
