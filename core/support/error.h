// The one exception type of the library. A message names the op, the shapes, dtypes and devices at hand,
// and what would have been right.
#pragma once

#include <stdexcept>
#include <string>

namespace gradual {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const std::string& message) { throw Error(message); }

// f(), whose errors are told with `context` in front of them: the file that was being read, for example.
template <class F> auto in_context(const std::string& context, F f) {
  try {
    return f();
  } catch (const Error& e) { fail(context + ": " + e.what()); }
}

}  // namespace gradual
