#include "gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "../core/error.h"
#include "../core/input_file.h"

namespace gradual::data {
namespace {

struct Inflater {
  z_stream stream{};
  explicit Inflater(const std::string& name) {
    if (inflateInit2(&stream, 15 + 16) != Z_OK) fail("gzip \"" + name + "\": zlib could not start");  // +16: gzip
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gunzip(std::string_view bytes, const std::string& name, std::uint64_t max_bytes) {
  const auto refuse = [&](const std::string& what) { fail("gzip \"" + name + "\": " + what); };
  if (!is_gzip(bytes)) refuse("does not start with 1f 8b; it is no gzip file");
  Inflater inflater(name);
  z_stream& z = inflater.stream;
  std::string out;
  std::string chunk(1 << 16, '\0');
  std::size_t at = 0;  // of the input, what zlib has been handed
  while (true) {
    if (z.avail_in == 0) {
      const std::size_t n = std::min<std::size_t>(bytes.size() - at, std::numeric_limits<uInt>::max());
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + at));  // zlib only reads it
      z.avail_in = static_cast<uInt>(n);
      at += n;
    }
    z.next_out = reinterpret_cast<Bytef*>(chunk.data());
    z.avail_out = static_cast<uInt>(chunk.size());
    const int status = inflate(&z, Z_NO_FLUSH);
    out.append(chunk.data(), chunk.size() - z.avail_out);
    if (out.size() > max_bytes) refuse("unpacks to more than the " + std::to_string(max_bytes) + " bytes allowed");
    const bool at_end = z.avail_in == 0 && at == bytes.size();
    if (status == Z_STREAM_END) {
      if (at_end) return out;
      if (inflateReset(&z) != Z_OK) refuse("zlib could not go on");
    } else if (status == Z_BUF_ERROR && at_end) {
      refuse("truncated");
    } else if (status != Z_OK && status != Z_BUF_ERROR) {
      refuse(std::string("damaged: ") + (z.msg ? z.msg : zError(status)));
    }
  }
}

std::string read_maybe_gzip(const std::string& path) {
  std::string bytes = read_file(path);
  return is_gzip(bytes) ? gunzip(bytes, path) : bytes;
}

}  // namespace gradual::data
