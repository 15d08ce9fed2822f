#include "atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "error.h"

namespace gradual {
namespace {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string follow_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  return real ? std::string(real.get()) : path;
}

// Short, so that a long name of the file itself does not make one that is too long.
std::string temporary_name(const std::string& target) {
  static std::atomic<unsigned> count{0};
  return folder_of(target) + "/.gradual-" + std::to_string(getpid()) + "-" + std::to_string(count++) + ".tmp";
}

}  // namespace

void AtomicFile::fail_with(const char* what) const {
  const int error = errno;
  fail("cannot write \"" + path_ + "\": " + what + ": " + std::strerror(error));
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(follow_links(path)) {
  struct stat status {};
  const bool exists = stat(target_.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode))
    fail("cannot write \"" + path_ + "\": it is " + (S_ISDIR(status.st_mode) ? "a folder" : "no regular file"));
  // The name may be left over from a killed process that had our number.
  for (int attempt = 0; attempt < 100 && descriptor_ < 0; ++attempt) {
    temporary_ = temporary_name(target_);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) break;
  }
  if (descriptor_ < 0) {
    temporary_.clear();
    fail_with(("a temporary file in \"" + folder_of(target_) + "\"").c_str());
  }
  if (exists) static_cast<void>(fchmod(descriptor_, status.st_mode & 07777));  // as it was, where we may
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
    if (n < 0) fail_with("write");
    p += n;
    count -= static_cast<std::size_t>(n);
  }
}

void AtomicFile::commit() {
  if (fsync(descriptor_) != 0) fail_with("fsync");
  const int closed = close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) fail_with("close");
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail_with("rename");
  temporary_.clear();
  // The new name itself must reach the disk. Not every file system lets a folder be synchronised; the file is
  // complete in any case.
  const int folder = open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
