#include "idx.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <optional>
#include <type_traits>
#include <vector>

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

// An element type, by the file's third byte.
struct ElementType {
  int code;
  DType dtype;  // that it is read as
  std::size_t width;
  Tensor (*read)(const Shape& sizes, std::string_view bytes);
};

// Big-endian elements T as a tensor.
template <class T> Tensor read_swapped(DType dtype, const Shape& sizes, std::string_view bytes) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
  if (bytes.size() % sizeof(T) != 0 || bytes.size() / sizeof(T) != static_cast<std::size_t>(numel(sizes)))
    throwf("{} {} does not take the {} bytes that are there", to_string(dtype), to_string(sizes), bytes.size());
  std::vector<T> values;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    Bits bits = 0;
    for (const char c : bytes.substr(at, sizeof(T)))
      bits = static_cast<Bits>(bits << 8 | static_cast<unsigned char>(c));
    values.push_back(std::bit_cast<T>(bits));
  }
  if constexpr (std::is_floating_point_v<T>) return from_data(values, sizes, {.dtype = dtype});
  else return from_data(std::vector<std::int64_t>(values.begin(), values.end()), sizes, {.dtype = dtype});
}
Tensor read_signed_bytes(const Shape& sizes, std::string_view bytes) {
  const std::vector<signed char> values(bytes.begin(), bytes.end());
  if (values.size() != static_cast<std::size_t>(numel(sizes)))
    throwf("i8 {} does not take the {} bytes that are there", to_string(sizes), bytes.size());
  return from_data(std::vector<std::int64_t>(values.begin(), values.end()), sizes, {.dtype = DType::i32});
}
template <class T, DType dtype> Tensor read_numbers(const Shape& sizes, std::string_view bytes) {
  return read_swapped<T>(dtype, sizes, bytes);
}
Tensor read_bytes(const Shape& sizes, std::string_view bytes) { return tensor_of_bytes(DType::u8, sizes, bytes); }

constexpr ElementType kTypes[] = {{8, DType::u8, 1, read_bytes},
                                  {9, DType::i32, 1, read_signed_bytes},
                                  {11, DType::i32, 2, read_numbers<std::int16_t, DType::i32>},
                                  {12, DType::i32, 4, read_numbers<std::int32_t, DType::i32>},
                                  {13, DType::f32, 4, read_numbers<float, DType::f32>},
                                  {14, DType::f64, 8, read_numbers<double, DType::f64>}};

const ElementType* type_of(char code) {
  const auto* found = std::ranges::find(kTypes, static_cast<int>(static_cast<unsigned char>(code)), &ElementType::code);
  return found == std::end(kTypes) ? nullptr : found;
}

// The most bytes that a file with this start has, with a few more to tell that it is too long. None: it is no IDX file.
std::optional<std::uint64_t> most_bytes(std::string_view head) {
  constexpr std::uint64_t kFew = 64;
  if (!head.starts_with(std::string_view("\0\0", 2))) return std::nullopt;
  const ElementType* type = head.size() < 4 ? nullptr : type_of(head[2]);
  const std::size_t dims = type ? static_cast<unsigned char>(head[3]) : 0;
  if (!type || dims < 1 || dims > kMaxDims || head.size() < 4 + 4 * dims) return std::nullopt;
  std::uint64_t bytes = type->width;
  for (std::size_t d = 0; d < dims; ++d) {
    const std::uint64_t size = big_endian(head.substr(4 + 4 * d));
    if (size != 0 && bytes > kMaxUnpacked / size) return kMaxUnpacked;
    bytes *= size;
  }
  return bytes + kFew;
}

Tensor parse(std::string_view bytes) {
  if (bytes.size() < 4) throwf("truncated: {} bytes", bytes.size());
  if (bytes[0] != 0 || bytes[1] != 0) throw_error("does not start with two zero bytes; it is not an IDX file");
  const ElementType* const type = type_of(bytes[2]);
  if (!type)
    throwf("element type {}; allowed are 8 (u8), 9 (i8), 11 (i16), 12 (i32), 13 (f32) and 14 (f64)",
           static_cast<unsigned char>(bytes[2]));
  const std::size_t dims = static_cast<unsigned char>(bytes[3]);
  if (dims < 1 || dims > kMaxDims) throwf("{} dimensions; 1 to {} are allowed", dims, kMaxDims);
  bytes.remove_prefix(4);
  if (bytes.size() < 4 * dims) throw_error("truncated within its sizes");
  Shape sizes;
  for (std::size_t d = 0; d < dims; ++d, bytes.remove_prefix(4)) sizes.push_back(big_endian(bytes));
  return type->read(sizes, bytes);
}

// `kind`: "idx3-ubyte", which follows the name after "-" or ".".
std::string find_file(const std::string& folder, const std::string& name, const std::string& kind) {
  const std::string plain = folder + "/" + name + "-" + kind;
  const std::string dotted = folder + "/" + name + "." + kind;
  for (const std::string& path : {plain, plain + ".gz", dotted, dotted + ".gz"})
    if (std::error_code ignored; std::filesystem::exists(path, ignored)) return path;
  throwf("mnist: neither \"{}\" nor \"{}.gz\" is there", plain, plain);
}

Dataset read_pair(const std::string& folder, const std::string& part) {
  const std::string images_path = find_file(folder, part + "-images", "idx3-ubyte");
  const std::string labels_path = find_file(folder, part + "-labels", "idx1-ubyte");
  const Tensor images = read_idx(images_path);
  const Tensor labels = read_idx(labels_path);
  for (const auto& [path, t] : {std::pair(images_path, images), std::pair(labels_path, labels)})
    if (t.dtype() != DType::u8) throwf("mnist: \"{}\" has {}, not unsigned bytes", path, to_string(t.dtype()));
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
  constexpr std::size_t kLongestHead = 4 + 4 * kMaxDims;
  const std::string head = gunzip_head(bytes, name, kLongestHead);
  const std::optional<std::uint64_t> most = most_bytes(head);
  if (!most) return in_context("idx \"" + name + "\"", [&] { return parse(head); });  // says what is wrong
  const std::string unpacked = gunzip_if_packed(bytes, name, *most);
  return in_context("idx \"" + name + "\"", [&] { return parse(unpacked); });
}

Tensor read_idx(const std::string& path) { return parse_idx(read_file(path), path); }

Split mnist(const std::string& folder) {
  return {.train = read_pair(folder, "train"), .test = read_pair(folder, "t10k")};
}

}  // namespace gradual::data
