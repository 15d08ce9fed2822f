// What kernels and library calls report while somebody watches (device::Watch).
#pragma once

#include <typeinfo>

namespace gradual::cuda {

// Where names go, or null: nobody watches this thread.
struct Notes;
inline thread_local Notes* notes = nullptr;

void note(Notes& to, const std::type_info& kernel);
void note(Notes& to, const char* call);
// A call of a library: its function's name, which must live as long as the process.
inline void note_call(const char* call) {
  if (notes) note(*notes, call);
}

}  // namespace gradual::cuda
