// For tests that read and write files.
#pragma once

#include <gradual/core/files/input_file.h>
#include <gradual/core/support/error.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "source_dir.h"

namespace test {

// A folder that goes away with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "gradual-test-XXXXXX").string();
    if (!mkdtemp(name.data())) gradual::throw_error("cannot make a folder like " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) out.push_back(entry.path().filename());
    return out;
  }

 private:
  std::string path_;
};

inline std::string golden(const std::string& name) { return source_dir() + "/tests/golden/files/" + name; }

// What the call throws says, or that it throws nothing.
template <class F> std::string message_of(F f) {
  try {
    f();
  } catch (const gradual::Error& e) { return e.what(); }
  return "nothing was thrown";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Data that is not part of the project; empty where it is not there.
inline std::string shared_data(const std::string& name) {
  const std::string path = source_dir() + "/../shared/data/" + name;
  return std::filesystem::exists(path) ? path : "";
}

}  // namespace test
