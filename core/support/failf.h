// fail() with a message formatted by fmt. For sources only: no public header includes fmt.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "error.h"

namespace gradual {

template <class... A> [[noreturn]] void failf(fmt::format_string<A...> text, A&&... arguments) {
  fail(fmt::format(text, std::forward<A>(arguments)...));
}
// The same, for errors about a call.
struct OpCall;
[[noreturn]] void fail(const OpCall& call, std::string_view why);
template <class... A> [[noreturn]] void failf(const OpCall& call, fmt::format_string<A...> why, A&&... arguments) {
  fail(call, fmt::format(why, std::forward<A>(arguments)...));
}

}  // namespace gradual
