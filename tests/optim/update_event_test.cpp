// What observers learn about the updates of parameters.
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "gradual/core/observe/update_event.h"
#include "gradual/optim/adam.h"
#include "gradual/optim/sgd.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

struct Updates final : Observer {
  struct Seen {
    std::string optimizer;
    std::optional<OpId> op;
    bool own_target = false;  // the target is the parameter
    bool master = false;
    bool compensation = false;
    // first elements
    double before = 0;
    double after = 0;
    double gradient = 0;
    double next = 0;
    std::vector<double> state, next_state;
  };
  static double first(const Tensor& t) { return t.defined() ? t.reshape({-1}).narrow(0, 0, 1).item() : 0; }
  void before_update(const UpdateEvent& e) override {
    Seen& s = all.emplace_back();
    s.optimizer = e.optimizer;
    s.op = e.op;
    s.own_target = e.target.is_same(e.parameter);
    s.master = e.master.defined();
    s.compensation = e.compensation.defined();
    s.before = first(e.parameter);
    s.gradient = first(e.gradient);
    for (const Tensor& t : e.state) s.state.push_back(first(t));
    CHECK(!e.next.defined());
  }
  void after_update(const UpdateEvent& e) override {
    Seen& s = all.at(ended++);
    s.after = first(e.parameter);
    s.next = first(e.next);
    for (const Tensor& t : e.next_state) s.next_state.push_back(first(t));
  }
  std::vector<Seen> all;
  std::size_t ended = 0;
};

// w -= lr g and m += g. It writes what it is given in place.
struct InPlace final : Optimizer {
  explicit InPlace(std::vector<Tensor> params, const UpdateOptions& options = {})
      : Optimizer("in_place", {"sum"}, {{.params = std::move(params)}}, {.lr = 0.25}, options) {}
  Tensor update(const Update& u) override {
    u.state[0].add_(u.gradient);
    Tensor weight = u.weight;
    weight.add_(u.gradient, -u.group.lr.value());
    return weight;
  }
};

Tensor parameter(DType dtype) { return full({2, 3}, 1.0, dtype).set_requires_grad(); }

}  // namespace

TEST_CASE("update events: a fused optimizer tells each parameter, and its row-major copy") {
  Tensor a = parameter(DType::f32);
  Tensor b = full({3, 2}, 2.0).t().detach().set_requires_grad();
  SGD sgd(std::vector<Tensor>{a, b}, {.lr = 0.5});
  a.set_grad(full({2, 3}, 1.0));
  b.set_grad(full({2, 3}, 2.0));
  Updates seen;
  {
    const ObserverScope scope(seen);
    sgd.step();
  }
  REQUIRE(seen.all.size() == 2);
  CHECK(seen.ended == 2);
  for (const Updates::Seen& s : seen.all) {
    CHECK(s.optimizer == "sgd");
    CHECK(s.op == OpId::sgd_step_);
    CHECK(s.next_state.empty());
    CHECK(s.after == s.before - 0.5 * s.gradient);
  }
  CHECK(seen.all[0].own_target);
  CHECK(!seen.all[1].own_target);
  CHECK(seen.all[1].before == 2);
}

TEST_CASE("update events: an optimizer written with ops tells the weight and the state before it writes in place") {
  for (const LowPrecisionUpdate update :
       {LowPrecisionUpdate::none, LowPrecisionUpdate::masters, LowPrecisionUpdate::kahan}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Tensor w = parameter(dtype);
      InPlace optimizer({w}, {.update = update});
      Updates seen;
      const ObserverScope scope(seen);
      for (int step = 0; step < 2; ++step) {
        w.set_grad(full({2, 3}, 1.0, dtype));
        optimizer.step();
      }
      REQUIRE(seen.all.size() == 2);
      CHECK(seen.ended == 2);
      const bool low = dtype == DType::bf16;
      for (std::size_t k = 0; k < 2; ++k) {
        const Updates::Seen& s = seen.all[k];
        CHECK(s.optimizer == "in_place");
        CHECK(!s.op);
        CHECK(s.own_target);
        CHECK(s.master == (low && update == LowPrecisionUpdate::masters));
        CHECK(s.compensation == (low && update == LowPrecisionUpdate::kahan));
        const double n = static_cast<double>(k);
        CHECK(s.before == 1 - 0.25 * n);
        CHECK(s.next == 0.75 - 0.25 * n);
        CHECK(s.after == s.next);
        CHECK(s.state == std::vector<double>{n});
        CHECK(s.next_state == std::vector<double>{n + 1});
      }
    }
  }
}

TEST_CASE("update events: nothing is told, and no bit differs, where nothing observes") {
  const auto trained = [](bool watched) {
    Tensor w = parameter(DType::bf16);
    AdamOptions kahan{.lr = 0.1};
    kahan.precision.update = LowPrecisionUpdate::kahan;
    Adam adam(std::vector<Tensor>{w}, kahan);
    Updates seen;
    std::optional<ObserverScope> scope;
    if (watched) scope.emplace(seen);
    for (int step = 0; step < 3; ++step) {
      w.set_grad(full({2, 3}, 0.3, DType::bf16));
      adam.step();
    }
    CHECK(seen.all.size() == (watched ? 3 : 0));
    return w.to(DType::f32).to_vector<float>();
  };
  CHECK(trained(true) == trained(false));
}
