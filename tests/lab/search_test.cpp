// The search for formats: what it finds holds, names a recipe that loads, and is minimal; what it writes.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/search.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iterator>
#include <set>
#include <string>

using namespace gradual;

namespace {

const data::Split& few_digits() {
  static const data::Split split = [] {
    data::Dataset few = data::digits();
    few.inputs = few.inputs.narrow(0, 0, 400);
    few.targets = few.targets.narrow(0, 0, 400);
    return data::split(few, 320, 0);
  }();
  return split;
}
std::shared_ptr<nn::Module> mlp() { return lab::make_mlp(64, 10); }
lab::SearchOptions quick() {
  return {.formats = {"e3m0", "e8m7", "fp32"},
          .within = 5,
          .trainings = 40,
          .unseen = 2,
          .random = 1,
          .step = {.step = 5, .batch = 32, .epochs = 3},
          .run = {.epochs = 3, .batch = 32, .seeds = 2}};
}
lab::Search searched(const lab::SearchOptions& options) { return lab::search(mlp, few_digits(), options); }

std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}

}  // namespace

TEST_CASE("search: what is found passes, and every cheaper format of a layer fails") {
  const lab::Search s = searched(quick());
  REQUIRE(s.found);
  REQUIRE(s.sites.size() == 3);
  CHECK(s.formats == std::vector<std::string>{"e3m0", "e8m7", "fp32"});
  CHECK(s.complete);
  CHECK(s.trainings <= 40);
  CHECK_FALSE(s.stopped);
  int trainings = 0;
  for (const lab::Trial& t : s.trials) trainings += static_cast<int>(t.loss.size());
  CHECK(trainings == s.trainings + s.compared);
  const auto fails = [&](const inspect::Assignment& a) {  // itself, or a dearer one
    return std::ranges::any_of(s.trials, [&](const lab::Trial& t) {
      return !t.passes && !t.assignment.empty() && std::ranges::equal(t.assignment, a, std::greater_equal());
    });
  };
  for (std::size_t i = 0; i < s.sites.size(); ++i) {
    inspect::Assignment a = *s.found;
    if (a[i]-- > 0) CHECK(fails(a));
  }
  // The proof has seeds of its own.
  CHECK(s.proof_seed >= 2);
  const auto proof = std::ranges::find_if(s.trials, [&](const lab::Trial& t) { return t.why == "proof" && t.passes; });
  REQUIRE(proof != s.trials.end());
  CHECK(s.proven);
  CHECK(proof->assignment == *s.found);
  CHECK(proof->loss.size() == 2);
  CHECK(proof->points >= -5);
  const std::string text = lab::to_string(s);
  CHECK(text.find("it holds on seeds that the search never saw") != std::string::npos);
  CHECK(text.find("fp32's accuracy with the seeds of the proof") != std::string::npos);
  CHECK(text.find("\nproof ") != std::string::npos);
}

TEST_CASE("search: a format that trains nothing is found in no layer") {
  lab::SearchOptions o = quick();
  o.formats = {"e1m1", "e8m7"};  // 0 and one other magnitude
  const lab::Search s = searched(o);
  REQUIRE(s.found);
  CHECK(*s.found == inspect::Assignment{1, 1, 1});
  CHECK(s.cost(*s.found) == doctest::Approx(1));
}

TEST_CASE("search: random assignments cost what the found one does, also where that is little") {
  lab::SearchOptions o = quick();
  // the cheapest format in every layer
  o.formats = {"e3m0", "e3m1", "e8m7", "fp32"};
  o.within = 100;
  o.noise = 0;
  o.random = 2;
  const lab::Search s = searched(o);
  REQUIRE(s.found);
  CHECK(*s.found == inspect::Assignment{0, 0, 0});
  // Only the last layer, with 6% of the multiplications, can have another format.
  CHECK(std::ranges::count(s.trials, "random", &lab::Trial::why) > 0);
  for (const lab::Trial& t : s.trials)
    if (t.why == "random") CHECK(t.cost == doctest::Approx(s.cost(*s.found)).epsilon(0.02));
}

TEST_CASE("search: a proof trains with all its seeds, even if the first of them fails") {
  lab::SearchOptions o = quick();
  o.formats = {"e2m0", "e3m0", "e8m7"};
  o.within = 100;
  o.noise = 0.01;
  o.unseen = 3;
  o.run.seeds = 1;  // so that the loss counts in the proof alone
  const lab::Search s = searched(o);
  const auto proof = std::ranges::find(s.trials, "proof", &lab::Trial::why);
  REQUIRE(proof != s.trials.end());
  CHECK_FALSE(proof->passes);
  CHECK(proof->loss.size() == 3);
  CHECK_FALSE(s.proven);
}

