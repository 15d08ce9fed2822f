// A dynamic loss scale (optim/grad_scaler.h): its state, its update rule, and its copy in a GPU's memory, which kernels
// read and update while the host does not wait.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "../support/host_device.h"
#include "../tensor/device.h"

namespace gradual {

struct LossScaleOptions {
  double init_scale = 65536;
  double growth_factor = 2;             // above 1
  double backoff_factor = 0.5;          // below 1
  std::int64_t growth_interval = 2000;  // clean steps in a row before the scale grows
  int hysteresis = 1;                   // overflows before it shrinks; clean steps restore the count
  double min_scale = 0x1p-126;          // the smallest normal number; its inverse is finite
  double max_scale = std::numeric_limits<float>::max();
  bool dynamic = true;  // false: the scale is fixed; steps with overflow are still skipped
  bool enabled = true;  // false: everything is the identity
};

struct LossScale {
  float scale = 1;
  std::int64_t growth_tracker = 0;
  std::int64_t hysteresis_tracker = 1;
  std::int64_t updates = 0;

  // The factor for gradients, rounded once.
  GRADUAL_HD float inverse() const { return static_cast<float>(1 / static_cast<double>(scale)); }

  GRADUAL_HD void set(double value, const LossScaleOptions& options) {
    const double low = value < options.min_scale ? options.min_scale : value;
    scale = static_cast<float>(low > options.max_scale ? options.max_scale : low);
  }

  // Ends an iteration. `overflow`: it had one. `given`, unless 0, becomes the scale.
  GRADUAL_HD void advance(const LossScaleOptions& options, bool overflow, double given) {
    ++updates;
    if (given != 0) return set(given, options);
    if (!options.dynamic) return;
    if (overflow) {
      growth_tracker = 0;
      // An exhausted hysteresis is restored by clean iterations only.
      if (hysteresis_tracker > 0) --hysteresis_tracker;
      if (hysteresis_tracker == 0) set(static_cast<double>(scale) * options.backoff_factor, options);
      return;
    }
    hysteresis_tracker = options.hysteresis;
    if (++growth_tracker < options.growth_interval) return;
    growth_tracker = 0;
    const double grown = static_cast<double>(scale) * options.growth_factor;
    if (static_cast<float>(grown) < std::numeric_limits<float>::infinity()) set(grown, options);
  }
};

// A value of the scale and the number of updates before it.
struct ScaleChange {
  std::int64_t update = 0;
  double scale = 1;
};

// The state in a GPU's memory. It is copied as bytes.
struct DeviceLossScale {
  static constexpr std::int64_t kKept = 256;  // changes that are kept until the host reads them
  // those of `now`; kernels read them
  float scale = 1;
  float inverse = 1;
  LossScale now;
  std::int64_t changes = 0;
  ScaleChange history[kKept] = {};  // change k is at k % kKept
};
static_assert(sizeof(DeviceLossScale) % 8 == 0);

namespace device {
// state->now.advance() on the GPU. The iteration has an overflow if any of the counts found[k][0] is not 0.
void advance_scale(DeviceLossScale* state, Device device, const LossScaleOptions& options,
                   std::span<const std::int64_t* const> found, double given);
}  // namespace device

}  // namespace gradual
