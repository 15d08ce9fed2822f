#include "built_in_tasks.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/generator.h"
#include "../data/digits.h"

namespace gradual::lab {

data::Dataset teacher_and_student() {
  constexpr std::int64_t kSamples = 2000;
  constexpr std::int64_t kInputs = 16;
  constexpr std::int64_t kHidden = 32;
  constexpr std::int64_t kOutputs = 4;
  Generator generator(0);
  const GeneratorScope scope(generator);
  const Scoped<Chain> bare(chain(), {});
  const TensorOptions f64{.dtype = DType::f64};
  const Tensor x = randn({kSamples, kInputs}, f64);
  const Tensor first = randn({kInputs, kHidden}, f64) * (1.5 / std::sqrt(static_cast<double>(kInputs)));
  const Tensor second = randn({kHidden, kOutputs}, f64);
  const Tensor said = matmul(tanh(matmul(x, first)), second);
  const Tensor centred = said - mean(said, {0}, true);
  const Tensor spread = sqrt(mean(square(centred), {0}, true));
  const Tensor targets = centred / spread + randn({kSamples, kOutputs}, f64) * 0.1;
  return {.inputs = x.to(DType::f32), .targets = targets.to(DType::f32), .name = "regression"};
}

data::Dataset bracket_depths() {
  constexpr std::int64_t kSamples = 2000;
  constexpr std::int64_t kLength = 32;
  constexpr std::int64_t kDeepest = 7;
  constexpr std::int64_t kOpen = 2;
  constexpr std::int64_t kClose = 3;
  Generator generator(0);
  const Scoped<Chain> bare(chain(), {});
  const std::vector<double> draws = rand({kSamples, kLength}, {.dtype = DType::f64}, generator).to_vector<double>();
  std::vector<std::int64_t> tokens, depths;
  std::int64_t depth = 0;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (i % kLength == 0) depth = 0;
    std::int64_t token = static_cast<std::int64_t>(draws[i] * 4);
    if (token == kOpen && depth == kDeepest) token = kClose;
    if (token == kClose && depth == 0) token = kOpen;
    depth += token == kOpen ? 1 : token == kClose ? -1 : 0;
    tokens.push_back(token);
    depths.push_back(depth);
  }
  return {.inputs = from_data(tokens, {kSamples, kLength}),
          .targets = from_data(depths, {kSamples, kLength}),
          .classes = kDeepest + 1,
          .name = "brackets",
          .tokens = kClose + 1};
}

data::Dataset reconstructed_digits() {
  const data::Dataset digits = data::digits();
  return {.inputs = digits.inputs, .targets = digits.inputs, .name = "autoencoder"};
}

}  // namespace gradual::lab
