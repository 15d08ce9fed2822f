// One function for each reader: whatever the bytes, it returns a value or throws Error, and nothing else. The libFuzzer
// programs and the mutation test share them.
#pragma once

#include <gradual/amp/recipe.h>
#include <gradual/core/files/checkpoint_file.h>
#include <gradual/core/files/npy.h>
#include <gradual/core/files/safetensors.h>
#include <gradual/data/csv.h>
#include <gradual/data/idx.h>
#include <gradual/lab/result.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace fuzz {

// Reads every byte, so that a sanitizer sees one that is not the tensor's.
inline void touch(const gradual::Tensor& t) {
  const gradual::Tensor dense = t.contiguous();
  const auto* p = static_cast<const volatile unsigned char*>(dense.raw());
  for (std::size_t i = 0; i < dense.nbytes(); ++i) static_cast<void>(p[i]);
}

inline void touch(const gradual::StateDict& state) {
  for (const auto& entry : state)
    if (const auto* t = std::get_if<gradual::Tensor>(&entry.value)) touch(*t);
}

// True where the bytes were accepted.
inline bool safetensors(std::string_view bytes) {
  bool read = false;
  try {
    touch(gradual::parse_safetensors(bytes, "input").tensors);
    read = true;
    for (const auto& part : gradual::parse_checkpoint(bytes, "input").parts) touch(part.second);
  } catch (const gradual::Error&) {}
  return read;
}

inline bool npy(std::string_view bytes) {
  try {
    touch(gradual::parse_npy(bytes, "input"));
    return true;
  } catch (const gradual::Error&) { return false; }
}

inline bool idx(std::string_view bytes) {
  try {
    touch(gradual::data::parse_idx(bytes, "input"));
    return true;
  } catch (const gradual::Error&) { return false; }
}

inline bool csv(std::string_view bytes) {
  try {
    touch(gradual::data::parse_csv(bytes, "input"));
    return true;
  } catch (const gradual::Error&) { return false; }
}

inline bool recipes(std::string_view bytes) {
  try {
    gradual::amp::recipes_from_json(std::string(bytes));
    return true;
  } catch (const gradual::Error&) { return false; }
}

inline bool results(std::string_view bytes) {
  try {
    gradual::lab::results_from_json(std::string(bytes), "input");
    return true;
  } catch (const gradual::Error&) { return false; }
}

inline std::string_view view(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace fuzz
