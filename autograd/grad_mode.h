// Switches recording on the tape on and off. Per thread; scopes nest and are restored on exceptions.
#pragma once

#include "../core/ops/dispatch.h"

namespace gradual {

bool grad_enabled();

// Nothing is recorded while it lives.
class NoGrad : StageScope {
 public:
  NoGrad() : StageScope(chain().autograd, nullptr) {}
};

// Recording is on while it lives, also inside a NoGrad.
class EnableGrad : StageScope {
 public:
  EnableGrad();
};

}  // namespace gradual
