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

  LabData(std::string named, std::function<data::Split(std::uint64_t seed)> loader)
      : name(std::move(named)), load(not_null(std::move(loader), "LabData: the function that loads the data")) {}
  LabData(const data::Split& split)  // NOLINT(google-explicit-constructor): the same split for every seed
      : name(split.train.name), load([split](std::uint64_t) { return split; }) {}
};

// "digits", "addition", "mnist:DIR", "cifar10:DIR" (augmented by flip_and_crop), "text:FILE", "npy:INPUTS,TARGETS" or
// "safetensors:FILE"; Error naming these otherwise. npy: two arrays of NumPy, inputs [N, ..] (read as f32) and class
// numbers [N]. safetensors: the same as "inputs" and "targets". A fifth of the samples, by seed, tests.
// context: characters in a window of text (0: 64); Error for other data.
LabData data_for(const std::string& spec, std::int64_t context = 0);

// Cross entropy of logits [N, C] with classes [N], or [B, T, C] with [B, T]; class -100 is ignored.
Tensor classification_loss(const Tensor& logits, const Tensor& targets);

struct Score {
  double loss = 0;  // sum over the counted targets
  std::int64_t correct = 0, counted = 0;
};
// Adds the score of one batch; logits of any float.
void add_score(Score& score, const Tensor& logits, const Tensor& targets);

}  // namespace gradual::lab
