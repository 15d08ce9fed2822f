// Reading files, with errors that name the file and say what the system said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gradual {

class InputFile {
 public:
  explicit InputFile(const std::string& path);  // Error where it cannot be opened or is no regular file
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // bytes, when it was opened
  // `count` bytes from `offset` on; Error where the file ends before.
  void read(std::uint64_t offset, void* out, std::size_t count) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

// All bytes of a file.
std::string read_file(const std::string& path);

}  // namespace gradual
