// Kills the process at a chosen call of the C library that changes files. For programs that link kill_at.cpp.
#pragma once

#include <functional>

namespace gradual::test {

// Runs f in a child process, which is killed at its n-th call of write, rename, unlink, remove, fsync: before the call,
// or after half of the bytes of a write. True if f ended before. Error if it threw. f must need no thread of this
// process.
bool ends_before_call(int n, const std::function<void()>& f);

}  // namespace gradual::test
