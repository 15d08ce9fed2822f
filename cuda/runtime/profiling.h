// Reports of kernels and library calls to an active device::Watch.
#pragma once

#include <typeinfo>

namespace gradual::cuda {

// The receiver of names; null if this thread has no Watch.
struct Notes;
inline thread_local Notes* notes = nullptr;

void note(Notes& to, const std::type_info& kernel);
void note(Notes& to, const char* call);
// Reports a library call by its function's name, which must live as long as the process.
inline void note_call(const char* call) {
  if (notes) note(*notes, call);
}

}  // namespace gradual::cuda
