// Comparisons that stop and resume: the same bits as without the stop.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/lab/lab.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comparison.h"

using namespace gradual;
using namespace gradual::test;

TEST_CASE("a stopped comparison resumes to the bits of one that was never stopped") {
  const Folder whole("whole");
  const Folder parts("parts");
  lab::Options o{.epochs = 3, .batch = 32};
  const auto list = recipes({"fp32", "fp16-master"});
  const auto expected = lab::compare(mlp, small_digits(), list, whole.path.string(), o);
  int asked = 0;
  o.stop = [&] { return ++asked == 23; };  // in the middle of the second run
  auto stopped = lab::compare(mlp, small_digits(), list, parts.path.string(), o);
  REQUIRE(stopped.size() == 2);
  CHECK(stopped[0].status == lab::Status::ok);
  CHECK(stopped[1].status == lab::Status::interrupted);
  CHECK(stopped[1].steps < 15);
  o.stop = {};
  o.resume = true;
  lab::Options other = o;
  other.lr = 0.5;
  const auto refusal = [&](const std::vector<amp::Recipe>& changed, const lab::Options& options) {
    return message([&] { lab::compare(mlp, small_digits(), changed, parts.path.string(), options); });
  };
  CHECK(refusal(recipes({"fp16-master"}), other).find("other settings: lr the optimizer's own there and 0.5 here; ") !=
        std::string::npos);
  auto changed = recipes({"fp16-master"});
  changed[0].scaling->init_scale = 2;
  CHECK(refusal(changed, o).find("other settings: recipe/scaling/init_scale 65536.0 there and 2.0 here; ") !=
        std::string::npos);
  other = o;
  other.model_name = "another";
  CHECK(refusal(recipes({"fp16-master"}), other).find("was written by a run of model on ") != std::string::npos);
  const auto resumed = lab::compare(mlp, small_digits(), list, parts.path.string(), o);
  REQUIRE(resumed.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(resumed[i].status == lab::Status::ok);
    CHECK(resumed[i].curve.loss == expected[i].curve.loss);
    CHECK(resumed[i].test_loss == expected[i].test_loss);
    CHECK(resumed[i].underflow_percent == expected[i].underflow_percent);
    REQUIRE(resumed[i].histograms.size() == 4);
    for (std::size_t k = 0; k < 4; ++k) CHECK(resumed[i].histograms[k].counts == expected[i].histograms[k].counts);
    REQUIRE(resumed[i].casts.size() == expected[i].casts.size());
    for (std::size_t k = 0; k < resumed[i].casts.size(); ++k)
      CHECK(resumed[i].casts[k].elements == expected[i].casts[k].elements);
  }
}

TEST_CASE("resume tells of a finished run that it does not take") {
  const Folder folder("anew");
  std::vector<std::string> notes;
  lab::Options o{.epochs = 1, .batch = 32, .resume = true};
  o.note = [&](const std::string& text) { notes.push_back(text); };
  lab::compare(mlp, small_digits(), recipes({"fp32"}), folder.path.string(), o);
  lab::compare(mlp, small_digits(), recipes({"fp32"}), folder.path.string(), o);
  CHECK(notes.empty());
  o.epochs = 2;
  CHECK(lab::compare(mlp, small_digits(), recipes({"fp32"}), folder.path.string(), o)[0].epochs == 2);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == "the finished run of fp32, seed 0, had other settings and is done anew: epochs 1 there and 2 here");
}

TEST_CASE("quantised runs resume to the bits too: histories, draws and codes are in the checkpoint") {
  for (const char* name : {"fp8-delayed", "fp8-smooth", "int4-lsq", "nvfp4", "msamp-o2"}) {
    CAPTURE(name);
    const Folder parts("quantised");
    lab::Options o{.epochs = 2, .batch = 32, .sample_every = 2};
    const auto whole = lab::compare(mlp, small_digits(), recipes({name}), "", o);
    int asked = 0;
    o.stop = [&] { return ++asked == 5; };
    CHECK(lab::compare(mlp, small_digits(), recipes({name}), parts.path.string(), o)[0].status ==
          lab::Status::interrupted);
    o.stop = {};
    o.resume = true;
    const auto resumed = lab::compare(mlp, small_digits(), recipes({name}), parts.path.string(), o);
    CHECK(resumed[0].curve.loss == whole[0].curve.loss);
    CHECK(resumed[0].test_loss == whole[0].test_loss);
    const bool none = std::isnan(whole[0].underflow_percent);  // no gradient is rounded
    CHECK(none == std::isnan(resumed[0].underflow_percent));
    CHECK((none || resumed[0].underflow_percent == whole[0].underflow_percent));
    CHECK(resumed[0].histograms[2].counts == whole[0].histograms[2].counts);
  }
}

TEST_CASE("a run stopped before its first epoch ends has no accuracy yet, and is not taken for diverged") {
  lab::Options o{.epochs = 2, .batch = 32};
  int asked = 0;
  o.stop = [&] { return ++asked == 3; };
  const auto results = lab::compare(mlp, small_digits(), recipes({"fp32"}), "", o);
  REQUIRE(results.size() == 1);
  CHECK(results[0].status == lab::Status::interrupted);
  CHECK(std::isnan(results[0].test_accuracy));
  CHECK(std::isnan(results[0].train_loss));
  CHECK(lab::table(results).find("nan") == std::string::npos);  // a dash instead
  CHECK(nlohmann::json::parse(lab::results_json(results, false))["runs"][0]["test_accuracy"].is_null());
}
