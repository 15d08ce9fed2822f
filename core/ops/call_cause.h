// Why an op runs that the program did not write.
#pragma once

#include <cstdint>
#include <string_view>

namespace gradual {

enum class CauseKind : std::uint8_t {
  program,            // no cause: the program wrote the op
  autocast,           // a cast to the dtype of a policy
  promotion,          // a cast to the common dtype of an op's inputs
  composite,          // a cast within an op that is made of ops
  kept_for_backward,  // a copy of a value that is about to be overwritten
  recomputation,      // a checkpointed segment that runs again
  loss_scaling,       // the product of the loss and its scale
  loss_scale_check,   // the search for NaN and Inf that quantised operands hide
  statistics,         // running statistics of a normalisation
  conversion          // a module that moves to another dtype or device
};

// A cause with its text for people. Causes live as long as the process.
struct CallCause {
  CauseKind kind;
  const char* text;
};

namespace causes {
inline constexpr CallCause program{CauseKind::program, ""};
inline constexpr CallCause attention{CauseKind::composite, "attention in f32"};
inline constexpr CallCause recomputation{CauseKind::recomputation, "recomputed in backward"};
inline constexpr CallCause loss_scaling{CauseKind::loss_scaling, "loss scaling"};
inline constexpr CallCause loss_scale_check{CauseKind::loss_scale_check, "the loss scale's check"};
inline constexpr CallCause statistics{CauseKind::statistics, "running statistics"};
inline constexpr CallCause conversion{CauseKind::conversion, "Module::to"};
}  // namespace causes

// A cause whose text names an op: "promotion in add". Equal arguments give the same object.
const CallCause& intern_cause(CauseKind kind, std::string_view text);

}  // namespace gradual
