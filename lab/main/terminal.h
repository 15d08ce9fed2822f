// What the terminal program writes, and the signals that stop it.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace gradual::lab {

// Writes to stdout or stderr. A closed stream is no error here: SIGPIPE stops the run.
inline void put(std::FILE* to, const std::string& text) { static_cast<void>(std::fputs(text.c_str(), to)); }
template <class... A> void say(std::FILE* to, fmt::format_string<A...> text, A&&... arguments) {
  put(to, fmt::format(text, std::forward<A>(arguments)...));
}

// From now on SIGINT, SIGTERM, SIGHUP and SIGPIPE ask the program to stop: it then writes results and report of the runs so
// far. A second signal other than SIGPIPE ends it at once.
void stop_on_signals();
// The signal that asked for the stop; 0: none.
int stop_signal();

}  // namespace gradual::lab
