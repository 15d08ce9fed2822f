#include "modes.h"

namespace gradual {

Modes& modes() {
  [[gnu::tls_model("initial-exec")]] constinit thread_local Modes own;
  return own;
}

Category& current_category() { return modes().category; }
std::optional<Accumulator>& current_accumulator() { return modes().accumulator; }

}  // namespace gradual
