#include "gzip.h"

#include <zlib.h>

#include <limits>
#include <memory>

#include "../core/support/throwf.h"

namespace gradual::data {

namespace {

constexpr std::string_view kMagic = "\x1f\x8b";

// Unpacks until `max_bytes` are exceeded, which is an error unless `head`: then the result is cut.
std::string unpack(std::string_view bytes, const std::string& name, std::uint64_t max_bytes, bool head) {
  const auto refuse = [&](std::string_view what) { throwf("gzip \"{}\": {}", name, what); };
  if (bytes.size() > std::numeric_limits<uInt>::max()) refuse("has more than 4 GiB");
  z_stream z{};
  if (inflateInit2(&z, 15 + 16) != Z_OK) refuse("zlib could not start");  // +16: gzip
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&z, &inflateEnd);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));  // zlib only reads it
  z.avail_in = static_cast<uInt>(bytes.size());
  std::string out;
  std::string chunk(1 << 16, '\0');
  while (true) {
    z.next_out = reinterpret_cast<Bytef*>(chunk.data());
    z.avail_out = static_cast<uInt>(chunk.size());
    const int status = inflate(&z, Z_NO_FLUSH);
    out.append(chunk.data(), chunk.size() - z.avail_out);
    if (head && out.size() >= max_bytes) return out.substr(0, max_bytes);
    if (out.size() > max_bytes) refuse(fmt::format("unpacks to more than the {} bytes allowed", max_bytes));
    if (status == Z_STREAM_END && z.avail_in == 0) return out;
    if (status == Z_STREAM_END) inflateReset(&z);  // the next member
    else if (status == Z_BUF_ERROR) refuse("truncated");
    else if (status != Z_OK) refuse(fmt::format("damaged: {}", z.msg ? z.msg : zError(status)));
  }
}

}  // namespace

std::string gunzip_if_packed(std::string_view bytes, const std::string& name, std::uint64_t max_bytes) {
  return bytes.starts_with(kMagic) ? unpack(bytes, name, max_bytes, false) : std::string(bytes);
}

std::string gunzip_head(std::string_view bytes, const std::string& name, std::size_t count) {
  return bytes.starts_with(kMagic) ? unpack(bytes, name, count, true) : std::string(bytes.substr(0, count));
}

}  // namespace gradual::data
