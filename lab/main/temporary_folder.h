// Folders under the system's folder for temporary files.
#pragma once

#include <gradual/core/support/scoped.h>

#include <string>

namespace gradual::lab {

// A new folder. The destructor removes it with its contents. What a killed process left is removed by the next one that
// makes a folder of the same kind.
class TemporaryFolder : Pinned {
 public:
  // kind: the begin of its name, "gradual-lab-figure". Error if it cannot be made.
  explicit TemporaryFolder(const std::string& kind);
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;  // held on a file in the folder while this process lives
};

}  // namespace gradual::lab
