#include "folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "../core/support/throwf.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "/.lock";

thread_local std::set<std::string> held;  // by this thread

// What the holder wrote: its process.
std::string holder(int file) {
  char text[32] = {};
  const ssize_t length = pread(file, text, sizeof text - 1, 0);
  const std::string process = length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "";
  return process.empty() ? "another process" : "process " + process + ", or one that it started,";
}

// Whether the path still names the open file: its last holder removes it.
bool names(const std::string& path, int file) {
  struct stat there {};
  struct stat here {};
  if (stat(path.c_str(), &there) != 0 || fstat(file, &here) != 0) return false;
  return there.st_dev == here.st_dev && there.st_ino == here.st_ino;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_error("cannot make the folder " + folder + ": " + error.message());
  const std::string path = fs::canonical(folder).string() + kName;
  if (held.contains(path)) return;
  do {
    if (file_ >= 0) close(file_);
    file_ = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW, 0666);  // no O_CLOEXEC: processes started here hold it
    if (file_ < 0) throwf("cannot write into the folder {}: {}", folder, std::strerror(errno));
    // A file system without locks gives another error; then the folder is used without one.
    if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      const std::string by = holder(file_);
      close(file_);
      throwf("{} writes into the folder {}; wait for its end, or choose another folder", by, folder);
    }
  } while (!names(path, file_));
  const std::string process = std::to_string(getpid());
  const auto length = static_cast<ssize_t>(process.size());
  if (ftruncate(file_, 0) != 0 || pwrite(file_, process.data(), process.size(), 0) != length) {
    const std::string why = std::strerror(errno);
    close(file_);
    throwf("cannot write into the folder {}: {}", folder, why);
  }
  path_ = path;
  held.insert(path_);
}

FolderLock::~FolderLock() {
  if (path_.empty()) return;
  held.erase(path_);
  unlink(path_.c_str());
  close(file_);
}

}  // namespace gradual::lab
