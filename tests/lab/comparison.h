// What tests of comparisons share: a folder for results, small data, a small model, recipes by name.
#pragma once

#include <gradual/gradual.h>
#include <gradual/lab/lab.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/files.h"

namespace gradual::test {

namespace fs = std::filesystem;

struct Folder {
  explicit Folder(const std::string& name) : path(temporary / name) {}
  std::string read(const std::string& file) const {
    std::ifstream in(path / file);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  ::test::TemporaryFolder temporary;
  fs::path path;  // nothing is there at first
};

inline data::Split small_digits() {
  const data::Dataset all = data::digits();
  data::Dataset few = all;
  few.inputs = all.inputs.narrow(0, 0, 200);
  few.targets = all.targets.narrow(0, 0, 200);
  return data::split(few, 160, 0);
}
inline std::shared_ptr<nn::Module> mlp() { return lab::make_mlp(64, 10); }

inline std::vector<amp::Recipe> recipes(const std::vector<std::string>& names) {
  std::vector<amp::Recipe> list;
  for (const std::string& n : names) list.push_back(amp::recipe(n));
  return list;
}
inline std::string message(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "";
}

}  // namespace gradual::test
