// Products of f8 codes: what a backend that multiplies them receives, and that the result is the same.
#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

#include "../../amp/quantization.h"
#include "../../amp/recipe.h"
#include "../../autograd/autograd.h"
#include "../../core/observe/observer.h"
#include "../../core/ops/compute_mode.h"
#include "../../core/ops/cpu_backend.h"
#include "../../core/ops/f8_operands.h"
#include "../../core/ops/ops.h"
#include "../../inspect/shadow.h"

using namespace gradual;

namespace {

constexpr OpId kProducts[] = {OpId::matmul, OpId::linear};

// While it lives, the CPU claims to multiply f8 codes: its kernels include the scales of F8Attrs.
class Capable : Pinned {
 public:
  Capable() {
    ensure_registered();
    for (const OpId op : kProducts) {
      plain_[op == OpId::linear] = std::exchange(columns().cpu[static_cast<int>(op)], kernel);
      columns().cpu_capability[static_cast<int>(op)].suits = [](const OpCall& call) {
        return call.attrs->is<F8Attrs>();
      };
    }
  }
  ~Capable() {
    for (const OpId op : kProducts) {
      columns().cpu[static_cast<int>(op)] = plain_[op == OpId::linear];
      columns().cpu_capability[static_cast<int>(op)].suits = nullptr;
    }
  }

 private:
  static void kernel(const OpCall& call, Outputs& out) {
    const Attrs none{};
    OpCall plain = call;
    plain.attrs = &none;
    plain_[call.op == OpId::linear](plain, out);
    if (!call.attrs->is<F8Attrs>()) return;
    const auto& f8 = call.get<F8Attrs>();
    auto* const y = out[0].data<float>();
    for (const float* const scale : {f8.a_scale, f8.b_scale})
      for (std::int64_t i = 0; scale && i < out[0].numel(); ++i) y[i] *= *scale;
  }
  static inline KernelFn plain_[2] = {};
  CpuBackendScope backend_{CpuBackend::eigen};
};

struct Counter final : Observer {
  int by_codes = 0;
  int multiplications = 0;
  void after(const OpCall& call, const Outputs&, const CallRecord&) override {
    by_codes += call.attrs->is<F8Attrs>();
    multiplications += call.op == OpId::mul_;
  }
};

struct Step {
  std::vector<double> y, dx, dw;
  int by_codes = 0;
  int multiplications = 0;
  std::vector<inspect::ShadowRow> rows;
};

Step step(bool fast) {
  amp::Recipe recipe = amp::recipe("fp8-current");
  const auto state = std::make_shared<amp::QuantizationState>(*recipe.quantization);
  Generator generator(1);
  const Tensor x = (randn({16, 32}, {}, generator) * 20.0).detach().set_requires_grad();
  const Tensor w = randn({8, 32}, {}, generator).set_requires_grad();
  const Tensor dy = randn({16, 8}, {}, generator) * 0.01;
  const FastF8Scope how(fast);
  Counter seen;
  inspect::Shadow shadow;
  Tensor y;
  {
    const ObserverScope counts(seen);
    const ObserverScope exact(shadow);
    {
      const amp::RecipeScope region(recipe, Device::cpu(), state);
      y = linear(x, w);
    }
    y.backward(dy);
  }
  return {y.to_vector<double>(), x.grad().to_vector<double>(), w.grad().to_vector<double>(),
          seen.by_codes,         seen.multiplications,         shadow.rows()};
}

}  // namespace

TEST_CASE("f8 codes and scales are attributes of the product where the backend multiplies them") {
  const Capable capable;
  const Step plain = step(false);
  const Step fast = step(true);
  CHECK(plain.by_codes == 0);
  CHECK(plain.multiplications == 6);
  CHECK(fast.by_codes == 3);
  CHECK(fast.multiplications == 0);
  CHECK(plain.y == fast.y);
  CHECK(plain.dx == fast.dx);
  CHECK(plain.dw == fast.dw);
  // The shadow multiplies by the scales, too.
  REQUIRE(plain.rows.size() == fast.rows.size());
  for (std::size_t i = 0; i < plain.rows.size(); ++i) {
    CHECK(fast.rows[i].not_exact.empty());
    CHECK(fast.rows[i].local.squares == doctest::Approx(plain.rows[i].local.squares).epsilon(1e-6));
    CHECK(fast.rows[i].total.squares == doctest::Approx(plain.rows[i].total.squares).epsilon(1e-6));
  }
}

TEST_CASE("fast f8: a backend without f8 products gets none, and multiplies by the scales") {
  const Step fast = step(true);
  CHECK(fast.by_codes == 0);
  CHECK(fast.multiplications == 6);
  CHECK(fast.y == step(false).y);
}
