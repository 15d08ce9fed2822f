// Costs of formats by layer, the harm that they do there, and the knapsack of both.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/format_choice.h>
#include <gradual/inspect/gradient_sites.h>
#include <gradual/lab/models.h>
#include <gradual/lab/tasks.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

using namespace gradual;
using inspect::Assignment;

namespace {

// The digits CNN with a batch of 8.
struct Digits {
  data::Split split = lab::data_for("digits").load(0);
  std::shared_ptr<nn::Module> model = (default_generator().manual_seed(1), lab::model_for("cnn", split.train)());
  Tensor x = split.train.inputs.narrow(0, 0, 8).contiguous();
  Tensor y = split.train.targets.narrow(0, 0, 8).contiguous();
  std::vector<inspect::FormatSite> sites(std::vector<amp::Recipe>& formats) const {
    return inspect::format_sites(
        *model, [&] { return lab::classification_loss((*model)(x), y); }, formats, inspect::Cost::bits);
  }
};

double harm_of(const std::vector<inspect::FormatSite>& sites, const Assignment& a) {
  double harm = 0;
  for (std::size_t i = 0; i < sites.size(); ++i) harm += sites[i].harm[a[i]];
  return harm;
}

// The least harm within a budget, by trying all; -1: none fits.
double least_harm(const std::vector<inspect::FormatSite>& sites, double budget) {
  double least = -1;
  Assignment a(sites.size(), 0);
  for (bool more = true; more;) {
    const double harm = harm_of(sites, a);
    if (cost_of(sites, a) <= budget && (least < 0 || harm < least)) least = harm;
    std::size_t i = 0;
    while (i < a.size() && ++a[i] == sites[i].cost.size()) a[i++] = 0;
    more = i < a.size();
  }
  return least;
}

}  // namespace

TEST_CASE("format_sites: a transposed convolution is a site like others") {
  manual_seed(0);
  nn::Sequential model(nn::Conv2d(1, 8, 3), nn::ConvTranspose2d(8, 4, 2, {.stride = 2}));
  const Tensor x = randn({2, 1, 8, 8});
  std::vector<amp::Recipe> formats = {amp::recipe("fp32"), amp::recipe("e8m7"), amp::recipe("e4m3")};
  const auto sites = inspect::format_sites(
      model, [&] { return square(model(x)).mean(); }, formats, inspect::Cost::bits);
  REQUIRE(sites.size() == 2);
  CHECK(sites[1].layer == "1");
  CHECK(sites[1].multiplications == 2 * 8 * 6 * 6 * 4 * 2 * 2);  // each of x [2, 8, 6, 6] by 4 filters of 2 x 2
  CHECK(sites[1].harm[0] > sites[1].harm[1]);
  CHECK(sites[1].harm[2] == 0);
}

TEST_CASE("format_sites: the products of each layer, and what they cost") {
  const Digits digits;
  std::vector<amp::Recipe> formats = {amp::recipe("fp32"), amp::recipe("e8m7"), amp::recipe("mxfp4")};
  const auto sites = digits.sites(formats);
  REQUIRE(sites.size() == 3);
  CHECK(formats[0].name == "mxfp4");  // sorted
  CHECK(formats[2].name == "fp32");
  CHECK(sites[0].layer == "0");
  CHECK(sites[1].layer == "4");
  CHECK(sites[2].layer == "9");
  CHECK(sites[0].multiplications == 8 * 64 * 32 * 9);
  CHECK(sites[1].multiplications == 8 * 16 * 64 * 288);
  CHECK(sites[2].multiplications == 8 * 256 * 10);
  CHECK_FALSE(sites[0].dgrad);  // images need no gradient
  CHECK(sites[1].dgrad);
  CHECK(sites[0].cost[0] == doctest::Approx(sites[0].multiplications * 4 * 4.25));  // two products, two operands
  CHECK(sites[1].cost[0] == doctest::Approx(sites[1].multiplications * 6 * 4.25));
  CHECK(sites[1].cost[1] == doctest::Approx(sites[1].multiplications * 6 * 16));
  const inspect::FormatSite& last = sites[2];
  CHECK(inspect::cost_of(last, formats[2], inspect::Cost::kept) == 4 * (8 * 256 + 256 * 10));
  CHECK(inspect::cost_of(last, formats[2], inspect::Cost::moved) == 4 * 2 * (8 * 256 + 256 * 10 + 8 * 10));
  CHECK(inspect::cost_of(last, amp::recipe("nvfp4"), inspect::Cost::kept) ==
        doctest::Approx((8 * 256 * 4.5 + 256 * 10 * (4 + 8.0 / 256)) / 8));  // weights in tiles of 16 x 16
}

TEST_CASE("format_sites: fewer bits harm more, and fp32 not at all") {
  const Digits digits;
  std::vector<amp::Recipe> formats = {amp::recipe("mxfp4"), amp::recipe("mxfp8"), amp::recipe("e8m7"),
                                      amp::recipe("fp32")};
  double cheapest = 0;
  for (const auto& site : digits.sites(formats)) {
    CAPTURE(site.layer);
    CHECK(site.harm[0] > 2 * site.harm[1]);
    CHECK(site.harm[1] > 2 * site.harm[2]);
    CHECK(site.harm[2] > 0);
    CHECK(site.harm[3] == 0);
    cheapest += site.harm[0];
  }
  CHECK(cheapest == doctest::Approx(2));  // both parts are relative to the cheapest format
  for (const auto& [name, p] : digits.model->named_parameters()) CHECK_FALSE(p.grad().defined());
}

