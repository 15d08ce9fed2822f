// One step of an exported graph, and how far rounding may move its results and gradients. All numbers are f64.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "../pt2/executor.h"
#include "../pt2/program.h"
#include "judge_attention.h"
#include "judge_units.h"

namespace gradual::lab {

// Tensors by the values of the graph that they stand for.
using ValueTensors = std::vector<std::pair<int, Tensor>>;

class StepBounds {
 public:
  StepBounds(const pt2::Program& program, pt2::Run& run);

  // The tensors that a step reads, as they are now.
  ValueTensors inputs_of(const pt2::Step& step) const;
  // What the step gives with these inputs: each value that it makes or changes. The run's values stay as they are.
  ValueTensors evaluate(const pt2::Step& step, const ValueTensors& inputs);

  // By how much each element of the outputs may differ; `errors` are those of the inputs (undefined: none). Undefined
  // where nothing may. Of integers and masks, 1 where an element may be another one.
  std::vector<Tensor> of_outputs(const pt2::Step& step, const ValueTensors& inputs, const std::vector<Tensor>& errors,
                                 const ValueTensors& outputs, const Units& units);
  // The same of the gradients of the inputs, which `gradients` of the outputs, with their errors, give.
  std::vector<Tensor> of_gradients(const pt2::Step& step, const ValueTensors& inputs, const std::vector<Tensor>& errors,
                                   const ValueTensors& gradients, const std::vector<Tensor>& gradient_errors,
                                   const std::vector<Tensor>& results, const Units& units);
  // The gradients of the inputs; undefined where there is none.
  std::vector<Tensor> gradients(const pt2::Step& step, const ValueTensors& inputs, const ValueTensors& gradients);

 private:
  struct Terms {
    double forward = 0;   // terms of each sum; 0: the step is no plain sum of products
    double backward = 0;  // of the sums in its gradients
  };
  Terms terms_of(const pt2::Step& step, const ValueTensors& inputs, const ValueTensors& outputs) const;
  // How far operands are moved: by a part of themselves, and by a number.
  struct Move {
    double relative = 0;
    double least = 0;
  };
  Tensor moved(const Tensor& x, const Tensor& error, const Move& by, int direction);
  ValueTensors moved_inputs(const ValueTensors& inputs, const std::vector<Tensor>& errors, const Move& by, int sample);
  // The largest changes when operands are moved: an estimate.
  std::vector<Tensor> of_moved_operands(const pt2::Step& step, const ValueTensors& inputs,
                                        const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                        const Units& units);
  // None for other ops than sums, differences and quotients.
  static std::optional<Tensor> of_arithmetic(const pt2::Step& step, const ValueTensors& inputs,
                                             const std::vector<Tensor>& errors, const ValueTensors& outputs,
                                             const Units& units);
  std::vector<Tensor> of_sum(const pt2::Step& step, const ValueTensors& inputs, const std::vector<Tensor>& errors,
                             const ValueTensors& outputs, const Units& units, double terms);
  // An attention, and the values of the graph that it reads; -1: none.
  struct Attention {
    AttentionStep step;
    int q = -1;
    int k = -1;
    int v = -1;
    int mask = -1;  // one of floats
  };
  // None for another op.
  static std::optional<Attention> attention_of(const pt2::Step& step, const ValueTensors& inputs,
                                               const std::vector<Tensor>& errors);
  static std::vector<Tensor> of_attention_gradients(const Attention& attention, const ValueTensors& inputs,
                                                    const Tensor& gradient, const Tensor& gradient_error,
                                                    const Units& units);
  static std::vector<Tensor> contested_places(const pt2::Step& step, const ValueTensors& inputs,
                                              const std::vector<Tensor>& errors, const ValueTensors& outputs);
  std::vector<Tensor> of_product_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                           const std::vector<Tensor>& errors, const ValueTensors& given,
                                           const std::vector<Tensor>& gradient_errors,
                                           const std::vector<Tensor>& results, const Units& units, double terms);
  std::vector<Tensor> of_sampled_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                           const std::vector<Tensor>& errors, const ValueTensors& given,
                                           const std::vector<Tensor>& gradient_errors,
                                           const std::vector<Tensor>& results, const Units& units);
  std::vector<Tensor> of_choice_gradients(const pt2::Step& step, const ValueTensors& inputs,
                                          const std::vector<Tensor>& errors, const ValueTensors& given,
                                          const std::vector<Tensor>& gradient_errors, const Units& units);

  const pt2::Program& program_;
  pt2::Run& run_;
  pt2::Executor executor_;
  std::mt19937_64 random_;
};

}  // namespace gradual::lab
