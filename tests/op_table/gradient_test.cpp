// Every differentiable row against central differences, once and twice.
#include <doctest/doctest.h>
#include <gradual/autograd/autograd.h>
#include <gradual/autograd/gradcheck.h>
#include <gradual/autograd/rule.h>
#include <gradual/core/observe/observer.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/cuda/cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "op_table.h"
#include "support/cpu_backends.h"
#include "support/gpu.h"

namespace gradual::test {
namespace {

bool constant(const Row& row, std::size_t input) {
  return std::find(row.constant_inputs.begin(), row.constant_inputs.end(), static_cast<int>(input)) !=
         row.constant_inputs.end();
}

// The sample as a function of f64 leaves: in-place rows write a copy, and only the differentiable outputs
// count.
autograd::CheckedFunction function_of(const Row& row, const Sample& sample) {
  return [&row, call = sample.call](const Tensors& inputs) {
    Tensors given = inputs;
    if (op_info(row.op).kind == OpKind::InPlace) given[0] = clone(given[0]);
    Tensors out = call(given);
    out.resize(std::min(out.size(), static_cast<std::size_t>(row.differentiable_outputs)));
    return out;
  };
}

Tensors leaves_of(const Row& row, const Sample& sample) {
  Tensors inputs = fresh(sample.inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined() && inputs[i].dtype() == DType::f64 && !constant(row, i)) inputs[i].set_requires_grad();
  return inputs;
}

template <class Check> int check_rows(bool twice, Check check) {
  int checks = 0;
  for (const Row* row : rows_under_test()) {
    if (!row->samples || !row->no_gradient.empty() || (twice && !row->no_double_gradient.empty())) continue;
    int of_row = 0;
    for (const Sample& sample : samples_of(*row, DType::f64)) {
      if (sample.large || !sample.gradient) continue;
      const std::string where = describe(*row, sample, sample.inputs, twice ? "gradgradcheck" : "gradcheck");
      try {
        const Tensors inputs = leaves_of(*row, sample);
        const Tensors outputs = function_of(*row, sample)(inputs);
        if (std::none_of(outputs.begin(), outputs.end(), [](const Tensor& t) { return t.requires_grad(); })) {
          // a cast to integers, say
          if (std::any_of(outputs.begin(), outputs.end(), [](const Tensor& t) { return t.is_floating(); }))
            expect_none("no floating output requires a gradient", where);
          continue;
        }
        expect_none(check(function_of(*row, sample), inputs), where);
      } catch (const std::exception& e) { expect_none(std::string("threw: ") + e.what(), where); }
      ++of_row;
    }
    CHECK_MESSAGE(of_row > 0, to_string(row->op) << " has no sample with a gradient");
    checks += of_row;
  }
  return checks;
}

// Outputs of f32 and below (cast, copy_) carry their rounding into the differences.
autograd::GradcheckOptions options_for(const autograd::CheckedFunction& f, const Tensors& inputs) {
  for (const Tensor& t : f(inputs))
    if (t.defined() && t.is_floating() && t.dtype() != DType::f64) return {.eps = 1, .atol = 1e-9, .rtol = 0};
  return {};
}

TEST_CASE("gradcheck of every differentiable row") {
  const int checks = check_rows(false, [](const autograd::CheckedFunction& f, const Tensors& inputs) {
    return autograd::gradcheck(f, inputs, options_for(f, inputs)).message;
  });
  MESSAGE(checks << " samples");
  if (!std::getenv("GRADUAL_TEST_OP")) CHECK(checks > 0);
}

TEST_CASE("gradgradcheck of every row that is differentiable twice") {
  const int checks = check_rows(true, [](const autograd::CheckedFunction& f, const Tensors& inputs) -> std::string {
    for (const Tensor& t : f(inputs))
      if (t.defined() && t.is_floating() && t.dtype() != DType::f64) return "";  // linear, and not in f64
    return autograd::gradgradcheck(f, inputs).message;
  });
  MESSAGE(checks << " samples");
  if (!std::getenv("GRADUAL_TEST_OP")) CHECK(checks > 0);
}

// The gradients of the sum of the floating outputs, each weighted with its own numbers in its own dtype.
Tensors gradients_of(const Row& row, const Sample& sample, const Tensors& inputs, bool create_graph = false) {
  Tensors leaves;
  for (const Tensor& t : inputs)
    if (t.defined() && t.requires_grad()) leaves.push_back(t);
  Tensors ends;
  Tensors weights;
  for (const Tensor& t : function_of(row, sample)(inputs)) {
    if (!t.requires_grad()) continue;
    ends.push_back(t);
    Draw draw(t.dtype(), 3);
    weights.push_back(draw.uniform(t.sizes(), 0.5, 1.5).to(t.device()));
  }
  if (ends.empty()) return Tensors(leaves.size());
  return autograd::grad(ends, leaves, weights, {.create_graph = create_graph, .allow_unused = true});
}

// The largest difference of two gradients, and the largest entry.
std::pair<double, double> distance(const Tensors& a, const Tensors& b) {
  double far = 0;
  double size = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (!a[k].defined() || !b[k].defined()) {
      if (a[k].defined() != b[k].defined()) far = INFINITY;
      continue;
    }
    const Array x = to_array(a[k]);
    const Array y = to_array(b[k]);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      if (!(std::fabs(x[i] - y[i]) <= far)) far = std::fabs(x[i] - y[i]);
      size = std::max(size, std::fabs(y[i]));
    }
  }
  return {far, size};
}

