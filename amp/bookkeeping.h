// Work of a run on its own state between the ops of the training.
#pragma once

#include "../autograd/grad_mode.h"
#include "../core/ops/dispatch.h"

namespace gradual::amp {

// While it lives, ops are not recorded, cast, rounded or observed.
struct Bookkeeping : Pinned {
  NoGrad off;
  StageScope amp{chain().amp, nullptr};
  StageScope observe{chain().observe, nullptr};
  StageScope results{chain().results, nullptr};
};

}  // namespace gradual::amp
