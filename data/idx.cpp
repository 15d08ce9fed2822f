#include "idx.h"

#include <filesystem>

#include "../core/files/input_file.h"
#include "../core/support/throwf.h"
#include "gzip.h"

namespace gradual::data {
namespace {

std::uint32_t big_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (const char c : bytes.substr(0, 4)) value = value << 8 | static_cast<unsigned char>(c);
  return value;
}

Tensor parse(std::string_view bytes) {
  if (bytes.size() < 4) throwf("truncated: {} bytes", bytes.size());
  if (bytes[0] != 0 || bytes[1] != 0) throw_error("does not start with two zero bytes; it is not an IDX file");
  if (bytes[2] != 8) throwf("element type {}; only 8, unsigned bytes, is read", static_cast<unsigned char>(bytes[2]));
  const std::size_t dims = static_cast<unsigned char>(bytes[3]);
  if (dims < 1 || dims > kMaxDims) throwf("{} dimensions; 1 to {} are allowed", dims, kMaxDims);
  bytes.remove_prefix(4);
  if (bytes.size() < 4 * dims) throw_error("truncated within its sizes");
  Shape sizes;
  for (std::size_t d = 0; d < dims; ++d, bytes.remove_prefix(4)) sizes.push_back(big_endian(bytes));
  return tensor_of_bytes(DType::u8, sizes, bytes);
}

std::string find_file(const std::string& folder, const std::string& name) {
  const std::string plain = folder + "/" + name;
  for (const std::string& path : {plain, plain + ".gz"})
    if (std::error_code ignored; std::filesystem::exists(path, ignored)) return path;
  throwf("mnist: neither \"{}\" nor \"{}.gz\" is there", plain, plain);
}

Dataset read_pair(const std::string& folder, const std::string& part) {
  const std::string images_path = find_file(folder, part + "-images-idx3-ubyte");
  const std::string labels_path = find_file(folder, part + "-labels-idx1-ubyte");
  const Tensor images = read_idx(images_path);
  const Tensor labels = read_idx(labels_path);
  if (images.dim() != 3) throwf("mnist: \"{}\" is {}, not [N, rows, columns]", images_path, to_string(images.sizes()));
  if (labels.dim() != 1 || labels.size(0) != images.size(0))
    throwf("mnist: \"{}\" is {} for images {}", labels_path, to_string(labels.sizes()), to_string(images.sizes()));

  const Shape& s = images.sizes();
  Dataset out{.inputs = empty({s[0], 1, s[1], s[2]}), .targets = labels.to(DType::i64), .classes = 10, .name = "mnist"};
  const auto* pixels = images.data<std::uint8_t>();
  auto* x = out.inputs.data<float>();
  float table[256];  // one rounding from the double for each of the 256 values
  for (int v = 0; v < 256; ++v) table[v] = static_cast<float>((v / 255.0 - 0.1307) / 0.3081);
  for (std::int64_t i = 0; i < images.numel(); ++i) x[i] = table[pixels[i]];
  for (std::int64_t i = 0; i < labels.numel(); ++i)
    if (const int y = labels.data<std::uint8_t>()[i]; y > 9) throwf("mnist: \"{}\": label {} is {}", labels_path, i, y);
  return out;
}

}  // namespace

Tensor parse_idx(std::string_view bytes, const std::string& name) {
  const std::string unpacked = gunzip_if_packed(bytes, name);
  return in_context("idx \"" + name + "\"", [&] { return parse(unpacked); });
}

Tensor read_idx(const std::string& path) { return parse_idx(read_file(path), path); }

Split mnist(const std::string& folder) {
  return {.train = read_pair(folder, "train"), .test = read_pair(folder, "t10k")};
}

}  // namespace gradual::data