TEST_CASE("gradients do not depend on the inputs' layout") {
  int checks = 0;
  for (const Row* row : rows_under_test()) {
    if (!row->samples || !row->no_gradient.empty()) continue;
    for (const Sample& sample : samples_of(*row, DType::f64)) {
      if (sample.large || !sample.gradient) continue;
      const Tensors want = gradients_of(*row, sample, leaves_of(*row, sample));
      for (int l = 1; l < static_cast<int>(Layout::expanded); ++l) {
        const auto layout = static_cast<Layout>(l);
        auto inputs = lay_out(sample.inputs, layout, written_inputs(*row));
        if (!inputs) continue;
        for (std::size_t i = 0; i < inputs->size(); ++i)
          if (sample.inputs[i].defined() && sample.inputs[i].dtype() == DType::f64 && !constant(*row, i))
            (*inputs)[i].set_requires_grad();
        const auto [far, size] = distance(gradients_of(*row, sample, *inputs), want);
        if (!(far <= 1e-12 * size))
          expect_none("gradients differ by " + std::to_string(far), describe(*row, sample, *inputs, to_string(layout)));
        ++checks;
      }
    }
  }
  if (!std::getenv("GRADUAL_TEST_OP")) CHECK(checks > 0);
}

// Each backward in the dtypes forward ran in: dtype and shape are the input's, and the numbers those of f64
// but for the rounding of the steps of the rule and its sums. f64's own are the CPU's.
int check_backward(std::initializer_list<DType> dtypes, Device device) {
  int checks = 0;
  for (const Row* row : rows_under_test()) {
    if (!row->samples || !row->no_gradient.empty()) continue;
    for (DType dtype : dtypes) {
      if (std::find(row->dtypes.begin(), row->dtypes.end(), dtype) == row->dtypes.end()) continue;
      for (const Sample& sample : samples_of(*row, dtype)) {
        if (sample.large || !sample.gradient) continue;
        Tensors inputs = fresh(sample.inputs);
        Tensors wide;
        double epsilon = float_info(dtype).epsilon;  // the coarsest of the inputs'
        double terms = 64;                           // the steps of a rule, each of which rounds
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          const bool leaf =
              inputs[i].defined() && inputs[i].is_floating() && !is_f8(inputs[i].dtype()) && !constant(*row, i);
          wide.push_back(converted(inputs[i], DType::f64));
          inputs[i] = with_storage_on(device, inputs[i]);
          if (leaf) {
            epsilon = std::max(epsilon, float_info(inputs[i].dtype()).epsilon);
            inputs[i].set_requires_grad();
            wide.back().set_requires_grad();
          }
          if (inputs[i].defined()) terms += static_cast<double>(inputs[i].numel());
        }
        const std::string where = describe(*row, sample, inputs, "backward");
        try {
          const Tensors got = gradients_of(*row, sample, inputs);
          std::size_t k = 0;
          for (const Tensor& t : inputs) {
            if (!t.defined() || !t.requires_grad()) continue;
            const Tensor& g = got[k++];
            if (g.defined() && (g.dtype() != t.dtype() || g.sizes() != t.sizes() || g.device() != device))
              expect_none("gradient is " + describe(g) + " on " + to_string(g.device()), where);
          }
          const auto [far, size] = distance(got, gradients_of(*row, sample, wide));
          if (!(far <= terms * epsilon * std::max(1.0, size)))
            expect_none("differs from the gradient in f64 by " + std::to_string(far) + " of " + std::to_string(size),
                        where);
        } catch (const std::exception& e) { expect_none(std::string("threw: ") + e.what(), where); }
        ++checks;
      }
    }
  }
  return checks;
}

class Onlooker final : public Observer, public autograd::GradientObserver {
 public:
  bool wants_counts() const override { return true; }
  void gradient(const autograd::GradientEvent&) override {}
};

// Of gradients: the bytes, or none where there is no gradient.
std::vector<std::vector<std::byte>> bits_of(const Tensors& gradients) {
  std::vector<std::vector<std::byte>> bits;
  for (const Tensor& g : gradients) bits.push_back(g.defined() ? bytes_of(g.detach()) : std::vector<std::byte>{});
  return bits;
}

