#include "op_row.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>

namespace gradual::inspect {

bool is_own_file(std::string_view path) {
  constexpr std::string_view kHere = "inspect/op_row.cpp";
  constexpr std::string_view kFolders[] = {"lab/", "nn/", "optim/", "amp/", "autograd/", "dist/", "core/"};
  // A file of a batch (cmake/batches.cmake) is named by way of the batch's folder, "batches/../../../lab/tasks.cpp".
  const auto normal = [](std::string_view name) { return std::filesystem::path(name).lexically_normal().string(); };
  static const std::string root = [&] {
    const std::string here = normal(__FILE__);
    return here.substr(0, here.size() - kHere.size());
  }();
  const std::string file = normal(path);
  if (!file.starts_with(root)) return false;
  const std::string_view inner = std::string_view(file).substr(root.size());
  return std::ranges::any_of(kFolders, [inner](std::string_view folder) { return inner.starts_with(folder); });
}

}  // namespace gradual::inspect
