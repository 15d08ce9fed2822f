// Sampling from a language model, a token at a time, with a cache of keys and values.
//
//   model.eval();
//   const lab::GenerateOptions options{.count = 3, .cache = nn::cache_quantizer("e4m3fn")};
//   const lab::Generated drawn = lab::generate(run, model, prompts, options);
#pragma once

#include <cstdint>
#include <optional>

#include "../amp/recipe.h"
#include "../core/support/generator.h"
#include "gpt.h"

namespace gradual::lab {

struct GenerateOptions {
  std::int64_t count = 1;               // tokens for each prompt, at least 1
  double temperature = 1;               // logits are divided by it; 0: the most likely token, the first of equal ones
  std::optional<Quantizer> cache = {};  // see nn::KeyValueCache
};

struct Generated {
  Tensor tokens;  // i64 [B, T + count] on the prompts' device: the prompts and what follows
  // f64 [B, count] on the CPU: of each drawn token under the distribution that it was drawn from; at temperature 0
  // under that of temperature 1.
  Tensor log_probabilities;
};

// Continues prompts, i64 [B, T] with T of at least 1 for all. Probabilities are computed in f64 from the model's
// logits, on the CPU: equal logits and generators give equal tokens on any device.
// The caller puts the model into eval mode. Error for more tokens than the context, T + count - 1, and for logits that
// are not finite.
Generated generate(Gpt& model, const Tensor& prompts, const GenerateOptions& options = {},
                   Generator& generator = default_generator());
// The same under the recipe of a run, whose model it is.
Generated generate(const amp::RecipeRun& run, Gpt& model, const Tensor& prompts, const GenerateOptions& options = {},
                   Generator& generator = default_generator());

}  // namespace gradual::lab
