#include "terminal.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace gradual::lab {
namespace {

volatile std::sig_atomic_t asked = 0;

void on_signal(int signal) {
  if (asked != 0 && signal != SIGPIPE) std::_Exit(128 + signal);
  if (asked == 0) asked = signal;
}

}  // namespace

TableOptions table_options(bool wide) {
  const char* no_colour = std::getenv("NO_COLOR");
  return {.wide = wide, .colour = isatty(STDOUT_FILENO) == 1 && (!no_colour || !*no_colour)};
}

void stop_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal, SIG_IGN) != SIG_IGN) std::signal(signal, on_signal);
  std::signal(SIGPIPE, on_signal);
}

int stop_signal() { return asked; }

}  // namespace gradual::lab
