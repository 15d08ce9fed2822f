// The one exception type of the library. A message names the op, the shapes, dtypes and devices,
// and what would be right.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace gradual {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void throw_error(const std::string& message) { throw Error(message); }

// Returns a function or pointer; Error if it is null.
template <class F> F&& not_null(F&& f, const char* what) {
  if (!f) throw_error(std::string(what) + " is null");
  return std::forward<F>(f);
}

// Calls f() and puts `context` in front of the messages of its errors, for example the name of the file being read.
template <class F> auto in_context(const std::string& context, F f) {
  try {
    return f();
  } catch (const Error& e) { throw_error(context + ": " + e.what()); }
}

}  // namespace gradual
