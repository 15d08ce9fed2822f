// The same weights under two recipes: a learner trains them, a sampler draws from them or serves them.
//
//   const lab::Twins twins = lab::twin(make_model, data, amp::recipe("amp-bf16"), amp::recipe("fp8-current"));
//   std::puts(to_string(twins).c_str());
//
// Both give probabilities p of the classes of each choice: a sample's class, or the next token at a position. In
// reinforcement learning the sampler's draws train the learner: p_learner(y) / p_sampler(y) is the importance weight of
// a draw y. These figures are expectations over the sampler's probabilities, so they have no noise of sampling.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "../amp/recipe.h"
#include "../core/quantize/quantizer.h"
#include "../core/tensor/tensor.h"
#include "../inspect/diff.h"
#include "../inspect/routes.h"
#include "models.h"
#include "split.h"
#include "study.h"
#include "tasks.h"

namespace gradual::lab {

// What a set of choices says; a sum, until mean() is asked.
struct TwinChoices {
  std::int64_t count = 0;
  double kl = 0;          // sum of KL(sampler || learner) in nats: the mean log weight of a draw, negated
  double log_square = 0;  // sum of log E[w^2] over choices, with the weight w of the sampler's draws
  double changed = 0;     // choices whose most likely class differs
  double largest = 0;     // |p_learner - p_sampler| of a class, the largest
  // log w of the classes that the sampler draws with a probability of 0.1% or more.
  double smallest_log = std::numeric_limits<double>::infinity();
  double largest_log = -std::numeric_limits<double>::infinity();

  void add(const TwinChoices& other);
  double mean_kl() const { return kl / static_cast<double>(count); }
  double changed_share() const { return changed / static_cast<double>(count); }
  // Of n draws with weights w as many count as n * share draws without (Kong 1992): 1 / E[w^2], here of one choice, the
  // geometric mean over choices.
  double effective_share() const;
};
// Of logits [.., C] of any float on any device, a choice per row. Rows whose mask, of any dtype, is 0 are left out; an
// undefined mask leaves none out. Error for different sizes, and for logits that are not finite.
TwinChoices compare_choices(const Tensor& learner, const Tensor& sampler, const Tensor& mask = {});

struct TwinOptions {
  StudyOptions study = {};     // the training, which stops before its step
  std::int64_t samples = 512;  // of the test data, at most
  // The sampler reads a token at a time with a cache of keys and values in this format; none: all tokens at once. For
  // the lab's gpt. The table of layers is without a cache.
  std::optional<Quantizer> cache = {};
  std::optional<Split> split = {};  // of the sampler's model; not with a cache
  bool layers = true;  // also which layers make the losses of a training batch differ; needs a shadow of both
};

// The experts that the learner and the sampler choose for the same tokens in a layer with a router. All tokens of the
// test data count, those whose target is ignored too.
struct TwinRoutes {
  std::string layer = {};
  inspect::RouteChange change = {};
};

struct Twins {
  std::string learner, sampler, data;
  std::string cache = {};  // the sampler's, in words; "": none
  std::string split = {};  // of the sampler (describe(Split)); empty: none
  std::int64_t step = 0;
  TwinChoices all = {};
  std::vector<TwinChoices> positions = {};  // of sequences: of each position; else empty
  std::vector<inspect::ShadowDiff::Contribution> layers =
      {};                               // to loss of learner - loss of sampler, of a training batch
  std::vector<TwinRoutes> routes = {};  // in the order of the model; empty: it has no router
};

// Trains with the learner's recipe up to a step, and gives the test data to these weights under both recipes. The
// sampler starts without histories of amaxes. Where a prefix is needed, it is that of the data. Error for a loss that
// is no cross entropy, since only classes have these probabilities, and for logits that are not finite.
Twins twin(const MakeModel& make_model, const LabData& data, const amp::Recipe& learner, const amp::Recipe& sampler,
           const TwinOptions& options = {});
std::string to_string(const Twins& twins);
// A line per position; one line without positions.
std::string to_csv(const Twins& twins);
// A line per layer with a router.
std::string routes_csv(const Twins& twins);

}  // namespace gradual::lab
