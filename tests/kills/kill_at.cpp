#include "kill_at.h"

#include <dlfcn.h>
#include <gradual/core/support/error.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

namespace {

int calls_left = 0;  // 0: none is counted

// True at the call at which the process is to be killed.
bool is_last_call() {
  if (calls_left == 0) return false;
  --calls_left;
  return calls_left == 0;
}

void end_at_once() { kill(getpid(), SIGKILL); }

template <class F> F* next(const char* name) { return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name)); }

}  // namespace

// In front of the C library's own, for the program and all that it loads.
extern "C" {

ssize_t write(int file, const void* bytes, size_t count) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (!is_last_call()) return real(file, bytes, count);
  static_cast<void>(real(file, bytes, count / 2));
  end_at_once();
  return -1;
}

int rename(const char* from, const char* to) {
  static auto* const real = next<int(const char*, const char*)>("rename");
  if (is_last_call()) end_at_once();
  return real(from, to);
}

int unlink(const char* path) {
  static auto* const real = next<int(const char*)>("unlink");
  if (is_last_call()) end_at_once();
  return real(path);
}

int remove(const char* path) {
  static auto* const real = next<int(const char*)>("remove");
  if (is_last_call()) end_at_once();
  return real(path);
}

int fsync(int file) {
  static auto* const real = next<int(int)>("fsync");
  if (is_last_call()) end_at_once();
  return real(file);
}

}  // extern "C"

namespace gradual::test {

bool ends_before_call(int n, const std::function<void()>& f) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw_error("the system starts no more processes");
  if (child == 0) {
    try {
      calls_left = n;
      f();
      calls_left = 0;
    } catch (const std::exception& e) {
      calls_left = 0;
      std::fprintf(stderr, "call %d: %s\n", n, e.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return false;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw_error("the child that is killed at call " + std::to_string(n) + " failed");
  return true;
}

}  // namespace gradual::test
