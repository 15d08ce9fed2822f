#include "out_folder.h"

#include <fmt/chrono.h>
#include <gradual/core/support/error.h>

#include <chrono>
#include <filesystem>

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRoot = "gradual-lab-out";

}  // namespace

std::string new_folder() {
  const std::string name = fmt::format("{}/{:%Y-%m-%d-%H%M%S}", kRoot, fmt::gmtime(std::time(nullptr)));
  std::string folder = name;
  for (int i = 2; fs::exists(folder); ++i) folder = fmt::format("{}-{}", name, i);
  return folder;
}

void set_latest(const std::string& folder) {
  const fs::path link = fs::path(kRoot) / "latest", made = fs::path(kRoot) / ".latest.new";
  std::error_code error;
  fs::remove(made, error);
  fs::create_directory_symlink(fs::path(folder).filename(), made, error);
  if (!error) fs::rename(made, link, error);  // at once: another program may be reading the old one
}

std::string latest_folder() {
  const fs::path link = fs::path(kRoot) / "latest";
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  if (error) throw_error(fmt::format("there is no {}; name the folder with --out", link.string()));
  return (fs::path(kRoot) / target).string();
}

}  // namespace gradual::lab
