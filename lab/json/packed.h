// Long lists of numbers as text in JSON: base64 (RFC 4648) of their bytes, least significant byte first.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fields.h"

namespace gradual::lab {

inline constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline std::string base64(const std::string& bytes) {
  std::string text;
  text.reserve(bytes.size() / 3 * 4 + 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t group = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const std::uint32_t byte = at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0;
      group = group << 8 | byte;
    }
    for (std::size_t i = 0; i < 4; ++i) text += at + i > bytes.size() ? '=' : kBase64[group >> (18 - 6 * i) & 63];
  }
  return text;
}

// FieldError for a text that is not base64.
inline std::string from_base64(std::string_view text) {
  constexpr const char* kAllowed = "numbers in base64 are expected";
  if (text.size() % 4 != 0) throw FieldError(kAllowed);
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::array<std::int8_t, 256> values{};
  values.fill(-1);
  for (std::size_t i = 0; i < kBase64.size(); ++i)
    values[static_cast<unsigned char>(kBase64[i])] = static_cast<std::int8_t>(i);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::uint32_t group = 0;
    for (std::size_t i = at; i < at + 4; ++i) {
      const bool padded = i >= text.size() - padding;
      const int value = padded ? 0 : values[static_cast<unsigned char>(text[i])];
      if (value < 0) throw FieldError(kAllowed);
      group = group << 6 | static_cast<std::uint32_t>(value);
    }
    for (int shift = 16; shift >= 0; shift -= 8) bytes += static_cast<char>(group >> shift & 255);
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

// A list of 32-bit numbers (float or std::uint32_t) as a field of that text.
template <class T> struct Packed {
  std::vector<T>& numbers;
};

template <class V, class T> void packed_field(V& v, const char* name, const Packed<T>& list) {
  static_assert(sizeof(T) == 4 && std::endian::native == std::endian::little);
  std::string text;
  if constexpr (std::is_same_v<V, FieldWriter>) {
    std::string bytes(list.numbers.size() * sizeof(T), '\0');
    if (!bytes.empty()) std::memcpy(bytes.data(), list.numbers.data(), bytes.size());
    text = base64(bytes);
  }
  v(name, text);
  if constexpr (std::is_same_v<V, FieldReader>)
    at_path(std::string(".") + name, [&] {
      const std::string bytes = from_base64(text);
      if (bytes.size() % sizeof(T) != 0) throw FieldError("numbers of 4 bytes in base64 are expected");
      list.numbers.resize(bytes.size() / sizeof(T));
      if (!bytes.empty()) std::memcpy(list.numbers.data(), bytes.data(), bytes.size());
    });
}

}  // namespace gradual::lab
