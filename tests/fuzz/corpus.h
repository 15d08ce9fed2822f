// The inputs of a fuzzer's corpus: the files in tests/fuzz/corpus/READER.tar.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fuzz {

struct Input {
  std::string name, bytes;
};

// The regular files in a tar archive (POSIX ustar), in its order. std::runtime_error for bytes that are none.
inline std::vector<Input> inputs_of_tar(std::string_view archive) {
  constexpr std::size_t kBlock = 512;
  constexpr std::size_t kNameLength = 100;
  constexpr std::size_t kSizeAt = 124;
  constexpr std::size_t kSizeLength = 12;
  constexpr std::size_t kTypeAt = 156;
  std::vector<Input> inputs;
  for (std::size_t at = 0; at + kBlock <= archive.size();) {
    const std::string_view header = archive.substr(at, kBlock);
    if (header[0] == '\0') break;  // the end: blocks of zeros
    const std::string name(header.substr(0, header.substr(0, kNameLength).find('\0')));
    const std::size_t size = std::stoul(std::string(header.substr(kSizeAt, kSizeLength)), nullptr, 8);
    if (header[kTypeAt] != '0') throw std::runtime_error("corpus: '" + name + "' is no regular file");
    at += kBlock;
    if (size > archive.size() - at) throw std::runtime_error("corpus: '" + name + "' is cut off");
    inputs.push_back({name, std::string(archive.substr(at, size))});
    at += (size + kBlock - 1) / kBlock * kBlock;
  }
  return inputs;
}

}  // namespace fuzz
