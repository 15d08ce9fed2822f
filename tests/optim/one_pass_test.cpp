// All parameters updated by one call, against one call per parameter: the same bits and counts.
#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <variant>

#include "gradual/core/formats/cast_counts.h"
#include "gradual/core/observe/observer.h"
#include "gradual/core/ops/dispatch.h"
#include "gradual/core/ops/fusions.h"
#include "gradual/core/support/threads.h"
#include "gradual/optim/grad_scaler.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

// Counts the calls of the optimizers' rows. Under an UnfusedScope every parameter has a call of its own.
struct Watcher : Observer {
  int calls = 0;
  std::vector<CastCounts> counts;  // parameter by parameter
  bool wants_counts() const override { return true; }
  void after(const OpCall& call, const Outputs&, const CallRecord& record) override {
    calls += op_info(call.op).inputs == -1;
    counts.insert(counts.end(), record.counts_by_parameter.begin(), record.counts_by_parameter.end());
  }
};

// Counts the calls of the optimizers' rows without being an observer.
struct Counter : Interceptor {
  std::vector<OpId> ops;
  Outputs call(const OpCall& call) override {
    ops.push_back(call.op);
    return next_below_amp(call);
  }
};

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

// Empty, of one element, short, longer than a chunk, all in every dtype, one transposed.
std::vector<Tensor> mixed_parameters() {
  const Shape shapes[] = {{7}, {0}, {33, 5}, {1}, {3, 0, 2}, {129}, {}, {64, 64}, {40001}, {2, 3, 4}};
  std::vector<Tensor> all;
  std::uint64_t seed = 0;
  for (const DType dtype : kDTypes) {
    for (const Shape& s : shapes) {
      const bool cut = numel(s) > 40000 && (dtype == DType::f16 || dtype == DType::f64);  // two long ones are enough
      all.push_back(random_tensor(cut ? Shape{401} : s, ++seed, dtype).set_requires_grad());
    }
  }
  for (const DType dtype : kDTypes)
    all.push_back(random_tensor({5, 6}, ++seed, dtype).t().detach().set_requires_grad());
  return all;
}

using Make = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&, const UpdateOptions&)>;
struct Kind {
  const char* name;
  Make make;
};
const Kind kKinds[] = {
    {"sgd",
     [](const auto& p, const auto& u) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .precision = u}); }},
    {"sgd, momentum",
     [](const auto& p, const auto& u) {
       return std::make_unique<SGD>(
           p, SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true, .precision = u});
     }},
    {"adam",
     [](const auto& p, const auto& u) {
       return std::make_unique<Adam>(p, AdamOptions{.weight_decay = 0.01, .precision = u});
     }},
    {"adamw", [](const auto& p, const auto& u) { return std::make_unique<AdamW>(p, AdamWOptions{.precision = u}); }}};

const Quantizer kCodes{.format = format("e4m3fn"), .scaling = TensorScale{}};
std::vector<std::pair<const char*, UpdateOptions>> updates() {
  using enum LowPrecisionUpdate;
  UpdateOptions coded;
  coded.moments[0] = kCodes;
  return {{"none", {}},
          {"masters", {.update = masters}},
          {"flat masters", {.update = masters, .flat_masters = true}},
          {"kahan", {.update = kahan}},
          {"stochastic", {.update = stochastic, .seed = 5}},
          {"state in bf16", {.update = masters, .state_dtype = DType::bf16}},
          {"codes", coded},
          {"pure", {.pure_arithmetic = true}}};
}

std::string difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i], b[i])) return "parameter " + std::to_string(i) + ", " + describe(a[i]);
  return "";
}
std::string difference(const StateDict& a, const StateDict& b) {
  for (const auto& [key, value] : a) {
    const Tensor* t = std::get_if<Tensor>(&value);
    if (t ? !same_bits(*t, b.tensor(key)) : false) return key;
  }
  return "";
}

}  // namespace

TEST_CASE("one call for all parameters gives the bits and counts of one call each") {
  for (const Kind& kind : kKinds) {
    for (const auto& update : updates()) {
      CAPTURE(kind.name);
      CAPTURE(update.first);
      const std::vector<Tensor> together = mixed_parameters();
      const std::vector<Tensor> apart = mixed_parameters();
      const auto all = kind.make(together, update.second);
      const auto each = kind.make(apart, update.second);
      for (std::uint64_t step = 0; step < 3; ++step) {
        set_gradients(together, step);
        set_gradients(apart, step);
        CastCounts counts[2];
        std::vector<CastCounts> by_parameter;
        {
          const CountScope scope(&counts[0]);
          const ThreadsScope three(3);
          Watcher watcher;
          std::optional<ObserverScope> watching;
          if (step != 1) watching.emplace(watcher);  // which changes neither bits nor counts
          all->step_scaled({0.25});
          by_parameter = watcher.counts;
        }
        {
          const CountScope scope(&counts[1]);
          Watcher watcher;
          const ObserverScope watching(watcher);
          const UnfusedScope parts;
          each->step_scaled({0.25});
          CHECK(watcher.calls >= 36);  // all with a gradient
          if (step != 1) CHECK(watcher.counts == by_parameter);
        }
        CHECK(counts[0] == counts[1]);
        CHECK(counts[0].elements > 0);
      }
      CHECK(difference(together, apart) == "");
      CHECK(difference(all->state_dict(), each->state_dict()) == "");
    }
  }
}