TEST_CASE("knapsack: the least harm within each budget, as trying all assignments finds it") {
  Generator generator(3);
  std::vector<inspect::FormatSite> sites;
  double least = 0;
  double most = 0;
  for (int i = 0; i < 6; ++i) {
    const std::vector<double> r = rand({6}, {}, generator).to_vector<double>();
    // Whole costs that sum to 4000: their bins are exact.
    const double size = i < 5 ? std::floor(1 + 20 * r[0]) : 0;
    sites.push_back({.cost = {size, 3 * size, 8 * size}, .harm = {1 + r[1], r[2], 0.2 * r[3]}});
    least += size;
    most += 8 * size;
  }
  const double rest = std::floor((4000 - most) / 8);
  sites[5].cost = {rest, 3 * rest, 4000 - most};
  least += rest;
  std::vector<double> budgets;
  for (int i = 0; i < 20; ++i) budgets.push_back(std::floor(least + (4000 - least) * i / 19));
  const std::vector<Assignment> all = inspect::knapsack(sites, budgets);
  REQUIRE(all.size() == budgets.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(cost_of(sites, all[i]) <= budgets[i]);
    CHECK(harm_of(sites, all[i]) == doctest::Approx(least_harm(sites, budgets[i])));
  }
  CHECK(inspect::knapsack(sites, {0})[0] == Assignment(6, 0));  // nothing fits: the cheapest
}

namespace {

// Its heads share one of keys and values.
struct SharedKeys : nn::Module {
  nn::Linear& queries = register_module("queries", nn::Linear(64, 64));
  Tensor forward(const Tensor& x) override {
    const Tensor q = transpose(queries(x).reshape({2, 8, 4, 16}), 1, 2);
    const Tensor k = x.narrow(2, 0, 16).reshape({2, 1, 8, 16});
    return scaled_dot_product_attention(q, k, k);
  }
};

}  // namespace

TEST_CASE("format_sites: keys and values that heads share count once") {
  manual_seed(0);
  SharedKeys model;
  const Tensor x = randn({2, 8, 64});
  std::vector<amp::Recipe> formats = {amp::recipe("fp32")};
  const auto sites = inspect::format_sites(
      model, [&] { return square(model(x)).mean(); }, formats, inspect::Cost::kept, true);
  const auto of = [&](const char* layer) { return *std::ranges::find(sites, layer, &inspect::FormatSite::layer); };
  CHECK(of("attention.q").x == 2 * 4 * 8 * 16);
  for (const char* shared : {"attention.k", "attention.v"}) {
    CAPTURE(shared);
    CHECK(of(shared).x == 2 * 8 * 16);
    CHECK(of(shared).kept == 2 * 8 * 16);
    CHECK(of(shared).cost[0] == 4 * 2 * 8 * 16);
  }
  CHECK(of("attention.k").multiplications == 3 * 2 * 4 * 8 * 8 * 16);
  CHECK(of("attention.o").x == 2 * 4 * 8 * 16);
}

TEST_CASE("format_sites, gradient_sites: frozen parameters have no gradient, all others have the same") {
  const Digits digits;
  std::vector<amp::Recipe> formats = {amp::recipe("mxfp4"), amp::recipe("fp32")};
  const auto loss = [&] { return lab::classification_loss((*digits.model)(digits.x), digits.y); };
  std::vector<Tensor> parameters = digits.model->parameters();
  parameters[0].set_requires_grad(false);
  const auto sites = digits.sites(formats);
  REQUIRE(sites.size() == 3);
  for (const inspect::FormatSite& site : sites) CHECK(site.harm[0] > 0);
  const inspect::GradientSites all = inspect::gradient_sites(amp::recipe("mxfp4"), *digits.model, loss);
  CHECK(all.parameters.size() == parameters.size() - 1);
  for (Tensor& p : parameters) p.set_requires_grad(false);
  const std::string why = "no parameter of the model requires a gradient";
  CHECK_THROWS_WITH_AS(digits.sites(formats), ("format_sites: " + why).c_str(), Error);
  CHECK_THROWS_WITH_AS(inspect::gradient_sites(amp::recipe("mxfp4"), *digits.model, loss),
                       ("gradient_sites: " + why).c_str(), Error);
}

TEST_CASE("format_choice: bad input is named") {
  CHECK_THROWS_WITH_AS(inspect::cost_from_name("time"), "no cost 'time'; allowed are bits, kept and moved", Error);
  nn::ReLU relu;
  std::vector<amp::Recipe> formats = {amp::recipe("fp32")};
  CHECK_THROWS_WITH_AS(inspect::format_sites(
                           relu, [&] { return relu(ones({2})).sum(); }, formats, inspect::Cost::bits),
                       "no layer of the model multiplies by a weight", Error);
}
