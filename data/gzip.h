// Unpacking gzip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradual::data {

inline constexpr std::uint64_t kMaxUnpacked = std::uint64_t{1} << 32;

bool is_gzip(std::string_view bytes);  // by the two bytes it starts with

// All members of a gzip file, their checksums verified. `name` stands for the file in messages. Error for a damaged
// or truncated file, for anything after its end, and where more than `max_bytes` would come out.
std::string gunzip(std::string_view bytes, const std::string& name, std::uint64_t max_bytes = kMaxUnpacked);

// A file's bytes, unpacked where it is a gzip file.
std::string read_maybe_gzip(const std::string& path);

}  // namespace gradual::data