int check_same_bits(Device device) {
  int checks = 0;
  for (const Row* row : rows_under_test()) {
    if (!row->samples || !row->no_gradient.empty()) continue;
    for (DType dtype : row->dtypes) {
      if (!is_floating(dtype) || is_f8(dtype)) continue;
      const std::vector<Sample> samples = samples_of(*row, dtype);
      for (std::size_t s = 0; s < samples_observed(device, samples.size()); ++s) {
        const Sample& sample = samples[s];
        if (sample.large) continue;
        const auto gradients = [&](bool create_graph) {
          Tensors inputs = fresh(sample.inputs);
          for (std::size_t i = 0; i < inputs.size(); ++i) {
            const Tensor& t = inputs[i];
            const bool leaf = t.defined() && t.is_floating() && !is_f8(t.dtype()) && !constant(*row, i);
            inputs[i] = with_storage_on(device, inputs[i]);
            if (leaf) inputs[i].set_requires_grad();
          }
          return bits_of(gradients_of(*row, sample, inputs, create_graph));
        };
        const auto plain = gradients(false);
        const std::string where = describe(*row, sample, sample.inputs, "backward");
        if (gradients(true) != plain) expect_none("create_graph changes bits of the first derivative", where);
        Onlooker onlooker;
        const ObserverScope watched(onlooker);
        if (gradients(false) != plain) expect_none("an observer changes bits of the gradient", where);
        ++checks;
      }
    }
  }
  return checks;
}

TEST_CASE("gradients have the same bits under create_graph and under observers" * doctest::test_suite("slow")) {
  for (const CpuBackend backend : testing::cpu_backends()) {
    const CpuBackendScope scope(backend);
    const int checks = check_same_bits(Device::cpu());
    if (!std::getenv("GRADUAL_TEST_OP")) CHECK(checks > 0);
  }
}

TEST_CASE("CUDA: gradients have the same bits under create_graph and under observers") {
  if (!have_gpu()) return;
  const int checks = check_same_bits(Device::cuda());
  if (!std::getenv("GRADUAL_TEST_OP")) CHECK(checks > 0);
}

TEST_CASE("backward runs in every float dtype") {
  const auto checks = check_backward({DType::f32, DType::f16, DType::bf16}, Device::cpu());
  if (!std::getenv("GRADUAL_TEST_OP")) CHECK(checks > 0);
}

TEST_CASE("CUDA: backward of every row gives the CPU's gradients") {
  if (!have_gpu()) return;
  const auto checks = check_backward({DType::f64, DType::f32, DType::f16, DType::bf16}, Device::cuda());
  if (!std::getenv("GRADUAL_TEST_OP")) CHECK(checks > 0);
}

TEST_CASE("rows without a gradient give results that require none, and have a reason in the rules too") {
  ensure_registered();
  for (const Row* row : rows_under_test()) {
    if (row->no_gradient.empty() || !row->samples) continue;
    CAPTURE(to_string(row->op));
    CHECK(backward_rules()[static_cast<int>(row->op)].reason != nullptr);
    if (std::find(row->dtypes.begin(), row->dtypes.end(), DType::f64) == row->dtypes.end()) continue;
    const Sample sample = samples_of(*row, DType::f64)[0];
    for (const Tensor& t : sample.call(leaves_of(*row, sample))) CHECK_FALSE(t.requires_grad());
  }
}

TEST_CASE("every row with a backward rule is checked") {
  ensure_registered();
  for (const Row* row : rows_under_test()) {
    if (!backward_rules()[static_cast<int>(row->op)].backward || !row->samples) continue;
    CAPTURE(to_string(row->op));
    CHECK(row->no_gradient.empty());
  }
}

// gradcheck itself must fail where a gradient is wrong.
TEST_CASE("gradcheck finds wrong gradients") {
  const Tensor x = from_data(std::vector<double>{0.5, -1, 2}, {3}, {.dtype = DType::f64, .requires_grad = true});
  // x * detach(x) has the value of x^2 and half of its gradient.
  const auto half = autograd::gradcheck([](const Tensors& in) -> Tensors { return {in[0] * in[0].detach()}; }, {x});
  CHECK_FALSE(half.ok);
  CHECK(half.message.find("input 0, element 0 of [3], output 0: analytic 0.5, numeric 1") != std::string::npos);
  const auto cut = autograd::gradcheck([](const Tensors& in) -> Tensors { return {square(in[0].detach())}; }, {x});
  CHECK_FALSE(cut.ok);
  CHECK(cut.message.find("no path") != std::string::npos);
  CHECK(autograd::gradcheck([](const Tensors& in) -> Tensors { return {square(in[0])}; }, {x}).ok);
  // A first derivative that is right, of which the second is not.
  const auto second = [](const Tensors& in) -> Tensors {
    const Tensor at = in[0].detach();
    return {in[0] * square(at) * 3 - 2 * pow(at, 3)};
  };
  CHECK(autograd::gradcheck([](const Tensors& in) -> Tensors { return {pow(in[0], 3)}; }, {x}).ok);
  CHECK(autograd::gradgradcheck([](const Tensors& in) -> Tensors { return {pow(in[0], 3)}; }, {x}).ok);
  CHECK_FALSE(autograd::gradgradcheck(second, {x}).ok);
  CHECK_THROWS_AS(autograd::gradcheck(second, {ones({2})}), Error);
  CHECK_THROWS_AS(autograd::gradcheck(second, {ones({2}, {.requires_grad = true})}), Error);
}

}  // namespace
}  // namespace gradual::test
