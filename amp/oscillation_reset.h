// OsciReset of TetraJet-v2 (Chen et al. 2025, arXiv 2510.27527): weights that oscillate around a threshold of rounding
// are detected and set to the number that they are rounded to, the centre of their bin.
//
// Near a threshold a small step of the weight w makes the rounded weight Q(w) leap by a whole bin. Over a window of
// steps the distance travelled by Q(w), the sum of |Q(w_t) - Q(w_t-1)|, is then many times that of w. Read: the
// abstract and the authors' code (detection by the ratio of distances), not the paper's text.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "../core/files/state_dict.h"
#include "../nn/module.h"
#include "../optim/optimizer.h"
#include "quantization.h"

namespace gradual::amp {

// After each update whose number is a multiple of `period` and at least `from`, the next `window` updates are watched;
// then weights whose Q(w) has travelled at least `ratio` times as far as w are set to Q(w). Theirs for language models:
// from 8,000 of 12,505 steps, 200, 50 and 8.
struct OscillationReset {
  int from = 0;      // at least 0
  int period = 200;  // above window
  int window = 50;   // at least 1
  double ratio = 8;  // above 1

  bool operator==(const OscillationReset&) const = default;
};
// Error naming the wrong field.
void check_valid(const OscillationReset& options);

// Watches the weights of a model's Linear layers along their inputs and of its Conv2d layers along their input channels
// (where blocks of scales divide them), as far as a quantizer of forward_w rounds them. Rounded is the weight with its
// full precision: the master if there is one. Outlier channels are left alone, as are convolutions in groups that have
// some. It costs four numbers of f32 for each weight in a window. Nothing is observed or recorded but the write of a
// weight that is reset.
class OscillationWatch : Pinned {
 public:
  // Error if the model has no such layer.
  OscillationWatch(const OscillationReset& options, nn::Module& model);

  // After update number `updates` of the run, counted from 1.
  void after_update(std::int64_t updates, const QuantizationState& state, optim::Optimizer& optimizer);
  // The quantizers or the outlier channels change: a window that has begun is dropped.
  void forget();

  std::int64_t resets() const { return resets_; }    // of weights, in all windows
  std::int64_t windows() const { return windows_; }  // that have ended

  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  struct Layer {
    std::string path;
    Tensor weight;
    int axis;  // along which forward contracts it
  };
  // A weight and what it is rounded to, as they were, and how far each has gone: f32 of the weight's sizes.
  struct Watched {
    Tensor value = {};
    Tensor rounded = {};
    Tensor distance = {};
    Tensor rounded_distance = {};
  };
  // By name, as state dicts have them.
  static constexpr std::pair<const char*, Tensor Watched::*> kParts[] = {
      {"value", &Watched::value},
      {"rounded", &Watched::rounded},
      {"distance", &Watched::distance},
      {"rounded_distance", &Watched::rounded_distance}};
  void begin(const Layer& layer, const QuantizationState& state, optim::Optimizer& optimizer);
  void follow(const Layer& layer, const QuantizationState& state, optim::Optimizer& optimizer);
  void reset(const Layer& layer, optim::Optimizer& optimizer);

  OscillationReset options_;
  std::vector<Layer> layers_;
  std::map<std::string, Watched> watched_;  // by path
  std::int64_t resets_ = 0;
  std::int64_t windows_ = 0;
};

}  // namespace gradual::amp
