#include "idx.h"

#include <sys/stat.h>

#include <cstring>

#include "../core/input_file.h"
#include "gzip.h"

namespace gradual::data {
namespace {

std::uint32_t big_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char c : bytes.substr(0, 4)) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

Tensor parse(std::string_view bytes) {
  if (bytes.size() < 4) fail("truncated: " + std::to_string(bytes.size()) + " bytes");
  if (bytes[0] != 0 || bytes[1] != 0) fail("does not start with two zero bytes; it is no IDX file");
  const int type = static_cast<unsigned char>(bytes[2]);
  if (type != 8) fail("element type " + std::to_string(type) + "; only 8, unsigned bytes, is read");
  const int dims = static_cast<unsigned char>(bytes[3]);
  if (dims < 1 || dims > kMaxDims)
    fail(std::to_string(dims) + " dimensions; 1 to " + std::to_string(kMaxDims) + " are allowed");
  bytes.remove_prefix(4);
  if (bytes.size() < 4 * static_cast<std::size_t>(dims)) fail("truncated within its sizes");

  Shape sizes;
  for (int d = 0; d < dims; ++d, bytes.remove_prefix(4)) sizes.push_back(big_endian(bytes));
  if (static_cast<std::uint64_t>(numel(sizes)) != bytes.size())
    fail("sizes " + to_string(sizes) + " take " + std::to_string(numel(sizes)) + " bytes, the file has " +
         std::to_string(bytes.size()));
  const Tensor t = empty(sizes, {.dtype = DType::u8});
  if (!bytes.empty()) std::memcpy(t.raw(), bytes.data(), bytes.size());
  return t;
}

bool exists(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0;
}

std::string find_file(const std::string& folder, const std::string& name) {
  const std::string plain = folder + "/" + name;
  const std::string packed = plain + ".gz";
  if (exists(plain)) return plain;
  if (exists(packed)) return packed;
  fail("mnist: neither \"" + plain + "\" nor \"" + packed + "\" is there");
}

Dataset read_pair(const std::string& folder, const std::string& part) {
  const std::string images_path = find_file(folder, part + "-images-idx3-ubyte");
  const std::string labels_path = find_file(folder, part + "-labels-idx1-ubyte");
  const Tensor images = read_idx(images_path);
  const Tensor labels = read_idx(labels_path);
  if (images.ndim() != 3)
    fail("mnist: \"" + images_path + "\" is " + to_string(images.sizes()) + ", not [N, rows, columns]");
  if (labels.ndim() != 1 || labels.size(0) != images.size(0))
    fail("mnist: \"" + labels_path + "\" is " + to_string(labels.sizes()) + " for images " + to_string(images.sizes()));

  const Shape& s = images.sizes();
  Dataset out{.inputs = empty({s[0], 1, s[1], s[2]}), .targets = empty(labels.sizes(), {.dtype = DType::i64})};
  out.classes = 10;
  out.name = "mnist";
  const auto* pixels = images.data<std::uint8_t>();
  auto* x = out.inputs.data<float>();
  float table[256];  // one rounding from the double for each of the 256 values
  for (int v = 0; v < 256; ++v) table[v] = static_cast<float>((v / 255.0 - 0.1307) / 0.3081);
  for (std::int64_t i = 0; i < images.numel(); ++i) x[i] = table[pixels[i]];
  const auto* y = labels.data<std::uint8_t>();
  for (std::int64_t i = 0; i < labels.numel(); ++i) {
    if (y[i] > 9) fail("mnist: \"" + labels_path + "\": label " + std::to_string(i) + " is " + std::to_string(y[i]));
    out.targets.data<std::int64_t>()[i] = y[i];
  }
  return out;
}

}  // namespace

Tensor parse_idx(std::string_view given, const std::string& name) {
  const std::string unpacked = is_gzip(given) ? gunzip(given, name) : std::string();
  return in_context("idx \"" + name + "\"", [&] { return parse(is_gzip(given) ? unpacked : given); });
}

Tensor read_idx(const std::string& path) { return parse_idx(read_file(path), path); }

Split mnist(const std::string& folder) {
  return {.train = read_pair(folder, "train"), .test = read_pair(folder, "t10k")};
}

}  // namespace gradual::data
