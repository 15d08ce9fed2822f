#include "grad_mode.h"

namespace gradual {

bool grad_enabled() { return chain().autograd != nullptr; }
EnableGrad::EnableGrad() : StageScope(chain().autograd, default_autograd()) {}

}  // namespace gradual
