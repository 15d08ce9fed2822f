// Output of the terminal program, and the signals that stop it.
#pragma once

#include <fmt/format.h>
#include <gradual/lab/table.h>

#include <cstdio>
#include <string>

namespace gradual::lab {

// Writes to stdout or stderr. A closed stream is no error here: SIGPIPE stops the run.
inline void put(std::FILE* to, const std::string& text) { static_cast<void>(std::fputs(text.c_str(), to)); }
template <class... A> void say(std::FILE* to, fmt::format_string<A...> text, A&&... arguments) {
  put(to, fmt::format(text, std::forward<A>(arguments)...));
}

// How tables are printed: in colour on a terminal, unless the environment has NO_COLOR (no-color.org).
TableOptions table_options(bool wide);

// After this call SIGINT, SIGTERM, SIGHUP and SIGPIPE request a stop: the program writes results and report of the runs
// so far. A second signal, except SIGPIPE, ends it at once. The first three stay ignored if the program is started with
// them ignored, as by nohup.
void stop_on_signals();
// The signal that requested the stop; 0: none.
int stop_signal();

}  // namespace gradual::lab
