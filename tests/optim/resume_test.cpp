// State dicts: a resumed run gives the bits of one that was never stopped.
#include <doctest/doctest.h>

#include "gradual/optim/clip.h"
#include "gradual/optim/grad_scaler.h"
#include "gradual/optim/schedule.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

struct Run {
  Tensor p, q;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Scheduler> scheduler;

  Run(const std::string& kind, const UpdateOptions& precision, DType dtype) {
    p = leaf(numbers(700, 1));
    q = leaf(numbers(33, 2));
    std::vector<ParamGroup> groups = {{.params = {p}, .lr = 0.01}, {.params = {q}}};
    if (kind == "sgd") {
      optimizer = std::make_unique<SGD>(
          groups, SGDOptions{.lr = 0.05, .momentum = 0.9, .dampening = 0.1, .precision = precision});
    } else if (kind == "adam") {
      optimizer = std::make_unique<Adam>(groups, AdamOptions{.lr = 0.02, .weight_decay = 0.1, .precision = precision});
    } else {
      optimizer = std::make_unique<AdamW>(groups, AdamWOptions{.lr = 0.02, .precision = precision});
    }
    scheduler = std::make_unique<Scheduler>(*optimizer, chain(linear_warmup(3), 3, cosine(10)));
    const NoGrad no_grad;
    p.swap_data(p.detach().to(dtype));
  }

  void steps(std::uint64_t from, std::uint64_t to) const {
    for (std::uint64_t i = from; i < to; ++i) {
      set_gradient(p, numbers(700, 100 + i));
      set_gradient(q, numbers(33, 200 + i));
      optimizer->step();
      scheduler->step();
    }
  }
};

