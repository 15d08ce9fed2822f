// The safetensors format (huggingface.co/docs/safetensors): 8 bytes of header length, little-endian; a JSON header
// with each tensor's dtype, shape and place, and texts under "__metadata__"; then the numbers, row-major.
// The safetensors packages for PyTorch and NumPy read these files, and this reader reads theirs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "state_dict.h"

namespace gradual {

struct Safetensors {
  // A tensor of a dtype that no Tensor has: I8, I16, U16, U32, U64, F8_E8M0, F4, F6_E2M3, F6_E3M2, C64.
  struct Unread {
    std::string name, dtype;
    Shape sizes;
  };
  StateDict tensors;  // in the header's order, on the CPU
  std::map<std::string, std::string> metadata;
  std::vector<Unread> unread;  // not in `tensors`

  // tensors.tensor(name). Error that names the dtype for an unread one.
  Tensor tensor(const std::string& name) const;
};

// Writes all ten dtypes; tensors that share storage are written separately. The write is atomic (atomic_file.h). Error
// for an entry that is not a tensor (checkpoints can store those) and for a name or text that is not UTF-8.
void save_safetensors(const std::string& path, const StateDict& tensors,
                      const std::map<std::string, std::string>& metadata = {});

// Checks the whole file before using any of it: the header's size (at most 100 MB) and form, every dtype, shape and
// place, that no tensors overlap and that no bytes are left over. An Error names the file, the tensor, what was found
// and what is allowed. Other keys of a tensor's entry are passed over, as the reference implementation does.
Safetensors load_safetensors(const std::string& path);
// The same from memory; `name` stands for the file in messages.
Safetensors parse_safetensors(std::string_view bytes, const std::string& name);

}  // namespace gradual
