// GradScaler: the cases of PyTorch's and Apex's own suites, the stages and their errors, and what goes beyond them. How
// the scale moves: loss_scale_test.cpp.
#include <doctest/doctest.h>

#include "gradual/autograd/autograd.h"
#include "gradual/optim/clip.h"
#include "gradual/optim/grad_scaler.h"
#include "helpers.h"

using namespace gradual;
using namespace gradual::optim;
using namespace gradual::test;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("unscale_ divides gradients of any layout and finds a single Inf or NaN") {
  const auto layouts = {std::string("plain"), std::string("transposed"), std::string("sliced")};
  for (const std::string& layout : layouts) {
    for (double poison :
         {0.0, static_cast<double>(INFINITY), -static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
      CAPTURE(layout);
      CAPTURE(poison);
      Tensor g = full({20, 20}, 4);
      if (layout == "transposed") g = g.t();
      if (layout == "sliced") g = full({40, 41}, 4).index({Slice{0, 40, 2}, Slice{1, 41, 2}});
      REQUIRE(g.sizes() == Shape{20, 20});
      if (poison != 0) g.index({2, 2}).fill_(poison);
      const Tensor p = zeros({20, 20}, {.requires_grad = true});
      p.set_grad(g);
      SGD sgd({p});
      GradScaler scaler({.init_scale = 4});
      scaler.scale(scalar(1));
      scaler.unscale_(sgd);
      if (poison == 0) CHECK(p.grad().to_vector<double>() == Values(400, 1.0));
      const StepResult result = scaler.step(sgd);
      CHECK(result.skipped() == (poison != 0));
      CHECK(result.nonfinite() == (poison != 0 ? 1 : 0));
    }
  }
}

TEST_CASE("mixed f32, sliced, f16 and f64 gradients, an Inf in each in turn") {
  for (int bad = -1; bad < 5; ++bad) {
    for (bool unscale : {false, true}) {
      CAPTURE(bad);
      const Tensor params[] = {leaf({0, 0, 0}), leaf({0, 0, 0}), leaf({0, 0, 0}, DType::f16),
                               leaf({0, 0, 0}, DType::f16), leaf({0, 0, 0}, DType::f64)};
      std::vector<ParamGroup> groups = {{.params = {params[0], params[1]}, .names = {"a", "b"}},
                                        {.params = {params[2], params[3], params[4]}, .names = {"c", "d", "e"}}};
      SGD sgd(groups, {.lr = 1, .precision = {.update = LowPrecisionUpdate::masters}});
      GradScaler scaler({.init_scale = 4});
      scaler.scale(scalar(1));
      for (int i = 0; i < 5; ++i) {
        Tensor g = full({7}, 8, {.dtype = params[i].dtype()});
        if (i == bad) g.select(0, 2).fill_(i == 1 ? NAN : INFINITY);
        params[i].set_grad(g.index({Slice{0, 6, i == 1 ? 2 : 1}}).narrow(0, 0, 3));
      }
      if (unscale) scaler.unscale_(sgd);
      const StepResult result = scaler.step(sgd);
      const bool hit = bad >= 0;  // slot 2, or the second of every other
      CHECK(result.applied() == !hit);
      for (const Tensor& p : params) CHECK(p.to_vector<double>() == Values(3, hit ? 0.0 : -2.0));
      CHECK(result.index().has_value() == hit);
      if (hit) {
        CHECK(*result.index() == static_cast<std::size_t>(bad));
        CHECK(result.param() == std::string(1, static_cast<char>('a' + bad)));
        CHECK(result.nonfinite() == 1);
      }
    }
  }
}

namespace {

enum class Variant { plain, clip, penalty, accumulate, unscale_only };

// Four batches through two 8x8 linears; batch 2 has an Inf. `scaled` off: the control, which leaves batch 2 out.
struct Training {
  Tensor w1, w2;
  std::unique_ptr<SGD> sgd;

  Training() {
    Generator g(1);
    w1 = rand({8, 8}, {}, g);
    w2 = rand({8, 8}, {}, g);
    w1.set_requires_grad();
    w2.set_requires_grad();
    sgd = std::make_unique<SGD>(std::vector<Tensor>{w1, w2}, SGDOptions{.lr = 1});
  }
  Tensor loss(const Tensor& x, const Tensor& y) const { return mse_loss(linear(linear(x, w1), w2), y); }
};

Tensor penalised(const Training& t, const Tensor& loss, double scale, const std::function<Tensor(Tensor)>& apply) {
  auto grads = autograd::grad({apply(loss)}, {t.w1, t.w2}, {}, {.create_graph = true});
  Tensor norm = scalar(0);
  for (const Tensor& g : grads) norm = norm + square(g * (1 / scale)).sum();
  return loss + sqrt(norm);
}

void run(Training& t, Variant variant, GradScaler* scaler) {
  Generator g(2);
  for (int batch = 0; batch < 4; ++batch) {
    const Tensor x = rand({8, 8}, {}, g);
    const Tensor y = rand({8, 8}, {}, g);
    const bool poisoned = batch == 2;
    if (!scaler && poisoned) continue;
    const auto apply = [&](const Tensor& l) { return scaler ? scaler->scale(l) : l; };
    const int parts = variant == Variant::accumulate ? 2 : 1;
    for (int part = 0; part < parts; ++part) {
      Tensor loss = t.loss(x, y) * (1.0 / parts);
      if (variant == Variant::penalty) loss = penalised(t, loss, scaler ? scaler->scale() : 1, apply);
      apply(loss).backward();
    }
    if (poisoned) t.w1.grad().index({0, 0}).fill_(INFINITY);
    if (scaler && (variant == Variant::clip || variant == Variant::unscale_only)) scaler->unscale_(*t.sgd);
    if (variant == Variant::clip) clip_grad_norm_(*t.sgd, 0.05);
    if (scaler) {
      CHECK(scaler->step(*t.sgd).skipped() == poisoned);
      scaler->update();
    } else {
      t.sgd->step();
    }
    t.sgd->zero_grad();
  }
}

}  // namespace

TEST_CASE("training with a scaler equals training without, the overflowing batch left out") {
  for (Variant variant :
       {Variant::plain, Variant::clip, Variant::penalty, Variant::accumulate, Variant::unscale_only}) {
    CAPTURE(static_cast<int>(variant));
    Training scaled, control;
    GradScaler scaler({.init_scale = 128, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 1});
    run(scaled, variant, &scaler);
    run(control, variant, nullptr);
    CHECK(scaler.scale() == 512);  // 256, 512, 256, 512
    // All scales are powers of two: nothing rounds differently, but for the penalty's product with 1 / scale.
    CHECK(max_difference(scaled.w1.to_vector<double>(), control.w1.to_vector<double>()) <= 1e-6);
    CHECK(max_difference(scaled.w2.to_vector<double>(), control.w2.to_vector<double>()) <= 1e-6);
    CHECK(max_difference(scaled.w1.to_vector<double>(), Training().w1.to_vector<double>()) > 1e-2);  // it trained
  }
}

TEST_CASE("of two optimizers only the one with an overflow skips, and the scale backs off once") {
  const Tensor a = leaf({1});
  const Tensor b = leaf({1});
  SGD good({a}, {.lr = 1});
  SGD bad({b}, {.lr = 1});
  GradScaler scaler({.init_scale = 16});
  scaler.scale(scalar(1));
  set_gradient(a, {16});
  set_gradient(b, {NAN});
  CHECK(scaler.step(good).applied());
  CHECK(scaler.step(bad).skipped());
  scaler.update();
  CHECK(a.item() == 0);
  CHECK(b.item() == 1);
  CHECK(scaler.scale() == 8);
  // Both at once: one backoff all the same.
  set_gradient(a, {INFINITY});
  scaler.step(good);
  scaler.step(bad);
  scaler.update();
  CHECK(scaler.scale() == 4);
}

TEST_CASE("gradients poisoned after unscale_ do not hold up the step") {
  for (DType dtype : {DType::f32, DType::f16}) {
    const Tensor p = leaf({1, 1}, dtype);
    SGD sgd({p}, {.lr = 1, .precision = {.update = LowPrecisionUpdate::masters}});
    GradScaler scaler({.init_scale = 2});
    scaler.scale(scalar(1));
    set_gradient(p, {2, 4});
    scaler.unscale_(sgd);
    p.grad().index({1}).fill_(INFINITY);
    CHECK(scaler.step(sgd).applied());
    CHECK(p.to_vector<double>()[0] == 0);
    if (dtype == DType::f32) {
      CHECK(p.to_vector<double>()[1] == -INFINITY);
    } else {
      CHECK(p.to_vector<double>()[1] == -1);  // the step takes the FP32 gradient
    }
  }
}

TEST_CASE("every wrong order of calls has its error") {
  const Tensor p = leaf({1});
  SGD sgd({p});
  GradScaler fresh;
  set_gradient(p, {1});
  for (const std::string& e :
       {error_of([&] { fresh.unscale_(sgd); }), error_of([&] { fresh.step(sgd); }), error_of([&] { fresh.update(); })})
    CHECK(contains(e, "no scale yet: scale(loss) was not used earlier in the iteration"));

  GradScaler scaler;
  scaler.scale(scalar(1));
  scaler.unscale_(sgd);
  CHECK(contains(error_of([&] { scaler.unscale_(sgd); }),
                 "unscale_() has already been called on this optimizer since the last update()"));
  scaler.step(sgd);
  CHECK(contains(error_of([&] { scaler.unscale_(sgd); }), "unscale_() is being called after step()"));
  CHECK(contains(error_of([&] { scaler.step(sgd); }), "step() has already been called since the last update()"));
  scaler.update();
  CHECK(contains(error_of([&] { scaler.update(); }), "no inf checks were recorded prior to update"));
  sgd.zero_grad();
  CHECK(contains(error_of([&] { scaler.step(sgd); }),
                 "no inf checks were recorded for this optimizer: no parameter has a gradient; call "
                 "scale(loss).backward() first"));
  CHECK(contains(error_of([&] { scaler.update(); }), "no inf checks were recorded prior to update"));
  scaler.unscale_(sgd);  // nothing to unscale, which the step then says
  CHECK(contains(error_of([&] { scaler.step(sgd); }), "no inf checks were recorded for this optimizer"));

  GradScaler off({.enabled = false});
  CHECK(off.state_dict().empty());
  CHECK(contains(error_of([&] { scaler.load_state_dict(off.state_dict()); }), "the source state is empty"));
  CHECK(contains(error_of([&] { scaler.update(1e39); }), "does not lie between min_scale, "));
}

TEST_CASE("f16 gradients need an FP32 path, bf16 ones do not") {
  const Tensor p = leaf({1, 1}, DType::f16);
  for (bool unscale : {false, true}) {
    SGD sgd(std::vector<ParamGroup>{{.params = {p}, .names = {"fc.weight"}}}, {.lr = 1});
    GradScaler scaler({.init_scale = 4});
    scaler.scale(scalar(1));
    set_gradient(p, {4, 8});
    const std::string e = error_of([&] { unscale ? scaler.unscale_(sgd) : void(scaler.step(sgd)); });
    CHECK(contains(e, "attempting to unscale FP16 gradients"));
    CHECK(contains(e, "fc.weight"));
    CHECK(p.grad().to_vector<double>() == Values{4, 8});
    CHECK(p.to_vector<double>() == Values{1, 1});
  }
  for (LowPrecisionUpdate update :
       {LowPrecisionUpdate::masters, LowPrecisionUpdate::kahan, LowPrecisionUpdate::stochastic}) {
    for (bool unscale : {false, true}) {
      const Tensor q = leaf({1, 1}, DType::f16);
      SGD sgd({q}, {.lr = 1, .precision = {.update = update}});
      GradScaler scaler({.init_scale = 4});
      scaler.scale(scalar(1));
      set_gradient(q, {4, 8});
      if (unscale) scaler.unscale_(sgd);
      CHECK(scaler.step(sgd).applied());
      CHECK(q.to_vector<double>() == Values{0, -1});
      CHECK(q.grad().to_vector<double>() == Values{4, 8});  // keeps its dtype and its scale
    }
  }
  const Tensor b = leaf({1, 1}, DType::bf16);
  SGD sgd({b}, {.lr = 1});
  GradScaler scaler({.init_scale = 4});
  scaler.scale(scalar(1));
  set_gradient(b, {4, 8});
  scaler.unscale_(sgd);
  CHECK(b.grad().to_vector<double>() == Values{1, 2});
  scaler.step(sgd);
  CHECK(b.to_vector<double>() == Values{0, -1});
}

TEST_CASE("an optimizer that cannot unscale one gradient leaves all of them") {
  const Tensor a = leaf({1});
  const Tensor b = leaf({1}, DType::f16);
  SGD sgd({a, b});
  GradScaler scaler({.init_scale = 4});
  scaler.scale(scalar(1));
  set_gradient(a, {4});
  set_gradient(b, {4});
  CHECK_THROWS_AS(scaler.unscale_(sgd), Error);
  CHECK(a.grad().item() == 4);
}

TEST_CASE("FP32 gradients keep what unscaling in f16 would lose, and clipping works on them") {
  const Tensor p = leaf({0, 0}, DType::f16);
  SGD sgd({p}, {.lr = 1, .precision = {.update = LowPrecisionUpdate::masters}});
  GradScaler scaler({.init_scale = 65536});
  scaler.scale(scalar(1));
  set_gradient(p, {0x1p-14, 0x1p-13});  // unscaled: 2^-30 and 2^-29, under f16's smallest number
  scaler.unscale_(sgd);
  const auto wide = sgd.step_gradients();
  REQUIRE(wide.size() == 1);
  CHECK(wide[0].dtype() == DType::f32);
  CHECK(wide[0].to_vector<double>() == Values{0x1p-30, 0x1p-29});
  CHECK(p.grad().to_vector<double>() == Values{0x1p-14, 0x1p-13});
  clip_grad_value_(sgd, 0x1p-30);
  scaler.step(sgd);
  scaler.update();
  CHECK(sgd.master(p).to_vector<double>() == Values{-0x1p-30, -0x1p-30});
  // The next iteration starts from .grad again.
  scaler.scale(scalar(1));
  set_gradient(p, {65504, 0});
  scaler.step(sgd);
  CHECK(sgd.master(p).to_vector<double>()[0] == doctest::Approx(-65504.0 / 65536));
}

TEST_CASE("an explicit unscale_ and the division within the step give the same bits") {
  Tensor results[2];
  for (bool unscale : {false, true}) {
    const Tensor p = leaf(numbers(500, 1));
    AdamW adam({p}, {.lr = 0.01});
    GradScaler scaler({.init_scale = 1000});
    for (std::uint64_t i = 0; i < 5; ++i) {
      scaler.scale(scalar(1));
      set_gradient(p, numbers(500, 2 + i, 300));
      if (unscale) scaler.unscale_(adam);
      scaler.step(adam);
      scaler.update();
    }
    results[unscale] = p;
  }
  CHECK(same_bits(results[0], results[1]));
}

TEST_CASE("a skipped step touches nothing: no weights, moments, step counts, masters, gradients") {
  for (DType dtype : {DType::f32, DType::f16}) {
    for (bool unscale : {false, true}) {
      const Tensor p = leaf({1, 2}, dtype);
      const Tensor q = leaf({3, 4}, dtype);
      AdamW adam({p, q}, {.lr = 0.1, .weight_decay = 0.5, .precision = {.update = LowPrecisionUpdate::masters}});
      GradScaler scaler({.init_scale = 2});
      scaler.scale(scalar(1));
      set_gradient(p, {1, 1});
      set_gradient(q, {1, 1});
      scaler.step(adam);
      scaler.update();
      StateDict before;
      for (const auto& [name, value] : adam.state_dict())
        std::holds_alternative<Tensor>(value) ? before.set(name, std::get<Tensor>(value).clone())
                                              : before.set(name, value);
      const Tensor p0 = p.detach().clone();
      const Tensor q0 = q.detach().clone();
      const auto version = p.version();
      for (int i = 0; i < 3; ++i) {
        set_gradient(p, {1, 1});
        set_gradient(q, {NAN, INFINITY});
        if (unscale) scaler.unscale_(adam);
        const StepResult result = scaler.step(adam);
        CHECK(result.nonfinite() == 2);
        CHECK(result.param() == "parameter 1");
        if (!unscale) CHECK(p.grad().to_vector<double>() == Values{1, 1});
        scaler.update();
        CHECK(result.skipped());  // still readable
      }
      CHECK(same_bits(p, p0));
      CHECK(same_bits(q, q0));
      CHECK(p.version() == version);
      const StateDict after = adam.state_dict();
      CHECK(after.size() == before.size());
      for (const auto& [name, value] : after) {
        const auto& name_shown = name;
        CAPTURE(name_shown);
        if (const Tensor* t = std::get_if<Tensor>(&value)) CHECK(same_bits(*t, before.tensor(name)));
        if (const auto* n = std::get_if<std::int64_t>(&value)) CHECK(*n == before.integer(name));
      }
    }
  }
}

TEST_CASE("a scale below 1 cannot smuggle an overflow in") {
  // fastai 1 stepped on infinite gradients here; and 1e38 divided by 2^-4 overflows only in the division.
  const Tensor p = leaf({1});
  SGD sgd({p}, {.lr = 1});
  for (double g : {static_cast<double>(INFINITY), 1e38}) {
    for (bool unscale : {false, true}) {
      GradScaler scaler({.init_scale = 0x1p-4});
      scaler.scale(scalar(1));
      set_gradient(p, {g});
      if (unscale) scaler.unscale_(sgd);
      CHECK(scaler.step(sgd).skipped());
      CHECK(p.item() == 1);
    }
  }
}

TEST_CASE("disabled, everything is the identity") {
  const Tensor p = leaf({1});
  SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.enabled = false});
  const Tensor loss = scalar(3);
  CHECK(scaler.scale(loss).is_same(loss));
  CHECK(scaler.scale() == 1);
  scaler.unscale_(sgd);
  scaler.unscale_(sgd);
  set_gradient(p, {INFINITY});
  CHECK(scaler.step(sgd).applied());
  CHECK(p.item() == -INFINITY);
  scaler.update();
  scaler.load_state_dict({});
  CHECK(scaler.state_dict().empty());
}