StateDict copied(const StateDict& state) {
  StateDict out;
  for (const auto& [name, value] : state) {
    if (const Tensor* t = std::get_if<Tensor>(&value)) {
      out.set(name, t->clone());
    } else {
      out.set(name, value);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("a resumed optimizer repeats to the bit") {
  const UpdateOptions precisions[] = {{},
                                      {.update = LowPrecisionUpdate::masters},
                                      {.update = LowPrecisionUpdate::masters, .flat_masters = true},
                                      {.update = LowPrecisionUpdate::kahan},
                                      {.update = LowPrecisionUpdate::stochastic, .seed = 77},
                                      {.state_dtype = DType::bf16},
                                      {.pure_arithmetic = true}};
  for (const std::string kind : {"sgd", "adam", "adamw"}) {
    for (const UpdateOptions& precision : precisions) {
      for (bool optimizer_first : {false, true}) {
        CAPTURE(kind);
        CAPTURE(to_string(precision.update));
        CAPTURE(optimizer_first);
        const Run straight(kind, precision, DType::bf16);
        straight.steps(0, 5);
        const StateDict saved = copied(straight.optimizer->state_dict());
        const StateDict schedule = straight.scheduler->state_dict();
        const Tensor p = straight.p.detach().clone();
        const Tensor q = straight.q.detach().clone();
        straight.steps(5, 10);

        UpdateOptions other = precision;
        other.seed = 5;  // the state's is taken
        const Run resumed(kind, other, DType::bf16);
        const auto load_model = [&] {
          const NoGrad no_grad;
          resumed.p.copy_(p);
          resumed.q.copy_(q);
        };
        if (!optimizer_first) load_model();
        resumed.optimizer->load_state_dict(saved);
        resumed.scheduler->load_state_dict(schedule);
        if (optimizer_first) load_model();  // finds its own rounding in the parameters: the masters keep their bits
        resumed.steps(5, 10);
        CHECK(same_bits(resumed.p, straight.p));
        CHECK(same_bits(resumed.q, straight.q));
        CHECK(same_bits(resumed.optimizer->master(resumed.p), straight.optimizer->master(straight.p)));
        CHECK(resumed.optimizer->param_groups()[0].lr == straight.optimizer->param_groups()[0].lr);
      }
    }
  }
}

TEST_CASE("an optimizer's state that does not fit changes nothing") {
  const Tensor p = leaf({1, 2});
  const Tensor q = leaf({1, 2, 3});
  SGD sgd({p}, {.momentum = 0.9});
  Adam adam({p});
  SGD wider({q}, {.lr = 7, .momentum = 0.9});
  SGD two(std::vector<ParamGroup>{{.params = {p}}, {.params = {q}}});
  SGD pair({p, q}, {.momentum = 0.9});
  set_gradient(p, {1, 1});
  set_gradient(q, {1, 1, 1});
  wider.step();
  CHECK(error_of([&] { sgd.load_state_dict(adam.state_dict()); }) ==
        "load_state_dict: the state of 'adam' does not fit 'sgd'");
  CHECK(error_of([&] { sgd.load_state_dict(two.state_dict()); }) ==
        "load_state_dict: the state has 2 groups, the optimizer 1");
  CHECK(error_of([&] { sgd.load_state_dict(pair.state_dict()); }) ==
        "load_state_dict: a group of the state has 2 parameters, the optimizer's has 1");
  CHECK(error_of([&] { sgd.load_state_dict(wider.state_dict()); }) ==
        "load_state_dict: momentum of parameter 0 is [3] f32, the parameter is [2] f32");
  CHECK(sgd.param_groups()[0].lr == 1e-3);
  CHECK(!sgd.state_dict().contains("params.0.momentum"));
}

TEST_CASE("a loaded state is a copy") {
  const Tensor p = leaf({1, 2});
  const Tensor q = leaf({1, 2});
  SGD a({p}, {.lr = 1, .momentum = 0.9});
  SGD b({q}, {.lr = 1, .momentum = 0.9});
  set_gradient(p, {1, 1});
  set_gradient(q, {1, 1});
  a.step();
  b.load_state_dict(a.state_dict());
  a.step();
  CHECK(b.state_dict().tensor("params.0.momentum").to_vector<double>() == Values{1, 1});
}

TEST_CASE("schedules") {
  const Schedule halves = step_decay(3, 0.5);
  CHECK(halves(0) == 1);
  CHECK(halves(2) == 1);
  CHECK(halves(3) == 0.5);
  CHECK(halves(6) == 0.25);
  const Schedule marks = multi_step({10, 4}, 0.1);
  CHECK(marks(3) == 1);
  CHECK(marks(4) == doctest::Approx(0.1));
  CHECK(marks(9) == doctest::Approx(0.1));
  CHECK(marks(10) == doctest::Approx(0.01));
  const Schedule wave = cosine(10, 0.2);
  CHECK(wave(0) == doctest::Approx(1));
  CHECK(wave(5) == doctest::Approx(0.6));
  CHECK(wave(10) == doctest::Approx(0.2));
  CHECK(wave(99) == doctest::Approx(0.2));
  const Schedule both = chain(linear_warmup(4, 0.2), 4, wave);
  CHECK(both(0) == doctest::Approx(0.2));
  CHECK(both(2) == doctest::Approx(0.6));
  CHECK(both(4) == doctest::Approx(1));
  CHECK(both(9) == doctest::Approx(0.6));
  CHECK(linear_warmup(4)(7) == 1);
  CHECK_THROWS_AS(cosine(0), Error);

  const Tensor p = leaf({1});
  const Tensor q = leaf({1});
  const Tensor r = leaf({1});
  SGD sgd(std::vector<ParamGroup>{{.params = {p}, .lr = 1}, {.params = {q}, .lr = 4}});
  Scheduler scheduler(sgd, both);
  CHECK(sgd.param_groups()[1].lr == doctest::Approx(0.8));
  scheduler.step();
  scheduler.step();
  CHECK(sgd.param_groups()[0].lr == doctest::Approx(0.6));
  sgd.add_param_group({.params = {r}, .lr = 10});
  scheduler.step();
  CHECK(scheduler.steps() == 3);
  CHECK(sgd.param_groups()[1].lr == doctest::Approx(3.2));
  CHECK(sgd.param_groups()[2].lr == doctest::Approx(8));
  SGD other({p});
  Scheduler small(other, both);
  CHECK(error_of([&] { small.load_state_dict(scheduler.state_dict()); }) ==
        "load_state_dict: the schedule has 3 groups, the optimizer 1");
}

TEST_CASE("a state's entry that the optimizer does not keep is an Error that names it") {
  const Tensor p = leaf({1, 2});
  AdamW adamw({p});
  StateDict state = adamw.state_dict();
  state.set("params.0.max_exp_avg_sq", zeros({2}));
  CHECK(error_of([&] { adamw.load_state_dict(state); }) ==
        "load_state_dict: the state of parameter 0 has 'max_exp_avg_sq', which adamw does not keep for it; it keeps "
        "steps, master, compensation, exp_avg, exp_avg_sq");
}

// Of a parameter with two elements.
static void step(Optimizer& optimizer, const Tensor& w, double gradient) {
  set_gradient(w, {gradient, 1});
  optimizer.step();
}

TEST_CASE("the momentum of a state is loaded into an optimizer that had none") {
  const Tensor p = leaf({1, 2});
  const Tensor q = leaf({1, 2});
  SGD with({p}, {.lr = 0.1, .momentum = 0.9});
  SGD without({q}, {.lr = 0.1});
  step(with, p, 3);
  step(without, q, 3);
  without.load_state_dict(with.state_dict());
  step(with, p, -1);
  step(without, q, -1);
  CHECK(same_bits(p, q));
  CHECK(same_bits(with.state_dict().tensor("params.0.momentum"), without.state_dict().tensor("params.0.momentum")));
}

TEST_CASE("a state without momentum leaves none, also where a later rate needs one") {
  const Tensor p = leaf({1, 2});
  const Tensor q = leaf({1, 2});
  SGD loaded({p}, {.lr = 0.1, .momentum = 0.9});
  SGD plain({q}, {.lr = 0.1});
  step(loaded, p, 3);
  {
    const NoGrad no_grad;
    p.copy_(q);
  }
  loaded.load_state_dict(plain.state_dict());
  for (Optimizer* optimizer : {static_cast<Optimizer*>(&loaded), static_cast<Optimizer*>(&plain)})
    optimizer->param_groups()[0].momentum = 0.9;
  step(loaded, p, -1);
  step(plain, q, -1);
  CHECK(same_bits(p, q));
}

TEST_CASE(
    "momentum that the rates did not need in between begins anew, in a run that goes on as in one that is loaded") {
  const Tensor p = leaf({1, 2});
  const Tensor q = leaf({1, 2});
  SGD goes_on({p}, {.lr = 0.1, .momentum = 0.9});
  SGD loaded({q}, {.lr = 0.1, .momentum = 0.9});
  const std::vector<std::pair<SGD*, Tensor>> both = {{&goes_on, p}, {&loaded, q}};
  for (const auto& [optimizer, w] : both) {
    step(*optimizer, w, 3);
    optimizer->param_groups()[0].momentum = 0;
    step(*optimizer, w, 2);
  }
  loaded.load_state_dict(goes_on.state_dict());
  for (const auto& [optimizer, w] : both) {
    optimizer->param_groups()[0].momentum = 0.9;
    step(*optimizer, w, -1);
  }
  CHECK(same_bits(p, q));
}

TEST_CASE("a loaded compensation acts under Kahan's updates alone") {
  const Values start = numbers(64, 1);
  const Tensor p = leaf(start, DType::bf16);
  SGD kahan({p}, {.lr = 1e-3, .precision = {.update = LowPrecisionUpdate::kahan}});
  set_gradient(p, numbers(64, 2));
  kahan.step();
  const StateDict state = kahan.state_dict();
  REQUIRE(state.contains("params.0.compensation"));
  for (const LowPrecisionUpdate update :
       {LowPrecisionUpdate::none, LowPrecisionUpdate::masters, LowPrecisionUpdate::stochastic}) {
    const auto run = [&](bool with) {
      const Tensor w = leaf(start, DType::bf16);
      SGD optimizer({w}, {.lr = 1e-3, .precision = {.update = update}});
      StateDict given = state;
      if (!with) given.set("params.0.compensation", zeros({64}, {.dtype = DType::bf16}));
      optimizer.load_state_dict(given);
      for (std::uint64_t i = 0; i < 10; ++i) {
        set_gradient(w, numbers(64, 3 + i));
        optimizer.step();
      }
      return w.detach();
    };
    CHECK(same_bits(run(true), run(false)));
  }
}

TEST_CASE("a state without masters leaves nothing of the master of before") {
  for (const bool flat : {false, true}) {
    CAPTURE(flat);
    const Tensor p = leaf(numbers(64, 1), DType::bf16);
    SGD with({p}, {.lr = 1e-5, .precision = {.update = LowPrecisionUpdate::masters, .flat_masters = flat}});
    set_gradient(p, numbers(64, 2));
    with.step();  // far below half an ulp: the master has it, the parameter has not
    const Tensor q = leaf(numbers(64, 1), DType::bf16);
    SGD without({q}, {.lr = 1e-5, .precision = {.update = LowPrecisionUpdate::none}});
    with.load_state_dict(without.state_dict());
    CHECK(same_bits(with.master(p), p.detach().to(DType::f32)));
  }
}
