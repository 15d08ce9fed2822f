// The optimizer rows on a GPU against the CPU: the same bits and counts.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <optional>

#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/observe/observer.h>
#include <gradual/core/ops/dispatch.h>
#include <gradual/optim/clip.h>
#include <gradual/optim/grad_scaler.h>
#include "../optim/helpers.h"
#include "support/gpu.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

// Empty, of one element, no multiple of four, longer than a chunk, in every dtype, one transposed; more than fit into
// one launch.
std::vector<Tensor> parameters(std::size_t few) {
  const Shape shapes[] = {{7}, {0}, {33, 5}, {1}, {}, {64, 64}, {2049}};
  std::vector<Tensor> all;
  std::uint64_t seed = 0;
  for (const DType dtype : kDTypes)
    for (const Shape& s : shapes) all.push_back(random_tensor(s, ++seed, dtype));
  for (const DType dtype : kDTypes) all.push_back(random_tensor({5, 6}, ++seed, dtype).t());
  while (all.size() < few) all.push_back(random_tensor({3}, ++seed, DType::bf16));
  return all;
}

std::vector<Tensor> leaves_on(Device device, const std::vector<Tensor>& numbers) {
  std::vector<Tensor> out;
  for (const Tensor& t : numbers) {
    const Tensor here = t.clone().to(device).detach();
    out.push_back(Tensor(here).set_requires_grad());
  }
  return out;
}

// The counts of steps, parameter by parameter.
struct Collector : Observer {
  std::vector<CastCounts> counts;
  bool wants_counts() const override { return true; }
  void after(const OpCall&, const Outputs&, const CallRecord& record) override {
    counts.insert(counts.end(), record.counts_by_parameter.begin(), record.counts_by_parameter.end());
  }
};

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&, const UpdateOptions&)>;
const std::map<std::string, Make> kKinds = {
    {"sgd",
     [](const auto& p, const auto& u) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .precision = u}); }},
    {"sgd with momentum",
     [](const auto& p, const auto& u) {
       return std::make_unique<SGD>(
           p, SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01, .precision = u});
     }},
    {"sgd with nesterov",
     [](const auto& p, const auto& u) {
       return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .precision = u});
     }},
    {"adam",
     [](const auto& p, const auto& u) {
       return std::make_unique<Adam>(p, AdamOptions{.weight_decay = 0.01, .precision = u});
     }},
    {"adamw", [](const auto& p, const auto& u) { return std::make_unique<AdamW>(p, AdamWOptions{.precision = u}); }}};

std::map<std::string, UpdateOptions> updates() {
  using enum LowPrecisionUpdate;
  return {{"none", {}},
          {"masters", {.update = masters}},
          {"flat masters", {.update = masters, .flat_masters = true}},
          {"kahan", {.update = kahan}},
          {"stochastic", {.update = stochastic, .seed = 5}},
          {"state in bf16", {.update = masters, .state_dtype = DType::bf16}},
          {"pure", {.pure_arithmetic = true}}};
}

void check_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CAPTURE(describe(a[i]));
    CHECK(same_numbers(a[i], b[i]));
  }
}
void check_same(const StateDict& a, const StateDict& b) {
  REQUIRE(a.size() == b.size());
  for (const StateDict::Entry& e : a) {
    CAPTURE(e.name);
    if (const Tensor* t = std::get_if<Tensor>(&e.value)) CHECK(same_numbers(*t, b.tensor(e.name)));
    else CHECK(gradual::describe(e.value) == gradual::describe(b.at(e.name)));
  }
}

}  // namespace

TEST_CASE("a GPU's steps have the CPU's bits and counts") {
  if (!have_gpu()) return;
  for (const auto& each_kind : kKinds) {
    for (const auto& each_update : updates()) {
      const std::string& kind = each_kind.first;
      const std::string& update = each_update.first;
      for (const bool counted : {false, true}) {
        CAPTURE(kind);
        CAPTURE(update);
        const std::vector<Tensor> numbers = parameters(kind == "adamw" && update == "masters" ? 450 : 0);
        CastCounts counts[2];
        Collector collected[2];
        std::vector<Tensor> params[2];
        std::unique_ptr<Optimizer> optimizers[2];
        for (const int gpu : {0, 1}) {
          params[gpu] = leaves_on(gpu ? Device::cuda() : Device::cpu(), numbers);
          optimizers[gpu] = each_kind.second(params[gpu], each_update.second);
          for (std::uint64_t step = 0; step < 3; ++step) {
            set_gradients(params[gpu], step);
            const CountScope scope(counted ? &counts[gpu] : nullptr);
            std::optional<ObserverScope> watching;
            if (counted && step == 2) watching.emplace(collected[gpu]);
            optimizers[gpu]->step();
          }
        }
        check_same(params[0], params[1]);
        check_same(optimizers[0]->state_dict(), optimizers[1]->state_dict());
        CHECK(counts[0] == counts[1]);
        CHECK(counted == (counts[0].elements > 0));
        CHECK(collected[0].counts == collected[1].counts);
        CHECK(counted == !collected[0].counts.empty());
      }
    }
  }
}

