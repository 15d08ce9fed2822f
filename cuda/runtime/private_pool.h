// Memory of a graph. Its recorded work writes the same addresses at each replay, so nobody else may get them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "../../core/support/scoped.h"

namespace gradual::cuda {

// Blocks are kept by size class until the pool goes, which it does when neither the graph nor a block in use holds it.
class PrivatePool : public std::enable_shared_from_this<PrivatePool>, Pinned {
 public:
  explicit PrivatePool(int device) : device_(device) {}
  ~PrivatePool();
  // Uninitialised memory of the pool's device; work before it in the order of the recording has done with the block, or,
  // fresh, never had it.
  void* allocate(std::size_t bytes, bool fresh);
  std::int64_t bytes() const { return bytes_; }

 private:
  friend bool give_back(void* block) noexcept;
  int device_;
  std::int64_t bytes_ = 0;
  std::vector<void*> all_;
  std::map<std::size_t, std::vector<void*>> free_;  // by size
};

// Whether the block was of a private pool; it is that pool's again then.
bool give_back(void* block) noexcept;

}  // namespace gradual::cuda
