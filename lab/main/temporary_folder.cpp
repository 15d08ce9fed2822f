#include "temporary_folder.h"

#include <fcntl.h>
#include <gradual/core/support/error.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = "/.gradual-lives";

// Removes folders of this kind whose process has ended. One without the file is not of this kind, or is being made.
void remove_stale(const std::string& begin) {
  const fs::path first = begin;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(first.parent_path(), ignored)) {
    if (!entry.path().filename().string().starts_with(first.filename().string())) continue;
    const int file = open((entry.path().string() + kLock).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), ignored);
    close(file);
  }
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::string& kind) {
  const std::string begin = (fs::temp_directory_path() / (kind + "-")).string();
  remove_stale(begin);
  path_ = begin + "XXXXXX";
  if (!mkdtemp(path_.data())) throw_error("cannot make a folder like " + path_);
  // Locked before it has its name: a file that is not locked is taken for that of a process that has ended.
  const std::string name = path_ + kLock;
  const std::string made = name + ".new";
  lock_ = open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (lock_ < 0) throw_error("cannot write into the folder " + path_);
  flock(lock_, LOCK_EX);
  fs::rename(made, name);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  close(lock_);
}

}  // namespace gradual::lab