TEST_CASE("a GPU divides gradients and counts what is not finite as the CPU does") {
  if (!have_gpu()) return;
  for (const bool write : {false, true}) {
    for (const bool masters : {false, true}) {
      const std::vector<Tensor> numbers = parameters(0);
      std::vector<Tensor> found(2), params[2], gradients[2];
      CastCounts counts[2];
      for (const int gpu : {0, 1}) {
        params[gpu] = leaves_on(gpu ? Device::cuda() : Device::cpu(), numbers);
        // f16 gradients have no way without masters
        if (!masters) std::erase_if(params[gpu], [](const Tensor& p) { return p.dtype() == DType::f16; });
        set_gradients(params[gpu], 1);
        for (std::size_t i = 0; i < params[gpu].size(); i += 3)
          if (const Tensor g = params[gpu][i].grad(); g.defined() && g.numel() > 4)
            g.reshape({-1}).narrow(0, 4, 1).fill_(i % 2 == 0 ? INFINITY : NAN);
        AdamW optimizer(params[gpu],
                        {.precision = {.update = masters ? LowPrecisionUpdate::masters : LowPrecisionUpdate::none}});
        found[static_cast<std::size_t>(gpu)] = zeros({static_cast<std::int64_t>(params[gpu].size()) + 1},
                                                     {.dtype = DType::i64, .device = params[gpu][0].device()});
        const CountScope scope(&counts[gpu]);
        optimizer.unscale(found[static_cast<std::size_t>(gpu)], {0x1p-12}, write);
        for (const Tensor& p : params[gpu]) gradients[gpu].push_back(p.grad().defined() ? p.grad() : zeros({}));
        for (const Tensor& g : optimizer.step_gradients()) gradients[gpu].push_back(g);
      }
      CHECK(found[0].to_vector<std::int64_t>() == found[1].to_vector<std::int64_t>());
      CHECK(found[0].to_vector<std::int64_t>()[0] > 0);
      check_same(gradients[0], gradients[1]);
      CHECK(counts[0] == counts[1]);
    }
  }
}

TEST_CASE("gradients on a GPU are clipped as on the CPU") {
  if (!have_gpu()) return;
  for (const double p : {1.0, 2.0, static_cast<double>(INFINITY)}) {
    for (const double poison : {0.0, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      for (const double most : {0.5, 1e6}) {
        double norms[2];
        std::vector<Tensor> gradients[2];
        for (const int gpu : {0, 1}) {
          const auto params = leaves_on(gpu ? Device::cuda() : Device::cpu(), parameters(0));
          set_gradients(params, 1);
          if (poison != 0) params[2].grad().select(0, 3).fill_(poison);
          SGD sgd(params, {.precision = {.update = LowPrecisionUpdate::masters}});
          norms[gpu] = clip_grad_norm_(sgd, most, {.p = p});
          gradients[gpu] = sgd.step_gradients();
        }
        CHECK(std::isfinite(norms[0]) == (poison == 0));
        CHECK(std::isnan(norms[0]) == std::isnan(norms[1]));
        if (norms[0] != norms[1] && !std::isnan(norms[0])) CHECK(norms[1] == doctest::Approx(norms[0]).epsilon(1e-5));
        for (std::size_t i = 0; i < gradients[0].size(); ++i) {
          const Values a = gradients[0][i].to_vector<double>();
          const Values b = gradients[1][i].to_vector<double>();
          for (std::size_t k = 0; k < a.size(); ++k) {
            const bool both = a[k] == b[k] || (std::isnan(a[k]) && std::isnan(b[k]));
            CHECK((both || b[k] == doctest::Approx(a[k]).epsilon(0.01)));
          }
        }
      }
    }
  }
}
