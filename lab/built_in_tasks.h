// Small tasks that are no classification of images, made from a fixed seed: each trains in seconds.
#pragma once

#include "../data/dataset.h"

namespace gradual::lab {

// A student learns what a teacher says: inputs [2000, 16] are normal, targets [2000, 4] those of a fixed network
// 16-32-4 with tanh, with variance 1 each, and normal noise of deviation 0.1, which is the least rmse.
data::Dataset teacher_and_student();

// Labels for a sequence: inputs [2000, 32] are letters (0, 1), opening (2) and closing (3) brackets, targets [2000, 32]
// how deep each position lies in brackets, 0 to 7. A causal model can know it.
data::Dataset bracket_depths();

// The digits, with themselves as targets: pixels [1797, 1, 8, 8].
data::Dataset reconstructed_digits();

}  // namespace gradual::lab
