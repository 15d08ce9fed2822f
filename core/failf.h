// fail() with a message made by fmt. For sources only: fmt stands in no public header.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "error.h"

namespace gradual {

template <class... A> [[noreturn]] void failf(fmt::format_string<A...> text, A&&... arguments) {
  fail(fmt::format(text, std::forward<A>(arguments)...));
}

}  // namespace gradual
