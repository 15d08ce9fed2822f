// Unpacking gzip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradual::data {

inline constexpr std::uint64_t kMaxUnpacked = std::uint64_t{1} << 32;

// Unpacks all members of a gzip file and verifies their checksums; returns bytes without gzip's header unchanged.
// `name` stands for the file in messages. Error for a damaged or truncated file, for data after its end, and for a
// result of more than `max_bytes`.
std::string gunzip_if_packed(std::string_view bytes, const std::string& name, std::uint64_t max_bytes = kMaxUnpacked);
// The first `count` unpacked bytes, or fewer if there are no more.
std::string gunzip_head(std::string_view bytes, const std::string& name, std::size_t count);

}  // namespace gradual::data
