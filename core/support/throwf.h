// throw_error() with a message formatted by fmt. For sources only: no public header includes fmt.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "error.h"

namespace gradual {

template <class... A> [[noreturn]] void throwf(fmt::format_string<A...> text, A&&... arguments) {
  throw_error(fmt::format(text, std::forward<A>(arguments)...));
}
// The same, for errors about a call.
struct OpCall;
[[noreturn]] void throw_error(const OpCall& call, std::string_view why);
template <class... A> [[noreturn]] void throwf(const OpCall& call, fmt::format_string<A...> why, A&&... arguments) {
  throw_error(call, fmt::format(why, std::forward<A>(arguments)...));
}

}  // namespace gradual
