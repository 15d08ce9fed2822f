// What the tools of inspect/ see of single steps of a run, for results.json and the report: the errors of ops, blocks
// and updates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../core/ops/op.h"
#include "../inspect/names.h"

namespace gradual::inspect {
class Shadow;
class UpdateMeter;
class XrayObserver;
}  // namespace gradual::inspect

namespace gradual::lab {

// Blocks of an operand, row by row, as the quantizer scales them.
struct BlockMap {
  std::string layer = {};
  std::string operand = {};
  std::string rule = {};
  int block = 0;                             // elements of a block
  std::int64_t columns = 0;                  // blocks in a row
  std::vector<double> clipped_percent = {};  // of a block's elements; of its error
  std::vector<double> regret_percent = {};   // see xray()
};

struct StepErrors {
  struct Row {
    Phase phase = Phase::forward;
    std::string op = {};
    std::string layer = {};
    std::optional<inspect::Product> product = {};  // of a contraction of quantised operands, and of backward
    // relative
    double local = 0;
    double inherited = 0;
    double total = 0;
    // means, in ulps of the result's dtype
    double local_ulps = 0;
    double inherited_ulps = 0;
    double total_ulps = 0;
    double cosine = 1;  // between the result and that in f64
    double share = 0;   // share of the error in the loss
    // of the local error (inspect::ErrorSum), with half their 95% intervals
    double bias = 0;
    double bias_interval = 0;
    double gain = 0;
    double gain_interval = 0;
  };
  std::int64_t step = 0;
  double loss = 0;             // loss in the recipe
  double exact_loss = 0;       // loss in f64
  double explained = 0;        // sum of the shares
  std::vector<Row> rows = {};  // of forward and backward; ops that change no number are left out
};

// Elements of a parameter, evenly spaced, with their update at one metered step.
struct UpdateCloud {
  std::int64_t step = 0;
  std::string dtype = {};  // of the numbers that the next step starts from: the FP32 master, or the parameter
  // of dtype; the exponent of its smallest positive number
  int mantissa_bits = 0;
  int least_exponent = 0;
  // of magnitudes; NaN for 0
  std::vector<double> log2_weight = {};
  std::vector<double> log2_update = {};
  std::vector<double> arrives = {};  // made / intended update; 0: lost
};

// How much of the updates of a parameter arrives (inspect/update_meter.h), at each metered step.
struct UpdateCurve {
  std::string parameter = {};
  std::vector<std::int64_t> step = {};
  std::vector<double> vanished_percent = {};
  std::vector<double> ratio = {};
  std::vector<double> arriving = {};
  UpdateCloud cloud = {};  // of the last metered step of the first half of training
};

// Names the products of each layer's backward whose rows name none: by their ops, and where no op tells, in their
// order. The last product of a layer gives its weight gradient, the one before it the gradient of its input.
void name_products(std::vector<StepErrors::Row>& rows);
// The errors from a shadow with attribution, and the blocks from an X-ray, that have observed the step.
StepErrors step_errors(const inspect::Shadow& shadow, std::int64_t step);
std::vector<BlockMap> block_maps(const inspect::XrayObserver& xrays);
// Adds the updates of a step. with_clouds: they replace the clouds of earlier steps.
void add(std::vector<UpdateCurve>& curves, const inspect::UpdateMeter& meter, std::int64_t step, bool with_clouds);

}  // namespace gradual::lab
