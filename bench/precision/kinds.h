// The kinds of instances: a table. A kind draws the parameters of an instance and writes its truth.
#pragma once

#include <string>
#include <vector>

#include "draw.h"
#include "instance.h"

namespace gradual::precision_bench {

inline constexpr const char* kNorms = "norms, logits, losses in f32";
inline constexpr const char* kOverflows = "which op overflows; the loss scale";
inline constexpr const char* kSums = "accumulate and reduce in f32";
inline constexpr const char* kAttention = "attention in half";
inline constexpr const char* kUpdates = "updates, moments, averages vanish";
inline constexpr const char* kEps = "Adam's eps in half";
inline constexpr const char* kState = "optimizer state in few bits";
inline constexpr const char* kFp8 = "FP8 or MX loss differs";
inline constexpr const char* kBlocks = "scale rules, statistics of blocks";
inline constexpr const char* kFp4 = "FP4 recipes";
inline constexpr const char* kLayers = "sensitivity of layers";
inline constexpr const char* kProgram = "not precision";

struct Kind {
  const char* name;
  Group group;
  const char* about;  // what fails, and why
  const char* need;   // what people ask for who report such failures (docs/precision-bench.md)
  std::vector<Family> families;
  int each;  // instances a family
  // Completes an instance whose kind, family, sizes, data seed and options are drawn.
  void (*plant)(Instance& instance, Draw& draw);
};

const std::vector<Kind>& kinds();
std::vector<Kind> kinds_of_f16();
std::vector<Kind> kinds_of_updates();
std::vector<Kind> kinds_of_formats();
std::vector<Kind> controls();
std::vector<Kind> healthy_kinds();

// Sizes, data and training, with nothing planted.
Instance base_instance(const Kind& kind, Family family, int number, std::uint64_t seed, int attempt);
// An instance that is drawn with this seed; attempt: a failed check draws again.
Instance draw_instance(const Kind& kind, Family family, int number, std::uint64_t seed, int attempt);

// A layer whose input is multiplied by a number from `low` to `high`, and its path. Transformers and recurrent layers
// are not linear in their inputs: there it is the head.
void draw_range(Instance& instance, Draw& draw, double low, double high);
std::string ranged_path(const Instance& instance);
// The same for a layer with a constant input channel.
void draw_outlier(Instance& instance, Draw& draw);
std::string outlier_path(const Instance& instance);

}  // namespace gradual::precision_bench
