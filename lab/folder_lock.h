// The right to write into a folder of results. One process has it at a time, in one thread.
#pragma once

#include <string>

#include "../core/support/scoped.h"

namespace gradual::lab {

// Held while it lives. A thread that holds a folder may hold it again. Processes that this one starts keep the folder
// locked until they have ended too: they may still write there when this one is killed.
class FolderLock : Pinned {
 public:
  // Makes the folder. Error that names the holder's process if another one holds it, and if the folder is not writable.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();

 private:
  std::string path_;  // of the file that is locked; empty: this thread holds the folder already
  int file_ = -1;
};

}  // namespace gradual::lab
