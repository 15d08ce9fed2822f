// How far two correct implementations of a training step may differ.
//
//   const Tolerances t = tolerance(make_model, data, amp::recipe("amp-bf16"), {.study = {.step = 100}});
//   std::puts(to_string(t).c_str());
//   for (const Exceeded& wrong : t.exceeded(values_of_another_implementation)) ...
//
// Two implementations are free in the order and the grouping of every sum (any tree: blocks, ranks, splits), in fused
// or separate multiplications and additions, and in roundings that this moves. Sums are added up in f32 before the
// result is rounded: a rank that rounds its part of a sum to 16 bits first is another recipe. They have the same
// inputs, parameters and state, and round results to the dtypes that the recipe gives them, and operands by its
// quantizers, with the same random words. The reference is the step with exact sums, each result rounded once.
// docs/tolerance.md derives the bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../amp/recipe.h"
#include "../core/files/state_dict.h"
#include "models.h"
#include "recorded_ops.h"
#include "split.h"
#include "study.h"
#include "tasks.h"

namespace gradual::lab {

enum class ToleratedKind : std::uint8_t { activation, gradient, parameter_gradient, update };
std::string_view to_string(ToleratedKind kind);

// A tensor of the step, and how far another correct implementation may be from the reference. Numbers are those of the
// largest element.
struct Tolerated {
  std::string name;  // "fc1.linear", the second one of a layer "fc1.linear#2"; of a parameter "grad:fc1.weight"
  ToleratedKind kind = ToleratedKind::activation;
  bool cast = false;       // the result of a cast
  bool quantized = false;  // a quantised operand
  DType dtype = DType::f32;
  Shape sizes = {};
  Tensor reference;  // f64, as `always` and `probably`
  Tensor always;     // of each element: the bound for all orders
  Tensor probably;   // of each element: where errors are as simulations have them; at most `always`
  double size = 0;   // the largest magnitude; of an update what it adds to the parameter
  double bound = 0;
  double local = 0;                  // the bound of the op alone, with inputs as the reference has them
  double tolerance = 0;              // of `probably`
  double of_norms = 0;               // theory that knows only the norms of operands; 0: not asked for
  double sampled = 0;                // what sampled orders differ by
  double own = 0;                    // what Gradual's own step differs by
  std::optional<double> split = {};  // what the step under the split differs by; none: it was not compared
  // A difference of an element over `always` and over `probably`, the largest of samples, own step and split.
  double worst = 0;
  double worst_probably = 0;
};

// A tensor of an implementation that is not within its tolerance.
struct Exceeded {
  std::string name;
  double difference = 0;  // the largest
  double worst = 0;       // a difference of an element over its tolerance; Inf for NaN and where nothing is allowed
  bool always = false;    // it is outside of the bound, too: no order of sums explains it
};

struct Tolerances {
  std::string recipe = {};
  std::string data = {};
  std::int64_t step = 0;
  int orders = 0;
  double factor = 0;       // of the tolerances over the spread of simulations: Student's t. It gives all elements
                           // together 99%, if the errors of ops are independent and normal
  std::string split = {};  // what was emulated (describe(Split)); empty: nothing
  std::vector<Tolerated> tensors = {};

  // The tensors of `values`, by their names here, that are not within `probably`, in the order of `values`. Error for a
  // name that is not here, and for other sizes.
  std::vector<Exceeded> exceeded(const StateDict& values) const;
  // The median of bound / sampled over tensors with a sampled difference; bound: &Tolerated::tolerance ..
  double median_ratio(double Tolerated::*bound) const;
};

struct ToleranceOptions {
  StudyOptions study = {};
  int orders = 16;        // sampled
  int parts = 0;          // of each sum in a sampled order, if it is in f32: 1, 2, 4, 8 ..; 0: 1, 2, 4 or 8 at random
  bool of_norms = false;  // also what theory says that knows only norms
  std::optional<Split> split = {};  // the step under it is compared, too
};

// Trains with the recipe up to a step, and takes that step. Error for ops and quantizers without a bound, and for a
// loss that is not finite. A quantised layer has the name of its op, and its operands are "LAYER.quantize".
Tolerances tolerance(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                     const ToleranceOptions& options = {});
Tolerances tolerance_of(const RecordedOps& ops, const ToleranceOptions& options = {});

// The values of a recorded step by their names in Tolerances.
StateDict values_of(const RecordedOps& ops);
// The values of the step under a split: activations but casts, their gradients, gradients of parameters, and parameters
// after the update. What is inside of a split op has no value, nor have gradients in modules of split attention and
// those of a matrix by which matmul multiplies several. Error as for SplitScope.
StateDict values_under(const Split& split, const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe,
                       const StudyOptions& study = {});

// The table; all: with the gradients of activations, casts and quantised operands.
std::string to_string(const Tolerances& t, bool all = false);
std::string to_json(const Tolerances& t);
// NAME and NAME.tolerance for each tensor: the reference in its dtype, `probably` in f32, rounded up.
StateDict golden_of(const Tolerances& t);

}  // namespace gradual::lab
