// How many choices of experts a precision changes.
#include "../../inspect/routes.h"

#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <cmath>
#include <optional>
#include <vector>

using namespace gradual;
using inspect::RouteChange;
using inspect::RouteObserver;

namespace {

Tensor experts(const std::vector<std::int64_t>& numbers, const Shape& sizes) {
  return from_data(numbers, sizes, {.dtype = DType::i64});
}

Tensor normal(const Shape& sizes, std::uint64_t seed) {
  Generator g(seed);
  return randn(sizes, {}, g);
}

nn::Sequential two_mixtures() {
  manual_seed(4);
  return nn::Sequential{nn::MixtureOfExperts(16, {.experts = 8, .hidden = 8}), nn::Linear(16, 16),
                        nn::MixtureOfExperts(16, {.experts = 4, .chosen = 1, .hidden = 8})};
}

RouteChange changes_under(const char* recipe) {
  nn::Sequential model = two_mixtures();
  RouteObserver routes(model, RouteObserver::Exact::yes);
  const amp::RecipeScope scope(amp::recipe(recipe));
  model(normal({512, 16}, 1));
  RouteChange all;
  for (const RouteObserver::Layer& layer : routes.layers()) all += layer.changed_by_rounding();
  return all;
}

}  // namespace

TEST_CASE("routes: sets of experts are compared, not their order") {
  const Tensor a = experts({0, 1, 2, 3, 4, 5}, {3, 2});
  const Tensor b = experts({1, 0, 2, 4, 0, 1}, {3, 2});
  const RouteChange c = inspect::compare_routes(a, b);
  CHECK(c.tokens == 3);
  CHECK(c.changed == 2);
  CHECK(c.choices == 6);
  CHECK(c.moved == 3);
  CHECK(c.changed_share() == doctest::Approx(2.0 / 3));
  CHECK(c.moved_share() == doctest::Approx(0.5));
  RouteChange twice = c;
  twice += c;
  CHECK(twice.moved == 6);
  CHECK(inspect::compare_routes(experts({}, {0, 2}), experts({}, {0, 2})).tokens == 0);
  CHECK_THROWS_WITH_AS(inspect::compare_routes(a, b.reshape({2, 3})), doctest::Contains("[3, 2] and [2, 3]"), Error);
}

TEST_CASE("routes: an observer sees each mixture's choices, and the busiest expert") {
  nn::Sequential model = two_mixtures();
  auto& first = dynamic_cast<nn::MixtureOfExperts&>(model[0]);
  const Tensor x = normal({6, 16}, 2);
  {
    RouteObserver routes(model);
    REQUIRE(routes.layers().size() == 2);
    CHECK(std::isnan(routes.layers()[0].busiest_share()));
    model(x);
    const RouteObserver::Layer& layer = routes.layers()[0];
    CHECK(layer.path == "0");
    CHECK(routes.layers()[1].path == "2");
    CHECK(layer.chosen.at(0).to_vector<std::int64_t>() == first.route(x).experts.to_vector<std::int64_t>());
    CHECK(layer.exact.empty());
    routes.clear();
    CHECK(layer.chosen.empty());
    first.router.weight.detach().fill_(0);  // all go to experts 0 and 1
    model(x);
    CHECK(layer.busiest_share() == 0.5);
    CHECK(first.router.has_hooks());
  }
  CHECK_FALSE(first.router.has_hooks());
}

TEST_CASE("routes: a recomputed segment counts once") {
  nn::Sequential model = two_mixtures();
  RouteObserver routes(model, RouteObserver::Exact::yes);
  const Tensor x = normal({6, 16}, 2).set_requires_grad();
  sum(checkpoint([&](const Tensor& in) { return model(in); }, x)).backward();
  for (const RouteObserver::Layer& layer : routes.layers()) {
    CHECK(layer.chosen.size() == 1);
    CHECK(layer.changed_by_rounding().tokens == 6);
  }
}

TEST_CASE("routes: f32 routes as f64, fewer bits move more tokens") {
  const RouteChange f32 = changes_under("fp32");
  const RouteChange bf16 = changes_under("amp-bf16");
  const RouteChange mxfp8 = changes_under("mxfp8");
  const RouteChange mxfp4 = changes_under("mxfp4");
  CHECK(f32.tokens == 1024);
  CHECK(f32.choices == 1536);
  CHECK(f32.changed == 0);
  CHECK(bf16.changed > 0);
  CHECK(mxfp8.changed > bf16.changed);
  CHECK(mxfp4.changed > mxfp8.changed);
}

TEST_CASE("routes: an observer changes no bit") {
  const Tensor x = normal({32, 16}, 3);
  for (const char* recipe : {"fp32", "amp-bf16", "fp8-delayed", "pure:e5m7"}) {
    const auto trained = [&](bool observed) {
      nn::Sequential model = two_mixtures();
      amp::RecipeRun run(amp::recipe(recipe), model, optim::AdamWOptions{.lr = 0.01});
      std::optional<RouteObserver> routes;
      if (observed) routes.emplace(model, RouteObserver::Exact::yes);
      double loss = 0;
      for (int step = 0; step < 3; ++step) loss = run.step([&] { return mean(square(model(x))); }).loss.item();
      return loss;
    };
    CHECK(trained(true) == trained(false));
  }
}
