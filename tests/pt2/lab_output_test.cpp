// The lab on a model of torch.export that returns its loss.
#include <doctest/doctest.h>
#include <gradual/pt2/module.h>

#include <cmath>
#include <string>

#include "../lab/comparison.h"
#include "support/source_dir.h"

namespace gradual::test {

TEST_CASE("a model of torch.export that returns its loss, by the names of its arguments and by position") {
  const std::string model = source_dir() + "/tests/golden/pt2/gpt.pt2";
  const auto net = pt2::load(model);
  REQUIRE(net->inputs().size() == 2);
  const std::string first = net->inputs()[0].name;
  const std::string second = net->inputs()[1].name;
  Generator generator(0);
  const Tensor tokens = randint(0, 11, {60, 6}, {.dtype = DType::i64}, generator);
  data::Dataset all{tokens, tokens, 0, "tokens"};
  all.fields = {{second, tokens}, {first, tokens}};
  const lab::LabData named(data::split(all, 48, 0));
  CHECK(named.loss == "output");
  const lab::Options o{.epochs = 2, .batch = 16, .lr = 0.01};
  const auto make = lab::model_for(model, all);
  const auto results = lab::compare(make, named, recipes({"fp32", "amp-bf16"}), "", o);
  for (const lab::Result& r : results) {
    CHECK(r.status == lab::Status::ok);
    CHECK(r.metric.name == "loss");
    CHECK(r.test_metric == doctest::Approx(r.test_loss).epsilon(1e-6));
    CHECK(r.curve.loss.back() < r.curve.loss.front());
    CHECK(r.samples.size() == 12);  // each a batch of its own
  }
  CHECK(results[1].difference.has_value());
  CHECK(results[1].difference->half > 0);
  all.fields.clear();
  lab::Options by_position = o;
  by_position.loss = "output";
  const auto same = lab::compare(make, lab::LabData(data::split(all, 48, 0)), recipes({"fp32"}), "", by_position);
  CHECK(same[0].curve.loss == results[0].curve.loss);
  by_position.metric = "perplexity";
  const auto perplexity = lab::compare(make, lab::LabData(data::split(all, 48, 0)), recipes({"fp32"}), "", by_position);
  CHECK(perplexity[0].test_metric == doctest::Approx(std::exp(results[0].test_loss)));
  all.fields = {{"wrong", tokens}, {first, tokens}};
  CHECK(message([&] { lab::compare(make, lab::LabData(data::split(all, 48, 0)), recipes({"fp32"}), "", o); }) ==
        "the model's forward takes " + first + ", " + second + "; the data have wrong, " + first + ", and no '" +
            second + "'");
}

TEST_CASE("a finding names the Python line of its op, not the first one of the module") {
  struct Mistake {
    const char* file;
    const char* recipe;
    const char* line;
  };
  const Mistake mistakes[] = {
      {"planted_variance", "bf16-pure",
       "planted_models.py:50: variance = (h * h).mean(-1, keepdim=True) - mean * mean"},
      {"planted_growth", "amp-fp16", "planted_models.py:190: state = state * 2 + h"},
  };
  Generator generator(0);
  const Tensor x = randn({200, 16}, {}, generator);
  const Tensor y = argmax(narrow(x, 1, 0, 4), 1);
  data::Dataset all{x, y, 4, "numbers"};
  all.fields = {{"x", x}, {"y", y}};
  for (const Mistake& mistake : mistakes) {
    CAPTURE(mistake.file);
    const std::string model = source_dir() + "/tests/golden/pt2/" + mistake.file + ".pt2";
    lab::Options o{.epochs = 1, .batch = 40, .lr = 0.05};
    o.optimizer = "sgd";
    const lab::LabData data(data::split(all, 160, 0));
    const auto results = lab::compare(lab::model_for(model, all), data, recipes({"fp32", mistake.recipe}), "", o);
    REQUIRE(!results[1].findings.empty());
    const std::string& sentence = results[1].findings[0].sentence;
    CAPTURE(sentence);
    CHECK(sentence.find(std::string("(") + mistake.line) != std::string::npos);
  }
}

}  // namespace gradual::test
