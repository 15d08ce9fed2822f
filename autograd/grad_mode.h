// Whether ops are recorded on the tape. Per thread; scopes nest and are restored on exceptions.
#pragma once

#include "../core/ops/dispatch.h"

namespace gradual {

bool grad_enabled();

// Nothing is recorded while it lives.
class NoGrad : StageScope {
 public:
  NoGrad() : StageScope(chain().autograd, nullptr) {}
};

// Recording is on while it lives, inside a NoGrad too.
class EnableGrad : StageScope {
 public:
  EnableGrad();
};

}  // namespace gradual