TEST_CASE("one call for all parameters gives the bits of an optimizer each") {
  for (const Kind& kind : kKinds) {
    CAPTURE(kind.name);
    const std::vector<Tensor> together = mixed_parameters();
    const std::vector<Tensor> apart = mixed_parameters();
    const auto all = kind.make(together, {.update = LowPrecisionUpdate::masters});
    std::vector<std::unique_ptr<Optimizer>> each;
    for (const Tensor& p : apart) each.push_back(kind.make({p}, {.update = LowPrecisionUpdate::masters}));
    for (std::uint64_t step = 0; step < 3; ++step) {
      set_gradients(together, step);
      set_gradients(apart, step);
      all->step();
      for (const auto& one : each) one->step();
    }
    CHECK(difference(together, apart) == "");
  }
}

TEST_CASE("parameters of a group and an age share a call") {
  std::vector<Tensor> params;
  for (std::uint64_t i = 0; i < 8; ++i) params.push_back(leaf(numbers(20, i), i % 2 ? DType::bf16 : DType::f32));
  const auto gradients = [&] {
    for (const Tensor& p : params) set_gradient(p, numbers(20, 30));
  };
  const auto calls = [](const std::function<void()>& f) {
    Counter counter;
    const StageScope scope(chain().amp, &counter);
    f();
    return counter.ops;
  };
  Adam adam(std::vector<ParamGroup>{{.params = {params.begin(), params.begin() + 5}},
                                    {.params = {params.begin() + 5, params.end()}, .lr = 0.1}});
  gradients();
  CHECK(calls([&] { adam.step(); }) == std::vector{OpId::adam_step_, OpId::adam_step_});
  params[2].zero_grad();
  CHECK(calls([&] { adam.step(); }) == std::vector{OpId::adam_step_, OpId::adam_step_});
  gradients();
  {
    Watcher watcher;
    const ObserverScope watching(watcher);
    CHECK(calls([&] { adam.step(); }).size() == 4);  // 2 is a step behind its neighbours
    CHECK(watcher.calls == 4);
  }
  gradients();
  CHECK(calls([&] { adam.step(); }).size() == 4);
  SGD sgd(params, {.momentum = 0.9, .precision = {.update = LowPrecisionUpdate::masters}});
  GradScaler scaler;
  scaler.scale(ones({}));
  const std::vector<OpId> ops = calls([&] { scaler.step(sgd); });
  CHECK(std::count(ops.begin(), ops.end(), OpId::unscale_) == 1);
  CHECK(std::count(ops.begin(), ops.end(), OpId::sgd_step_) == 1);
}

TEST_CASE("one look at all gradients counts for each what is not finite") {
  for (const bool write : {false, true}) {
    const std::vector<Tensor> together = mixed_parameters();
    const std::vector<Tensor> apart = mixed_parameters();
    SGD all(together, {.precision = {.update = LowPrecisionUpdate::masters}});
    SGD each(apart, {.precision = {.update = LowPrecisionUpdate::masters}});
    const auto n = static_cast<std::int64_t>(together.size());
    const Tensor found = zeros({n + 1}, {.dtype = DType::i64});
    const Tensor one_by_one = zeros({n + 1}, {.dtype = DType::i64});
    for (const auto* params : {&together, &apart}) {
      set_gradients(*params, 1);
      for (const std::size_t i : {2, 8, 18, 38, 42}) (*params)[i].grad().copy_(full({}, i % 4 ? INFINITY : NAN));
      (*params)[28].grad()[400].fill_(NAN);
    }
    const int live = all.unscale(found, {0.5}, write);
    {
      Watcher watcher;
      const ObserverScope watching(watcher);
      const UnfusedScope parts;
      CHECK(each.unscale(one_by_one, {0.5}, write) == live);
      CHECK(watcher.calls == live);
    }
    CHECK(same_bits(found, one_by_one));
    CHECK(found[0].item<std::int64_t>() == 165 + 2 * 40001 + 401 + 30 + 1);
    for (std::size_t i = 0; i < together.size(); ++i)
      if (const Tensor g = together[i].grad(); g.defined()) CHECK(same_bits(g, apart[i].grad()));
  }
}

TEST_CASE("a call of an optimizer's row takes whole parameters") {
  const Tensor p = ones({3});
  const Tensor g = ones({3});
  const Tensor none;
  const auto call = [&](OpId op, std::initializer_list<const Tensor*> in, const Attrs& attrs) {
    return error_of([&] { dispatch(op, in, attrs, SourceLocation::current()); });
  };
  const auto names = [](const std::string& error, const char* what) { return error.find(what) != std::string::npos; };
  CHECK(names(call(OpId::sgd_step_, {&p, &g, &none}, SgdAttrs{}), "takes 5 tensors for each parameter, given 3"));
  CHECK(names(call(OpId::adam_step_, {&p, &g, &none, &none, &p, &p, &p}, AdamAttrs{}),
              "takes 6 tensors for each parameter, given 7"));
  CHECK(names(call(OpId::adam_step_, {&p, &g, &none, &none, &p, &none}, AdamAttrs{}), "needs two moments"));
  CHECK(names(call(OpId::sgd_step_, {&p, &g, &none, &none, &none, &p, &none, &none, &none, &none}, SgdAttrs{}),
              "needs a gradient"));
  const Tensor longer = ones({4});
  const Tensor found = zeros({2}, {.dtype = DType::i64});
  CHECK(names(call(OpId::sgd_step_, {&p, &g, &none, &none, &none, &p, &longer, &none, &none, &none}, SgdAttrs{}),
              "every tensor must be [3], given [4]"));
  CHECK(names(call(OpId::unscale_, {&found, &g, &none, &g, &none}, UnscaleAttrs{}),
              "found must be i64 [n] with a place for each gradient from 1 on"));
}
