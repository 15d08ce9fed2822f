// Atomic file writes. The bytes go to a temporary file in the same folder. When that is complete and on disk, a rename
// gives it the final name, so no reader ever sees half a file. What a killed process left is removed by the next one
// that writes into the folder.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "../support/scoped.h"

namespace gradual {

class AtomicFile : Pinned {
 public:
  // Opens the temporary file. Follows a symbolic link, so the file behind it is replaced. Error if the folder is not
  // writable or `path` is not a regular file.
  explicit AtomicFile(const std::string& path);
  // Removes the temporary file unless commit() has returned; `path` is then as it was before.
  ~AtomicFile();

  void write(const void* bytes, std::size_t count);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  // fsync, rename, fsync of the folder. If one of the first two fails: Error, and the old file is untouched.
  void commit();

 private:
  std::string path_;       // as the user wrote it
  std::string target_;     // with symbolic links followed
  std::string folder_;     // that of the target
  std::string temporary_;  // empty once it is gone
  int descriptor_ = -1;
};

// Writes a whole small file at once.
void write_file_atomically(const std::string& path, std::string_view contents);

}  // namespace gradual
