// An instance of the benchmark: a training that fails for a known reason, fails for a reason that is not precision, or
// does not fail. All of it is data: describe() writes it as JSON.
#pragma once

#include <gradual/inspect/cause.h>
#include <gradual/inspect/number_role.h>
#include <gradual/lab/lab.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradual::precision_bench {

enum class Family : std::uint8_t { mlp, mlp_norm, cnn, cnn_norm, transformer, recurrent, count_ };
std::string_view to_string(Family family);
Family family_from_name(const std::string& name);  // Error listing the names
const std::vector<Family>& all_families();

enum class Group : std::uint8_t { failure, control, healthy, count_ };
std::string_view to_string(Group group);

// What is planted into the numbers between two layers, or into the loss. flaws.h has the code.
enum class Flaw : std::uint8_t {
  none,
  variance,
  raw_exponential,
  large_square,
  small_square,
  small_divisor,
  gain,
  large_parameter,
  product_of_gates,
  running_sum,
  root_of_distance,
  mask,
  wrong_sign,
  lost_gradient,
  written_nan,
  log_of_negative,
  count_
};

// The loss: cross entropy times `weight`, or one that is written badly.
enum class LossForm : std::uint8_t { cross_entropy, log_of_softmax, large_squares, count_ };

struct Model {
  Family family = Family::mlp;
  std::int64_t width = 32;
  std::int64_t depth = 2;  // blocks before the head
  Flaw flaw = Flaw::none;
  std::int64_t flaw_at = 0;  // the block that it follows
  double strength = 1;
  bool mended = false;  // the flaw is replaced by code that computes the same safely
  // The input of a block's layer is multiplied by `range`, its output divided by it. `depth` stands for the head.
  std::int64_t ranged = -1;
  double range = 1;
  std::int64_t outlier = -1;  // the block whose layer reads a constant channel of this size; `depth`: the head
  double outlier_size = 0;
  std::int64_t outlier_every = 0;  // not 0: each so many channels have a constant one
  double initial = 1;              // factor of all initial weights
  double initial_bias = 0;         // added to the biases of the blocks' layers
  bool tanh = false;               // instead of ReLU
  double momentum = 0.1;           // of batch norms
  double offset = 0;               // added to the input of batch norms
};

struct Data {
  std::int64_t train = 512;
  std::int64_t test = 400;
  std::uint64_t seed = 0;
  double scale = 1;      // of the inputs
  bool bipolar = false;  // pixels become numbers between `low` and `high`
  double low = 0;
  double high = 0;
  double outlier_rows = 0;  // the share of training samples multiplied by outlier_factor
  double outlier_factor = 1;
  bool nan_row = false;
  double huge_row = 0;  // not 0: one number of one sample
  bool shuffled_labels = false;
  bool quiet_columns = false;  // half of the pixels are 0 in training and noise in the test
};

using Role = inspect::NumberRole;  // which numbers carry the failure

struct Truth {
  std::vector<inspect::Cause> causes = {};  // right answers, the best one first
  // Right sites: a module's path with all that is in it, or "file.cpp:FIRST-LAST". Empty: no site is scored.
  std::vector<std::string> sites = {};
  std::vector<Role> roles = {};    // right ones; empty: any, of controls alone
  std::vector<Phase> phases = {};  // in which the failure arises; empty: any
  // A recipe that mends the mechanism alone, checked by training. Undefined in name: the flaw is mended in the code.
  amp::Recipe cured = {};
  bool cured_in_code = false;
  // A cure is specific if every field that it changes is one of these or inside of one: "/scaling".
  std::vector<std::string> specific = {};
  std::string cure = {};           // in words
  std::string does_not_help = {};  // in words
};

struct Instance {
  std::string kind = {};
  Group group = Group::failure;
  std::uint64_t seed = 0;  // of the draw
  int number = 0;          // of the kind and family
  Model model = {};
  Data data = {};
  LossForm loss = LossForm::cross_entropy;
  double loss_weight = 1;
  double loss_scale = 1;  // of the targets of large_squares
  amp::Recipe recipe = {};
  lab::Options options = {};
  Truth truth = {};

  std::string id() const;  // "KIND/FAMILY/NUMBER"
};

// The data, the model and the options of lab::compare for an instance.
lab::LabData data_of(const Instance& instance);
lab::MakeModel model_of(const Instance& instance);
lab::Options options_of(const Instance& instance);
// The paths of the model's layers that a recipe can quantise, with the head.
std::vector<std::string> block_paths(const Model& model);
// A JSON object, on one line.
std::string describe(const Instance& instance);

}  // namespace gradual::precision_bench
