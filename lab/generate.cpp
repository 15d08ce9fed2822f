#include "generate.h"

#include <cmath>
#include <functional>
#include <vector>

#include "../autograd/grad_mode.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::lab {
namespace {

// Logits [B, T, C] of tokens [B, T] that follow those in the caches.
using NextLogits = std::function<Tensor(const Tensor& tokens, nn::KeyValueCaches& caches)>;

void check(const Gpt& model, const Tensor& prompts, const GenerateOptions& options) {
  if (prompts.dtype() != DType::i64 || prompts.dim() != 2 || prompts.size(1) < 1)
    throwf("generate: prompts {} {}; they must be i64 [batch, length], of at least one token",
           to_string(prompts.dtype()), to_string(prompts.sizes()));
  if (options.count < 1) throwf("generate: {} tokens to draw; at least 1 is allowed", options.count);
  if (!(options.temperature >= 0 && std::isfinite(options.temperature)))
    throwf("generate: a temperature of {}; it must be finite and at least 0", options.temperature);
  // The last token that is drawn is not read.
  const std::int64_t read = prompts.size(1) + options.count - 1;
  if (read > model.options().context)
    throwf("generate: {} tokens after prompts of {} need a context of {}, the model's is {}", options.count,
           prompts.size(1), read, model.options().context);
}

// One token for each row of logits [B, C], and its log-probability: [B, 1] each, on the CPU.
Generated draw(const Tensor& given, double temperature, Generator& generator) {
  const Tensor logits = given.to(Device::cpu()).to(DType::f64);
  if (!all(isfinite(logits)).item()) throw_error("generate: the model's logits are not finite");
  const bool greedy = temperature == 0;
  // Without the largest one first, so that no quotient is +Inf.
  const Tensor logs = log_softmax(greedy ? logits : (logits - max(logits, -1, true)) / temperature, -1);
  const Tensor tokens = greedy ? argmax(logs, -1, true) : multinomial(exp(logs), 1, false, generator);
  return {tokens, gather(logs, -1, tokens)};
}

Generated generated(const NextLogits& next, Gpt& model, const Tensor& prompts, const GenerateOptions& options,
                    Generator& generator) {
  check(model, prompts, options);
  const NoGrad off;
  nn::KeyValueCaches caches = model.empty_caches(options.cache);
  std::vector<Tensor> tokens = {prompts};
  std::vector<Tensor> log_probabilities;
  for (std::int64_t i = 0; i < options.count; ++i) {
    const Generated drawn = draw(next(tokens.back(), caches).select(1, -1), options.temperature, generator);
    tokens.push_back(drawn.tokens.to(prompts.device()));
    log_probabilities.push_back(drawn.log_probabilities);
  }
  return {cat(tokens, 1), cat(log_probabilities, 1)};
}

}  // namespace

Generated generate(Gpt& model, const Tensor& prompts, const GenerateOptions& options, Generator& generator) {
  const auto next = [&](const Tensor& tokens, nn::KeyValueCaches& caches) { return model(tokens, caches); };
  return generated(next, model, prompts, options, generator);
}

Generated generate(const amp::RecipeRun& run, Gpt& model, const Tensor& prompts, const GenerateOptions& options,
                   Generator& generator) {
  const auto next = [&](const Tensor& tokens, nn::KeyValueCaches& caches) {
    return run.evaluate([&] { return model(tokens, caches); });
  };
  return generated(next, model, prompts, options, generator);
}

}  // namespace gradual::lab
