// Writing files so that nobody ever sees half of one: the bytes go to a temporary file in the same folder, which
// takes the file's name in one step when it is complete and on disk.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "../support/scoped.h"

namespace gradual {

class AtomicFile : Pinned {
 public:
  // Opens the temporary file. A symbolic link is followed, so that the file behind it is replaced. Error where the
  // folder cannot be written or `path` names something that is no regular file.
  explicit AtomicFile(const std::string& path);
  // Removes the temporary file unless commit() has returned; `path` is then as it was before.
  ~AtomicFile();

  void write(const void* bytes, std::size_t count);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  // fsync, rename, fsync of the folder. Error (and the old file untouched) where one of the first two fails.
  void commit();

 private:
  [[noreturn]] void fail_with(const std::string& what) const;

  std::string path_;       // as the user wrote it
  std::string target_;     // with symbolic links followed
  std::string folder_;     // that of the target
  std::string temporary_;  // empty once it is gone
  int descriptor_ = -1;
};

// The whole of a small file at once.
void write_file_atomically(const std::string& path, std::string_view contents);

}  // namespace gradual
