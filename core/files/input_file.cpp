#include "input_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "../support/throwf.h"

namespace gradual {

std::string read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) { throw_error("cannot read \"" + path + "\": " + why); };
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) refuse(std::strerror(errno));
  if (!S_ISREG(status.st_mode)) refuse(S_ISDIR(status.st_mode) ? "it is a folder" : "it is not a regular file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) refuse(std::strerror(errno));
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  if (std::fread(bytes.data(), 1, bytes.size(), file.get()) != bytes.size()) refuse("it changed while it was read");
  return bytes;
}

Tensor tensor_of_bytes(DType dtype, const Shape& sizes, std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little, "the bytes are copied as they are");
  const std::size_t width = size_of(dtype);
  if (bytes.size() % width != 0 || bytes.size() / width != static_cast<std::size_t>(numel(sizes)))
    throwf("{} {} does not take the {} bytes that are there", to_string(dtype), to_string(sizes), bytes.size());
  const Tensor t = empty(sizes, {.dtype = dtype});
  if (!bytes.empty()) std::memcpy(t.raw(), bytes.data(), bytes.size());
  auto* const data = static_cast<std::uint8_t*>(t.raw());
  for (std::size_t i = 0; dtype == DType::bool_ && i < bytes.size(); ++i) data[i] = data[i] != 0 ? 1 : 0;
  return t;
}

}  // namespace gradual
