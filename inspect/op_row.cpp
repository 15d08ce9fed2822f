#include "op_row.h"

#include <algorithm>

namespace gradual::inspect {

bool is_own_file(std::string_view path) {
  constexpr std::string_view kHere = "inspect/op_row.cpp";
  constexpr std::string_view kFolders[] = {"lab/", "nn/", "optim/", "amp/", "autograd/", "dist/", "core/"};
  std::string_view root = __FILE__;
  root.remove_suffix(kHere.size());
  if (!path.starts_with(root)) return false;
  const std::string_view inner = path.substr(root.size());
  return std::ranges::any_of(kFolders, [inner](std::string_view folder) { return inner.starts_with(folder); });
}

}  // namespace gradual::inspect
