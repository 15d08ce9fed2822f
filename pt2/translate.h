// Writes an exported model as C++ that a person would have written.
#pragma once

#include <cstdint>
#include <string>

namespace gradual::pt2 {

struct TranslateOptions {
  // What stands for a size that may be any, in the run on zeros that finds the dtypes of all values.
  std::int64_t any_size = 2;
};

// A header with one struct for each class of the model's modules. Members have PyTorch's names, so state_dict() has its
// keys, and the lines of `forward` carry those of Python as comments. Blocks of equal structure are one struct, and
// where they run one after the other a loop. Compiled, it gives the bits of load(path), forward and backward, in the
// file's dtypes. Parameters start from the layers' own initial values:
//   net_model::Net model;
//   model.load_state_dict(pt2::load("net.pt2")->state_dict());
// Errors are those of load(), and name what the run on zeros does not allow.
std::string translate(const std::string& path, const TranslateOptions& options = {});

}  // namespace gradual::pt2
