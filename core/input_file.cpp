#include "input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "error.h"

namespace gradual {

InputFile::InputFile(const std::string& path) : path_(path) {
  struct stat status {};
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not block us
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) {
    const int error = errno;
    if (descriptor_ >= 0) close(descriptor_);
    fail("cannot read \"" + path + "\": " + std::strerror(error));
  }
  if (!S_ISREG(status.st_mode)) {
    close(descriptor_);
    fail("cannot read \"" + path + "\": it is " + (S_ISDIR(status.st_mode) ? "a folder" : "no regular file"));
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(std::uint64_t offset, void* out, std::size_t count) const {
  auto* p = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t n = pread(descriptor_, p, count, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read \"" + path_ + "\": " + std::strerror(errno));
    if (n == 0)
      fail("cannot read \"" + path_ + "\": it ends at byte " + std::to_string(offset) + ", " +
           std::to_string(count) + " bytes early");
    p += n;
    offset += static_cast<std::uint64_t>(n);
    count -= static_cast<std::size_t>(n);
  }
}

std::string read_file(const std::string& path) {
  const InputFile file(path);
  std::string bytes(file.size(), '\0');
  file.read(0, bytes.data(), bytes.size());
  return bytes;
}

}  // namespace gradual