TEST_CASE("search: the recipe loads, and trains as the trial did") {
  lab::SearchOptions o = quick();
  o.random = 0;
  const lab::Search s = searched(o);
  const amp::Recipe loaded = amp::recipe_from_json(amp::to_json(s.recipe(*s.found)));
  REQUIRE(loaded.quantization);
  REQUIRE(loaded.quantization->modules.size() == 3);
  CHECK(loaded.quantization->modules[0].first == s.sites[0].layer);
  CHECK(loaded.quantization->modules[0].second == s.formats[(*s.found)[0]]);
  const auto trial = std::ranges::find(s.trials, *s.found, &lab::Trial::assignment);
  const auto again = lab::compare(mlp, few_digits(), {loaded}, "", o.run);
  CHECK(again[0].test_loss == trial->loss[0]);
  CHECK(again[1].test_loss == trial->loss[1]);
}

TEST_CASE("search: a stop leaves the trials so far") {
  lab::SearchOptions o = quick();
  int trials = 0;
  o.trial = [&](const lab::Search& s) { trials = static_cast<int>(s.trials.size()); };
  o.run.stop = [&] { return trials == 2; };
  const lab::Search s = searched(o);
  CHECK(s.stopped);
  CHECK_FALSE(s.complete);
  CHECK(s.trials.size() == 2);
}

TEST_CASE("search: the path of trials and the picture") {
  lab::Search s;
  s.formats = {"mxfp4", "fp32"};
  s.bf16_cost = 10;
  s.sites = {{.layer = "a", .cost = {1, 8}}, {.layer = "b,c", .cost = {2, 16}}};
  s.found = inspect::Assignment{0, 1};
  s.trials = {{.why = "fp32", .cost = 2, .accuracy = {0.9}, .loss = {0.5}, .fp32_loss = 0.5, .passes = true},
              {.why = "knapsack",
               .assignment = {0, 0},
               .cost = 0.3,
               .accuracy = {0.1},
               .loss = {NAN},
               .fp32_loss = 0.5,
               .verdict = {{.kind = lab::VerdictKind::diverged, .step = 1}}},
              {.why = "lower 1",
               .assignment = {0, 1},
               .cost = 1.7,
               .accuracy = {0.9},
               .loss = {0.55},
               .fp32_loss = 0.5,
               .passes = true}};
  const std::string csv = lab::trials_csv(s);
  CHECK(csv.starts_with("trial,why,first_seed,seeds,cost_of_bf16,a,\"b,c\",accuracy,loss,"));
  CHECK(csv.find("\n1,knapsack,0,1,0.3000,mxfp4,mxfp4,0.1,nan,") != std::string::npos);
  CHECK(std::ranges::count(csv, '\n') == 4);
  const std::string svg = lab::front_svg(s);
  CHECK(svg.starts_with("<svg xmlns"));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("class=\"found\"") != std::string::npos);
  CHECK(svg.find("class=\"fails\" x=\"65.5\" y=\"35.5\"") != std::string::npos);  // no loss: at the top
  CHECK(svg.find("\"nan\"") == std::string::npos);                                // no coordinate
  CHECK(s.to_string({0, 1}) == "mxfp4: a; fp32: b,c");
  CHECK(s.to_string({1, 1}) == "fp32: all");
}

TEST_CASE("search: bad options are named") {
  lab::SearchOptions o = quick();
  o.formats = {"fp32", "amp-fp16"};
  CHECK(message([&] { searched(o); }).find("search: 'amp-fp16' is not a format of products") == 0);
  o.formats = {"fp32"};
  CHECK(message([&] { searched(o); }) == "search: at least two formats are needed");
  o.formats = {"mxfp4", "fp32", "mxfp4"};
  CHECK(message([&] { searched(o); }) == "search: the format mxfp4 is given twice");
  o = quick();
  o.trainings = 7;
  CHECK(message([&] { searched(o); }) == "search: 7 trainings are too few; fp32, one trial and the proof take 8");
  o = quick();
  o.within = -1;
  CHECK(message([&] { searched(o); }) ==
        "search: within is -1, noise 1, unseen 2 and random 1; they must be at least 0");
}

