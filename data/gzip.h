// Unpacking gzip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradual::data {

inline constexpr std::uint64_t kMaxUnpacked = std::uint64_t{1} << 32;

// All members of a gzip file, their checksums verified; bytes that do not start as gzip does are given back as they
// are. `name` stands for the file in messages. Error for a damaged or truncated file, for anything after its end, and
// where more than `max_bytes` would come out.
std::string gunzip_if_packed(std::string_view bytes, const std::string& name, std::uint64_t max_bytes = kMaxUnpacked);

}  // namespace gradual::data
