// How a run of the lab updates the parameters: optimizer, rates, schedule, and what is done to the gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../amp/recipe.h"
#include "../data/dataset.h"
#include "../inspect/update_meter.h"
#include "../optim/schedule.h"

namespace gradual::lab {

// The factor of the learning rate over a training of S steps.
//   constant   1
//   cosine     from 1 to 0 along half a cosine (Loshchilov and Hutter 2017)
//   linear     from 1 to 0
//   step       1, from half of the steps on 0.1, from three quarters on 0.01 (He et al. 2016)
//   one-cycle  along half cosines from 1/25 to 1 in the first 30% of the steps, then to 1/250000 (Smith and Topin 2019)
enum class ScheduleKind : std::uint8_t { constant, cosine, linear, step, one_cycle, count_ };
std::string_view to_string(ScheduleKind kind);             // "constant", .., "one-cycle"
ScheduleKind schedule_from_name(const std::string& name);  // Error naming the allowed ones
std::vector<std::string> schedule_names();

// What an optimizer reads besides the learning rate; unset: its own. Error at the start of a comparison for one that it
// does not have.
struct Rates {
  std::optional<double> weight_decay = {};
  std::optional<double> momentum = {};
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
};

struct Training {
  Rates rates = {};
  ScheduleKind schedule = ScheduleKind::cosine;
  std::int64_t warmup = 0;  // first steps, in which the rate rises from 0 to 1 times the schedule's; below all steps
  double clip = 0;          // largest norm of all gradients as one vector; 0: not clipped
  // Parts of a batch whose gradients add up, in the dtype that the recipe says, before one update. The loss of a part
  // is weighted by its share of the targets, so that the sum is the gradient of the whole batch's loss. The targets of
  // samples with named fields are not known; such parts are weighted by their number of samples.
  int accumulate = 1;
  // The factor d of the averaged parameters a = d a + (1 - d) w after each step, with min(d, (1 + t) / (10 + t)) in
  // step t, in f32 or in the dtype that the recipe's `averages` says. Evaluation and saving use the averages; buffers
  // are those of the last step. 0: none.
  double average = 0;
};
// Error naming the field, for the options of --help.
void check(const Training& training);

// The optimizers by name: sgd, adam, adamw, soap, and those of add_optimizer.
struct OptimizerInfo {
  std::string name;
  double lr = 0;                   // the usual one
  std::vector<std::string> rates;  // the fields of Rates that it has: "weight_decay", "momentum", ..
  std::function<amp::MakeOptimizer(double lr, const Rates& rates)> make;
};
// Makes an optimizer known to the lab. A later one replaces an earlier one of that name.
void add_optimizer(OptimizerInfo optimizer);
std::vector<std::string> optimizer_names();
// Error for an unknown name, with the allowed ones.
const OptimizerInfo& optimizer_info(const std::string& name);
// lr 0: the optimizer's own. Error for a rate that it does not have.
amp::MakeOptimizer make_optimizer(const std::string& name, double lr, const Rates& rates);

// A step whose gradients are those of `parts` parts of the batch, one after the other (Training::accumulate). Parts
// have equal sizes, the last one may be smaller. Observers see each part's forward and backward.
amp::RunStep accumulated_step(amp::RecipeRun& run, const data::Batch& batch, int parts,
                              const std::function<Tensor(const data::Batch& part)>& loss);

// The schedule with its warmup, for so many steps. Error for a warmup that is not shorter.
optim::Schedule schedule_for(const Training& training, std::int64_t steps);

// What differs from the usual training, as ", schedule linear, clip 1"; empty: nothing does.
std::string settings_of(const Training& training);

// The averaged parameters of a run (Training::average).
class Average {
 public:
  Average(amp::RecipeRun& run, double factor);

  // After each step. A meter measures the updates of averages that are not in f32.
  void update(inspect::UpdateMeter* meter = nullptr);
  // The model has the averages, rounded to the dtype of its parameters, while one of these lives.
  class Scope : Pinned {
   public:
    explicit Scope(Average& average);
    ~Scope();

   private:
    Average& average_;
    std::vector<Tensor> kept_;
  };
  // The averages under the names of the parameters; `all`: with the others of this state dict.
  StateDict state_dict(const StateDict& all = {}) const;
  void load_state_dict(const StateDict& state);

 private:
  bool in_f32() const;
  Tensor averaged_value(const Tensor& parameter) const;  // the master or, in storage, the parameter itself

  amp::RecipeRun& run_;
  double factor_;
  std::int64_t steps_ = 0;
  std::vector<std::pair<std::string, Tensor>> parameters_;
  std::vector<Tensor> averages_;
};

}  // namespace gradual::lab
