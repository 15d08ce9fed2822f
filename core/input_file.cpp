#include "input_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "error.h"

namespace gradual {

std::string read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) { fail("cannot read \"" + path + "\": " + why); };
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(S_ISDIR(status.st_mode) ? "it is a folder" : "it is no regular file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) refuse(std::strerror(errno));
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) refuse("it changed while it was read");
  return bytes;
}

}  // namespace gradual
