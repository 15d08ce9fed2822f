// The lab's own models. A model is a Module that maps a batch of inputs to logits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../data/dataset.h"
#include "../nn/module.h"

namespace gradual::lab {

// Builds a model with fresh parameters, drawn from the default generator.
using MakeModel = std::function<std::shared_ptr<nn::Module>()>;

struct GptOptions {
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;
  std::int64_t outputs = 0;  // of a position; 0: the vocabulary
  std::int64_t width = 64;
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  // Of the mixture that each block has for its feed-forward layer (nn/mixture_of_experts.h), two for a token; 0: none.
  std::int64_t experts = 0;
};

// 64-128-128-10 with ReLU (first and last width by the data).
std::shared_ptr<nn::Module> make_mlp(std::int64_t inputs, std::int64_t classes);
// Two stages of 3x3 convolution (padding 1; 32, then 64 channels), batch norm, ReLU, 2x2 max pool; then linear.
std::shared_ptr<nn::Module> make_cnn(std::int64_t channels, std::int64_t height, std::int64_t width,
                                     std::int64_t classes);
// 8 numbers between an encoder and a decoder of one hidden layer of 64 with ReLU: as many outputs as inputs.
std::shared_ptr<nn::Module> make_autoencoder(std::int64_t inputs);
// Token and position embeddings, pre-norm causal transformer blocks, a norm and a linear head: [B, T] i64 to logits
// [B, T, vocabulary] (Radford et al. 2019).
std::shared_ptr<nn::Module> make_gpt(const GptOptions& options);

// The model of that name for this data; a name that ends in ".pt2" is a file of torch.export.save, whose model begins
// with the file's weights, for every seed. Error naming what is allowed, also if data and model do not match.
MakeModel model_for(const std::string& name, const data::Dataset& data);
std::vector<std::string> model_names();  // those that model_for knows
// Makes a model known to model_for. A later one replaces an earlier one of that name.
using ModelFor = std::function<MakeModel(const data::Dataset& data)>;
void add_model(const std::string& name, ModelFor model);
// The outputs of a model for a sample: a logit for each class, or a number for each of the targets.
std::int64_t outputs_for(const data::Dataset& data);
// [N, C, H, W] of the data, for a model that reads images; Error naming the model if they are something else.
Shape image_sizes(const std::string& model, const data::Dataset& data);

}  // namespace gradual::lab
