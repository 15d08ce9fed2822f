#include "atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

#include "../support/throwf.h"

namespace gradual {

namespace fs = std::filesystem;

[[noreturn]] static void fail(const std::string& path, const std::string& what) {
  throwf("cannot write \"{}\": {}: {}", path, what, std::strerror(errno));
}

// Removes the temporary files of killed processes from a folder, at this process's first write there. A process that
// lives holds a lock on its own.
static void remove_stale(const std::string& folder) {
  static std::mutex mutex;
  static std::set<std::string> seen;
  const std::lock_guard guard(mutex);
  if (!seen.insert(folder).second) return;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string path = entry.path();
    const std::string name = entry.path().filename();
    if (!name.starts_with(".gradual-") || !name.ends_with(".tmp")) continue;
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) continue;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(file);
  }
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(path) {
  std::error_code ignored;
  if (const fs::path real = fs::canonical(path, ignored); !real.empty()) target_ = real;
  const fs::file_status status = fs::status(target_, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throwf("cannot write \"{}\": it is {}", path_, fs::is_directory(status) ? "a folder" : "not a regular file");
  folder_ = fs::path(target_).parent_path();
  if (folder_.empty()) folder_ = ".";
  remove_stale(folder_);
  // A short name, because the file's own name may be of maximal length. A file of this name may be another process's.
  // One that lost its name before it was locked was taken for stale.
  static std::atomic<unsigned> count{0};
  struct stat made {};
  do {
    if (descriptor_ >= 0) close(descriptor_);
    temporary_ = fmt::format("{}/.gradual-{}-{}.tmp", folder_, getpid(), count++);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) {
      flock(descriptor_, LOCK_EX);
      fstat(descriptor_, &made);
    }
  } while (descriptor_ < 0 ? errno == EEXIST : made.st_nlink == 0);
  if (descriptor_ < 0) {
    temporary_.clear();
    fail(path_, "no file can be made in its folder");
  }
  if (fs::exists(status)) fs::permissions(temporary_, status.permissions(), ignored);  // the old ones, if allowed
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(const void* bytes, std::size_t count) {
  const auto* p = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t n = ::write(descriptor_, p, count);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, "write");
    p += n;
    count -= static_cast<std::size_t>(n);
  }
}

void AtomicFile::commit() {
  if (fsync(descriptor_) != 0) fail(path_, "fsync");
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail(path_, "rename");  // while the lock is held
  temporary_.clear();
  // The rename must reach the disk too. Not every file system can synchronise a folder; the file is complete in any
  // case.
  const int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  static_cast<void>(fsync(folder));
  close(folder);
}

void write_file_atomically(const std::string& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

}  // namespace gradual