TEST_CASE("frozen groups are neither divided nor looked at") {
  const Tensor a = leaf({1});
  const Tensor b = leaf({1});
  SGD sgd(std::vector<ParamGroup>{{.params = {a}}, {.params = {b}, .frozen = true}}, {.lr = 1});
  GradScaler scaler({.init_scale = 2});
  scaler.scale(scalar(1));
  set_gradient(a, {2});
  set_gradient(b, {INFINITY});
  scaler.unscale_(sgd);
  CHECK(scaler.step(sgd).applied());
  CHECK(a.item() == 0);
  CHECK(b.item() == 1);
}

TEST_CASE("a backward between unscale_ and step is an error, for every way a gradient is kept") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool zeroed : {false, true}) {
      CAPTURE(to_string(dtype));
      CAPTURE(zeroed);
      const Tensor p = leaf({0}, dtype);
      SGD sgd(std::vector<ParamGroup>{{.params = {p}, .names = {"fc.weight"}}},
              {.lr = 1, .precision = {.update = LowPrecisionUpdate::masters}});
      GradScaler scaler({.init_scale = 1024});
      scaler.scale(p.sum()).backward();
      scaler.unscale_(sgd);
      if (zeroed) sgd.zero_grad();
      scaler.scale(p.sum()).backward();
      const std::string e = error_of([&] { scaler.step(sgd); });
      CHECK(contains(e, "a backward after unscale_() changed the gradient of fc.weight [1]"));
      CHECK(p.item() == 0);
      // The next iteration is right.
      sgd.zero_grad();
      scaler.update();
      scaler.scale(p.sum()).backward();
      scaler.unscale_(sgd);
      CHECK(scaler.step(sgd).applied());
      CHECK(p.item() == -1);
    }
}

TEST_CASE("what note() counts skips the step and shrinks the scale, once") {
  const Tensor p = leaf({1});
  SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 4});
  for (const bool unscale : {false, true})
    for (const std::int64_t hidden : {3, 0}) {
      const double before = p.item();
      const double scale = scaler.scale();
      scaler.scale(p.sum()).backward();
      scaler.note(full({1}, static_cast<double>(hidden), {.dtype = DType::i64}));
      if (unscale) scaler.unscale_(sgd);
      const StepResult result = scaler.step(sgd);
      scaler.update();
      sgd.zero_grad();
      CHECK(result.skipped() == (hidden > 0));
      CHECK(result.hidden() == hidden);
      CHECK(result.nonfinite() == hidden);
      CHECK(result.param().empty());
      CHECK((p.item() == before) == (hidden > 0));
      CHECK(scaler.scale() == (hidden > 0 ? scale / 2 : scale));
    }
}
