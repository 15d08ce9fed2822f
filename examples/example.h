// Shared by the examples: a command line of "--name value" pairs and flags, and checked claims.
#pragma once

#include <gradual/core/tensor/tensor.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace example {

// An error in the command line; it is printed with the usage.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Arguments are read where they are needed; done() is an error if one was not read.
class Arguments {
 public:
  Arguments(int argc, char** argv) : words_(argv + 1, argv + argc), used_(words_.size(), false) {}

  bool flag(const std::string& name) { return find(name) < words_.size(); }
  bool has(const std::string& name) const { return std::find(words_.begin(), words_.end(), name) != words_.end(); }
  std::string text(const std::string& name, const std::string& otherwise) {
    const std::size_t i = find(name);
    if (i >= words_.size()) return otherwise;
    if (i + 1 >= words_.size()) throw UsageError(name + " needs a value");
    used_[i + 1] = true;
    return words_[i + 1];
  }
  long number(const std::string& name, long otherwise) {  // at least 1
    const std::string word = text(name, std::to_string(otherwise));
    char* end = nullptr;
    const long value = std::strtol(word.c_str(), &end, 10);
    if (*end != '\0' || value < 1) throw UsageError(name + " takes a whole number from 1 on, not '" + word + "'");
    return value;
  }
  // The next word that is not a --name and was not read yet.
  std::string word(const std::string& otherwise) {
    for (std::size_t i = 0; i < words_.size(); ++i)
      if (!used_[i] && !words_[i].starts_with("--")) {
        used_[i] = true;
        return words_[i];
      }
    return otherwise;
  }
  void done() const {
    for (std::size_t i = 0; i < words_.size(); ++i)
      if (!used_[i]) throw UsageError("'" + words_[i] + "' is not an argument");
  }

 private:
  std::size_t find(const std::string& name) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] != name || used_[i]) continue;
      used_[i] = true;
      return i;
    }
    return words_.size();
  }
  std::vector<std::string> words_;
  std::vector<bool> used_;
};

// The device of the example: --device cpu or cuda.
inline gradual::Device& device() {
  static gradual::Device chosen;
  return chosen;
}
// Options of tensors on that device.
inline gradual::TensorOptions on_device(gradual::DType dtype = gradual::DType::f32) {
  return {.dtype = dtype, .device = device()};
}

inline int& broken_claims() {
  static int count = 0;
  return count;
}
// Checks a claim of the example. If one does not hold, the program ends with status 1.
inline void claim(bool holds, const char* what) {
  std::printf("  [%s] %s\n", holds ? "holds" : "DOES NOT HOLD", what);
  if (!holds) ++broken_claims();
}

inline void print_usage(std::FILE* to, const char* usage, bool on_gpu) {
  std::fprintf(to, "%s%s  --help, this text\n", usage, on_gpu ? "  --device cpu|cuda, where it computes (cpu)\n" : "");
}

// main's body: runs the example and converts errors and failed claims to the exit status. `usage` describes the example
// and its arguments. on_gpu: whether it takes --device.
inline int run(int argc, char** argv, void (*body)(Arguments&), const char* usage, bool on_gpu = true) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // a progress line shows at once, in a pipe too
  try {
    Arguments arguments(argc, argv);
    if (arguments.flag("--help") || arguments.flag("-h")) {
      print_usage(stdout, usage, on_gpu);
      return 0;
    }
    if (on_gpu) device() = gradual::device_from_name(arguments.text("--device", "cpu"));
    body(arguments);
  } catch (const UsageError& e) {
    std::fprintf(stderr, "%s\n\n", e.what());
    print_usage(stderr, usage, on_gpu);
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
  return broken_claims() == 0 ? 0 : 1;
}

}  // namespace example
