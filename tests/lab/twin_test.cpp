// The same weights under two recipes, against formulas written out by hand.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/studied_step.h>
#include <gradual/lab/twin.h>

#include <cmath>
#include <string>

using namespace gradual;

namespace {

lab::MakeModel mlp() {
  return [] { return lab::make_mlp(64, 10); };
}

}  // namespace

TEST_CASE("twins: KL, weights and changes of one choice of two classes") {
  // p_learner = (1/4, 3/4), p_sampler = (1/2, 1/2)
  const Tensor learner = tensor({0.0, std::log(3.0)}).reshape({1, 2});
  const Tensor sampler = tensor({5.0, 5.0}).reshape({1, 2});
  const lab::TwinChoices c = lab::compare_choices(learner, sampler);
  CHECK(c.count == 1);
  CHECK(c.mean_kl() == doctest::Approx(0.5 * std::log(0.5 / 0.25) + 0.5 * std::log(0.5 / 0.75)).epsilon(1e-6));
  CHECK(c.effective_share() == doctest::Approx(1 / (0.25 * 0.25 / 0.5 + 0.75 * 0.75 / 0.5)).epsilon(1e-6));
  CHECK(c.largest == doctest::Approx(0.25).epsilon(1e-6));
  CHECK(c.smallest_log == doctest::Approx(std::log(0.5)).epsilon(1e-6));
  CHECK(c.largest_log == doctest::Approx(std::log(1.5)).epsilon(1e-6));
  CHECK(c.changed_share() == 1);  // the first of equal classes is the sampler's
}

TEST_CASE("twins: a mask leaves choices out, and logits of other sizes or without a finite value are Errors") {
  const Tensor learner = tensor({0.0, 1.0, 0.0, 1.0}).reshape({2, 2});
  const Tensor sampler = tensor({0.0, 1.0, 1.0, 0.0}).reshape({2, 2});
  CHECK(lab::compare_choices(learner, sampler).changed_share() == 0.5);
  for (const DType dtype : {DType::f32, DType::f64, DType::i64, DType::bool_}) {
    const lab::TwinChoices first = lab::compare_choices(learner, sampler, tensor({1.0, 0.0}).to(dtype));
    CHECK(first.count == 1);
    CHECK(first.mean_kl() == 0);
  }
  CHECK_THROWS_WITH_AS(lab::compare_choices(learner, sampler.reshape({4, 1})), doctest::Contains("[4, 1]"), Error);
  CHECK_THROWS_WITH_AS(lab::compare_choices(learner, sampler, tensor({1.0})), doctest::Contains("a mask [1]"), Error);
  const Tensor infinite = tensor({0.0, INFINITY}).reshape({1, 2});
  CHECK_THROWS_WITH_AS(lab::compare_choices(infinite, infinite), doctest::Contains("row 0 of the learner's logits"),
                       Error);
}

TEST_CASE("twins: a recipe is its own twin, and fewer bits are further away") {
  const lab::LabData data = lab::data_for("digits");
  const lab::TwinOptions options{.study = {.step = 20, .epochs = 2}};
  const lab::Twins same = lab::twin(mlp(), data, amp::recipe("fp32"), amp::recipe("fp32"), options);
  CHECK(same.all.count == 360);
  CHECK(same.all.kl == 0);
  CHECK(same.all.largest == 0);
  CHECK(same.all.effective_share() == doctest::Approx(1).epsilon(1e-12));
  const lab::Twins bf16 = lab::twin(mlp(), data, amp::recipe("fp32"), amp::recipe("amp-bf16"), options);
  const lab::Twins mxfp4 = lab::twin(mlp(), data, amp::recipe("fp32"), amp::recipe("mxfp4"), options);
  CHECK(bf16.all.kl > 0);
  CHECK(mxfp4.all.mean_kl() > 10 * bf16.all.mean_kl());
  CHECK(mxfp4.all.effective_share() < bf16.all.effective_share());
  CHECK(bf16.all.effective_share() < 1);
}

