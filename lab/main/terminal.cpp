#include "terminal.h"

#include <fcntl.h>
#include <gradual/lab/narrow.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "option_parser.h"

namespace gradual::lab {
namespace {

volatile std::sig_atomic_t asked = 0;

void on_signal(int signal) {
  if (asked != 0 && signal != SIGPIPE) std::_Exit(128 + signal);
  if (asked == 0) asked = signal;
}

// The signals that the program was started to ignore (nohup, a shell's &), by bit. They are read before libraries are
// initialised: UCX, which Open MPI 5 loads, installs a handler of SIGHUP then.
unsigned long ignored = 0;
void read_ignored(int, char**, char**) {
  struct sigaction now {};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN) ignored |= 1ul << signal;
}
#ifdef __ELF__
[[gnu::section(".preinit_array"), gnu::used]] void (*const read_first)(int, char**, char**) = read_ignored;
#endif

}  // namespace

void say_styled(std::FILE* to, const std::string& text) {
  static_cast<void>(std::fputs(text.c_str(), to));  // status_of_output() tells what was lost
}

void say_text(const std::string& text, bool wide) { say(stdout, "{}", wide ? text : narrowed(text)); }

void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(stream, F_GETFD) < 0) static_cast<void>(open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY));
}

int status_of_output(int status) {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost) return status;
  if (errno == EPIPE || stop_signal() == SIGPIPE) return status != 0 ? status : 128 + SIGPIPE;
  const std::string why = errno != 0 ? std::string(": ") + std::strerror(errno) : "";
  say(stderr, "\n{}: stdout could not be written{}; what is missing there is lost\n", program_name(), why);
  return status != 0 ? status : 1;
}

TableOptions table_options(bool wide) {
  const char* no_colour = std::getenv("NO_COLOR");
  return {.wide = wide, .colour = isatty(STDOUT_FILENO) == 1 && (!no_colour || !*no_colour)};
}

void stop_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    std::signal(signal, (ignored >> signal & 1) != 0 ? SIG_IGN : on_signal);
  std::signal(SIGPIPE, on_signal);
}

int stop_signal() { return asked; }

void on_large_stack(const std::function<void()>& work) {
#ifdef __GLIBC__
  constexpr std::size_t kSmall = 1 << 20;
  constexpr std::size_t kLarge = 8 << 20;
  rlimit limit{};
  pthread_attr_t attributes;
  if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kSmall && pthread_attr_init(&attributes) == 0) {
    const bool set =
        pthread_attr_setstacksize(&attributes, kLarge) == 0 && pthread_setattr_default_np(&attributes) == 0;
    pthread_attr_destroy(&attributes);
    if (set) return std::thread(work).join();
  }
#endif
  work();
}

}  // namespace gradual::lab
