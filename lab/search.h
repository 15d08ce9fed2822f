// Searches the cheapest format for each layer of a model such that the result stays within the noise of fp32.
//
//   const lab::Search s = lab::search(make_model, lab::data_for("digits"), {.formats = {"mxfp4", "e8m7", "fp32"}});
//   if (s.found) amp::save_recipes("found.json", {s.recipe(*s.found)});
//
// A knapsack chooses the assignments of least estimated harm for many budgets (inspect/format_choice.h). Trainings find
// the cheapest of these that passes. From there all layers, then halves of them, and finally single layers change to a
// cheaper format until none can (delta debugging: Zeller and Hildebrandt 2002). The result is proven on seeds that the
// search has not used, and compared on them with other assignments of equal cost.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../inspect/format_choice.h"
#include "lab.h"
#include "study.h"

namespace gradual::lab {

struct SearchOptions {
  std::vector<std::string> formats = {"mxfp4", "nvfp4", "mxfp8", "e8m7", "fp32"};  // fp32 and quantised recipes
  inspect::Cost cost = inspect::Cost::bits;
  // Also searches the formats inside of the model's attention: a site for each field (inspect/format_choice.h), of all
  // its attentions. Error for a model without.
  bool attention = false;
  // The margins of a trial's verdict (decision.h): `within` points of accuracy or percent of another metric, and of
  // test loss `noise` standard deviations of fp32's between seeds. With noise 0 or one seed, the loss is not checked.
  // A trial passes if it matches or is better, and fails if it is worse. With another verdict it passes if its means
  // lie within the margins, and that is not certain. A trial of the search is judged after each seed, so that each time
  // has an equal part of the error of 5% (sequential.h); a proof is judged once.
  double within = 0.3;
  double noise = 1;
  int trainings = 60;      // of search and proof together, at most
  int unseen = 5;          // seeds of the proof and of the comparison; they follow those of the search
  int random = 3;          // random assignments to compare with
  StudyOptions step = {};  // the step on which the harm is estimated
  Options run = {.seeds = 3};
  std::function<void(const struct Search&)> trial = {};  // called after each trial
};

// An assignment, trained with some seeds.
struct Trial {
  std::string why = {};  // fp32, knapsack, lower N, exchange, proof, uniform bf16, first and last, random
  inspect::Assignment assignment = {};  // empty: fp32
  double cost = 0;                      // relative to a model entirely in bf16 (e8m7)
  std::uint64_t first_seed = 0;
  std::vector<double> accuracy = {};  // by seed, on the test data; of another metric its value
  std::vector<double> loss = {};      // by seed, on the test data
  // Compared with fp32 on the same seeds: points of accuracy (percent of another metric, negative: worse), change of
  // the loss, standard deviation of fp32's loss, fp32's loss.
  double points = 0;
  double loss_change = 0;
  double loss_noise = 0;
  double fp32_loss = 0;
  Verdict verdict = {};  // lab/verdict.h
  bool passes = false;
  bool is_certain = false;  // it passes by its verdict, and not only by its means
};

struct Search {
  std::vector<std::string> formats = {};  // by the cost of a model entirely in each
  std::vector<inspect::FormatSite> sites = {};
  double bf16_cost = 0;
  std::vector<Trial> trials = {};
  std::optional<inspect::Assignment> found = {};  // the cheapest that passed
  bool complete = false;                          // no layer can go to a cheaper format
  std::uint64_t proof_seed = 0;                   // the first seed of the last proof; 0: no proof was started
  bool proven = false;
  bool stopped = false;
  MetricInfo metric = {};
  int trainings = 0;  // of search and proof
  int compared = 0;   // of the comparison

  double cost(const inspect::Assignment& a) const { return inspect::cost_of(sites, a) / bf16_cost; }
  // By Quantization::modules, and Quantization::attention in all modules.
  amp::Recipe recipe(const inspect::Assignment& assignment) const;
  std::string to_string(const inspect::Assignment& assignment) const;  // "mxfp4: 4; e8m7: 0, 9"
};

// Error for options out of range, and for a format that is neither fp32 nor quantised. Options::stop ends the search;
// the result then has the trials so far.
Search search(const MakeModel& make_model, const LabData& data, const SearchOptions& options = {});

std::string to_string(const Search& search);   // the found assignment and the comparison
std::string trials_csv(const Search& search);  // RFC 4180: one line per trial
std::string front_svg(const Search& search);   // cost against loss

// Makes the folder. Error if it has files of an earlier search, which `overwrite` removes.
void begin_search(const std::string& folder, bool overwrite);
// Writes trials.csv, front.svg and, of the found assignment, recipe.json, each atomically. Without one there is no
// recipe.json: an earlier assignment has failed its proof.
void save_search(const std::string& folder, const Search& search);

}  // namespace gradual::lab