TEST_CASE(
    "twins: the weights of one class alone, of samples as many as asked, are those without layers' contributions") {
  const Tensor learner = tensor({std::log(0.9), std::log(0.1)}).reshape({1, 2});
  const Tensor sampler = tensor({std::log(0.9995), std::log(0.0005)}).reshape({1, 2});
  const lab::TwinChoices c = lab::compare_choices(learner, sampler);
  CHECK(c.smallest_log == c.largest_log);
  CHECK(std::exp(c.largest_log) == doctest::Approx(0.9 / 0.9995).epsilon(1e-6));

  // Running statistics and histories of amaxes move in a step.
  const lab::LabData data = lab::data_for("digits");
  const lab::MakeModel cnn = lab::model_for("cnn", data.load(0).train);
  lab::TwinOptions options{.study = {.step = 4, .epochs = 1}, .samples = 10};
  const lab::Twins with = lab::twin(cnn, data, amp::recipe("fp32"), amp::recipe("fp8-delayed"), options);
  options.layers = false;
  const lab::Twins without = lab::twin(cnn, data, amp::recipe("fp32"), amp::recipe("fp8-delayed"), options);
  CHECK(with.all.count == 10);
  CHECK(with.all.kl > 0);
  CHECK(with.all.kl == without.all.kl);
  CHECK(with.all.largest == without.all.largest);
}

TEST_CASE("twins: the layers' contributions add up to the difference of the losses") {
  const lab::LabData data = lab::data_for("digits");
  const lab::StudyOptions study{.step = 20, .epochs = 2};
  const lab::Twins twins = lab::twin(mlp(), data, amp::recipe("fp32"), amp::recipe("mxfp8"), {.study = study});
  double sum = 0;
  for (const auto& layer : twins.layers) sum += layer.a - layer.b;
  const auto loss = [&](const char* recipe) {
    lab::Study trained(mlp(), data, amp::recipe("fp32"), study);
    lab::TwinSide side(amp::recipe(recipe), mlp(), study, trained);
    return side.run->forward([&] { return trained.loss(*side.model); }).item();
  };
  CHECK(sum == doctest::Approx(loss("fp32") - loss("mxfp8")).epsilon(0.05));
}

TEST_CASE("twins: the caller's generator is as before, and no model is made to look at its kind without a cache") {
  const lab::LabData data = lab::data_for("addition");
  const lab::MakeModel gpt = lab::model_for("gpt", data.load(0).train);
  const amp::Recipe fp32 = amp::recipe("fp32");
  lab::TwinOptions options{.study = {.step = 1, .epochs = 1}, .samples = 8, .layers = false};
  int made = 0;
  const lab::MakeModel counted = [&] {
    ++made;
    return gpt();
  };
  manual_seed(7);
  lab::twin(counted, data, fp32, fp32, options);
  CHECK(made == 3);  // the trained one and both sides
  options.cache = nn::cache_quantizer("fp32");
  lab::twin(counted, data, fp32, fp32, options);
  CHECK(made == 7);
  CHECK(default_generator().stream() == 0);
}

TEST_CASE("twins: sequences have a row per position that counts, and a loss without classes is an Error") {
  const lab::LabData data = lab::data_for("addition");
  const lab::MakeModel gpt = [&] { return lab::model_for("gpt", data.load(0).train)(); };
  const lab::TwinOptions options{.study = {.step = 3, .epochs = 1}, .samples = 64, .layers = false};
  const lab::Twins twins = lab::twin(gpt, data, amp::recipe("fp32"), amp::recipe("amp-bf16"), options);
  std::int64_t count = 0;
  for (const lab::TwinChoices& at : twins.positions) count += at.count;
  CHECK(count == twins.all.count);
  CHECK(twins.positions.size() > 3);
  CHECK(lab::to_csv(twins).find("position,choices,kl") == 0);
  CHECK_THROWS_WITH_AS(lab::twin([] { return lab::make_mlp(8, 1); }, lab::data_for("regression"), amp::recipe("fp32"),
                                 amp::recipe("amp-bf16")),
                       doctest::Contains("only with cross_entropy"), Error);
}
