// The cause of ops that multiply a loss by its scale (Context::cause, Node::cause).
#pragma once

namespace gradual::optim {

// Compare the pointer: every such op has this one.
inline constexpr char kLossScaling[] = "loss scaling";

}  // namespace gradual::optim
