// The caching allocator's free blocks, for observers that know storages by their addresses.
#pragma once

#include <vector>

namespace gradual::memory {

// The addresses of the cached blocks for at least `bytes` bytes that this thread may take. No live storage uses
// them. Sanitizer builds cache nothing.
std::vector<const void*> free_blocks(std::size_t bytes);

}  // namespace gradual::memory