namespace {

// Attends to the rows of an image of 8 x 8.
struct RowNet : nn::Module {
  nn::Linear& embedding = register_module("embedding", nn::Linear(8, 16));
  nn::MultiheadAttention& attn = register_module("attn", nn::MultiheadAttention(16, 2));
  nn::Linear& head = register_module("head", nn::Linear(16, 10));
  Tensor forward(const Tensor& x) override {
    const Tensor rows = embedding(x.reshape({-1, 8, 8}));
    return head(mean(rows + attn(rows, rows, rows), {1}));
  }
};
std::shared_ptr<nn::Module> row_net() { return std::make_shared<RowNet>(); }

// The modules in which something is rounded.
struct RoundedSites : Observer {
  std::set<std::string> seen;
  void quantized(const QuantizerCall&) override { seen.insert(context().module); }
};

}  // namespace

TEST_CASE("search: the fields of attention are sites, and what is found rounds them in all modules") {
  lab::SearchOptions options = quick();
  options.attention = true;
  options.trainings = 200;
  const lab::Search s = lab::search(row_net, few_digits(), options);
  REQUIRE(s.sites.size() == 4 + std::size(amp::kAttentionFields));
  for (std::size_t i = 0; i < s.sites.size(); ++i) {
    const inspect::FormatSite& site = s.sites[i];
    CAPTURE(site.layer);
    if (i < 4) {
      CHECK(site.attention == nullptr);
      continue;
    }
    REQUIRE(site.attention == &amp::kAttentionFields[i - 4]);
    CHECK(site.layer == std::string("attention.") + site.attention->name);
    CHECK(site.harm[0] > site.harm[1]);
    CHECK(site.harm[1] > 0);
    CHECK(site.harm[2] == 0);  // fp32
  }
  // 32 samples, 2 heads, 8 queries and keys of 8 numbers: Q K^T twice, and dS^T Q
  CHECK(s.sites[4].multiplications == 3.0 * 32 * 2 * 8 * 8 * 8);
  CHECK(s.sites[4].cost[1] == s.sites[4].multiplications * 16);
  REQUIRE(s.found);
  CHECK(s.cost(*s.found) < 2);
  for (const lab::Trial& t : s.trials) {
    if (t.assignment.empty()) continue;
    const amp::Recipe r = s.recipe(t.assignment);
    amp::check_valid(r);
    for (std::size_t i = 4; i < s.sites.size(); ++i) {
      const amp::AttentionField& field = *s.sites[i].attention;
      const auto wanted = inspect::attention_quantizer(field, amp::recipe(s.formats[t.assignment[i]]));
      CHECK((r.quantization->attention ? (*r.quantization->attention).*field.quantizer : std::nullopt) == wanted);
    }
  }
  // Fields of attention and the projections around it have different formats.
  inspect::Assignment mixed(s.sites.size(), 2);
  mixed[4] = 0;
  const amp::Recipe r = amp::recipe_from_json(amp::to_json(s.recipe(mixed)));
  const auto net = row_net();
  RoundedSites sites;
  const ObserverScope observing(sites);
  const amp::RecipeScope scope(r);
  (*net)(few_digits().train.inputs.narrow(0, 0, 4));
  CHECK(sites.seen == std::set<std::string>{"attn.q"});
}

TEST_CASE("search: a model without attention has no fields of it to search") {
  lab::SearchOptions options = quick();
  options.attention = true;
  CHECK(message([&] { searched(options); }).find("the model has no attention") != std::string::npos);
}

TEST_CASE("search: a field of attention takes a format's quantizer as far as it goes there") {
  const auto of = [](auto field, const char* format) {
    const auto* const about = std::ranges::find(amp::kAttentionFields, field, &amp::AttentionField::quantizer);
    return inspect::attention_quantizer(*about, amp::recipe(format));
  };
  using Inside = amp::AttentionPrecision;
  CHECK_FALSE(of(&Inside::q, "fp32"));
  CHECK(of(&Inside::q, "mxfp4") == amp::recipe("mxfp4").quantization->forward_x);
  CHECK(of(&Inside::d_o, "nvfp4") == amp::recipe("nvfp4").quantization->dgrad_dy);
  CHECK(of(&Inside::k, "fp8-delayed")->scaling == Scaling(TensorScale{}));
  CHECK(of(&Inside::softmax, "mxfp8")->scaling == Scaling(NoScale{}));
  CHECK_FALSE(of(&Inside::d_s, "mxfp4-backward")->hadamard);
  CHECK_FALSE(of(&Inside::q, "mxfp4-centered")->center);
  amp::Recipe hands_on = amp::recipe("mxfp4");
  hands_on.quantization->overflow = Overflow::saturate_finite;
  for (const amp::AttentionField& field : amp::kAttentionFields) {
    CAPTURE(field.name);
    CHECK(inspect::attention_quantizer(field, hands_on)->overflow == Overflow::saturate_finite);
  }
}
