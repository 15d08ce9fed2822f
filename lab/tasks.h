// The data of a lab run, and the score of its outputs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "../core/tensor/tensor.h"
#include "../data/dataset.h"

namespace gradual::lab {

// A name for tables, and a function that makes a seeded split.
struct LabData {
  std::string name;
  std::function<data::Split(std::uint64_t seed)> load;
  std::function<data::Batch(const data::Batch&)> augment = {};  // of batches to train on; draws random numbers
  // What these data are trained on and measured by, if the options say nothing (loss.h, metric.h).
  std::string loss = "cross_entropy";
  std::string metric = "accuracy";
  std::string model = {};  // the lab's model for these data; empty: by their shape

  LabData(std::string named, std::function<data::Split(std::uint64_t seed)> loader)
      : name(std::move(named)), load(not_null(std::move(loader), "LabData: the function that loads the data")) {}
  LabData(const data::Split& split)  // NOLINT(google-explicit-constructor): the same split for every seed
      : name(split.train.name), load([split](std::uint64_t) { return split; }) {
    use_loss_of(split.train);
  }

  // Cross entropy and accuracy for classes; mse and rmse for targets that are floats.
  void use_loss_of(const data::Dataset& dataset);
};

// "digits", "addition", "regression", "brackets", "autoencoder" (built_in_tasks.h), "mnist:DIR", "cifar10:DIR",
// "cifar100:DIR" (augmented by flip_and_crop), "text:FILE", "npy:INPUTS,TARGETS", "npy:NAME=FILE,NAME=FILE,.." or
// "safetensors:FILE"; Error naming these otherwise.
// npy with two files: arrays of NumPy, inputs [N, ..] (read as f32) and targets: class numbers [N] or [N, T], or floats
// [N, ..], which are trained on mse. safetensors: the same as "inputs" and "targets".
// npy with names, and a file of safetensors that has others: samples of several tensors [N, ..], for a model of
// torch.export whose forward has arguments of these names (loss.h). Floats are read as f32, integers as i64, bool as
// bool. They are trained on "output" unless options say otherwise.
// A fifth of the samples, by seed, tests. context: characters in a window of text (0: 64); Error for other data.
inline constexpr const char* kDataNames =
    "digits, addition, regression, brackets, autoencoder, mnist:DIR, cifar10:DIR, cifar100:DIR, text:FILE, "
    "npy:INPUTS,TARGETS, npy:NAME=FILE,NAME=FILE,.. and safetensors:FILE";
LabData data_for(const std::string& spec, std::int64_t context = 0);

// Cross entropy of logits [N, C] with classes [N], or [B, T, C] with [B, T]; class -100 is ignored.
Tensor classification_loss(const Tensor& logits, const Tensor& targets);

struct Score {
  double loss = 0;  // sum over the counted targets
  std::int64_t correct = 0;
  std::int64_t counted = 0;
};
// Adds the score of one batch; logits of any float.
void add_score(Score& score, const Tensor& logits, const Tensor& targets);

}  // namespace gradual::lab
