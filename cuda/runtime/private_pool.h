// Memory of a graph. Each replay writes the same addresses, so no other code may use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "../../core/support/scoped.h"

namespace gradual::cuda {

// Keeps blocks by size class. The pool is destroyed when neither the graph nor a block in use holds it.
class PrivatePool : public std::enable_shared_from_this<PrivatePool>, Pinned {
 public:
  explicit PrivatePool(int device) : device_(device) {}
  ~PrivatePool();
  // Uninitialised memory of the pool's device. Earlier recorded work no longer uses the block; with `fresh` it never
  // did.
  void* allocate(std::size_t bytes, bool fresh);
  std::int64_t bytes() const { return bytes_; }

 private:
  friend bool give_back(void* block) noexcept;
  int device_;
  std::int64_t bytes_ = 0;
  std::vector<void*> all_;
  std::map<std::size_t, std::vector<void*>> free_;  // by size
};

// Returns the block to its private pool; false if it is not from one.
bool give_back(void* block) noexcept;

}  // namespace gradual::cuda
