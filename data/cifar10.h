// CIFAR-10 in its binary version (Krizhevsky 2009; cs.toronto.edu/~kriz/cifar.html): records of a label and 3072
// pixels, 32 x 32 in red, then green, then blue.
#pragma once

#include <string>

#include "dataset.h"

namespace gradual::data {

// "data_batch_1.bin" to "data_batch_5.bin" (those that are there, at least one) train and "test_batch.bin" tests.
// Inputs are f32 [N, 3, 32, 32], (pixel / 255 - mean) / deviation by channel (0.4914, 0.4822, 0.4465; 0.2470, 0.2435,
// 0.2616, of the 50,000 training images); targets i64 [N], 0 to 9. Error naming the file for a length that is not a
// number of records, and for a label above 9.
Split cifar10(const std::string& folder);

// CIFAR-100 in its binary version: "train.bin" and "test.bin", records of a coarse label (of 20), a fine label (of 100)
// and the pixels. Mean and deviation by channel are 0.5071, 0.4865, 0.4409; 0.2673, 0.2564, 0.2762. Errors as above.
Split cifar100(const std::string& folder, bool coarse = false);

// The usual augmentation of small images [N, C, H, W] (He et al. 2016): each is mirrored with probability 1/2, and
// moved by up to `margin` pixels either way, with zeros where nothing is left. Draws from the default generator.
Batch flip_and_crop(const Batch& batch, std::int64_t margin = 4);

}  // namespace gradual::data
