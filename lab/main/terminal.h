// Output of the terminal program, the signals that stop it, and its stacks.
#pragma once

#include <fmt/format.h>
#include <gradual/core/support/printable.h>
#include <gradual/lab/table.h>

#include <cstdio>
#include <functional>
#include <string>
#include <utility>

namespace gradual::lab {

// Writes to stdout or stderr; what is lost is an error at the end (status_of_output()).
void say_styled(std::FILE* to, const std::string& text);  // with the colours in it
template <class... A> void say(std::FILE* to, fmt::format_string<A...> text, A&&... arguments) {
  say_styled(to, printable(fmt::format(text, std::forward<A>(arguments)...)));
}

// Writes to stdout what has tables: in 80 columns (lab/narrow.h), or as it is.
void say_text(const std::string& text, bool wide);
inline constexpr const char* kWideHelp = "lines as long as they are, not of 80 columns";

// Opens what was closed when the program started of stdin, stdout and stderr, so that no file gets their numbers and
// what is meant for them. Writing there fails.
void open_standard_streams();
// The exit status of the program, which would be `status`: another one, after a message, if not all of stdout could be
// written.
int status_of_output(int status);

// How tables are printed: in colour on a terminal, unless the environment has NO_COLOR (no-color.org).
TableOptions table_options(bool wide);

// After this call SIGINT, SIGTERM, SIGHUP and SIGPIPE request a stop: the program writes results and report of the runs
// so far. A second signal, except SIGPIPE, ends it at once. The first three stay ignored if the program is started with
// them ignored, as by nohup.
void stop_on_signals();
// The signal that requested the stop; 0: none.
int stop_signal();

// For a program that was started with a small stack limit (ulimit -s).
// Runs `work`, which must not throw, and returns when it is done. If the stack limit is below 1 MiB, `work` runs on a
// thread with a stack of 8 MiB, and so does every thread that is started later: kernels and libraries need space for
// their frames, and the size depends on the processor (AMX: 8 KiB for the registers alone).
void on_large_stack(const std::function<void()>& work);

}  // namespace gradual::lab
