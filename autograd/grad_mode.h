// Switches recording on the tape on and off. Per thread; scopes nest and are restored on exceptions.
#pragma once

#include "../core/ops/dispatch.h"

namespace gradual {

inline bool grad_enabled() { return chain().autograd != nullptr; }

// Nothing is recorded while it lives.
struct NoGrad : StageScope {
  NoGrad() : StageScope(chain().autograd, nullptr) {}
};

// Recording is on while it lives, also inside a NoGrad.
struct EnableGrad : StageScope {
  EnableGrad() : StageScope(chain().autograd, default_autograd()) {}
};

}  // namespace gradual
