#include "npy.h"

#include <algorithm>
#include <cstring>

#include "../support/throwf.h"
#include "atomic_file.h"
#include "input_file.h"
#include "json_text.h"

namespace gradual {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct Kind {
  DType dtype;
  std::string_view descr;
};
constexpr Kind kKinds[] = {{DType::f64, "<f8"}, {DType::f32, "<f4"}, {DType::f16, "<f2"},  {DType::i64, "<i8"},
                           {DType::i32, "<i4"}, {DType::u8, "|u1"},  {DType::bool_, "|b1"}};

// Integers without a dtype of their own, each value of which `dtype` holds.
struct Widened {
  DType dtype;
  std::string_view descr;
  Tensor (*read)(DType to, const Shape& sizes, std::string_view bytes);
};

template <class T> Tensor read_as(DType to, const Shape& sizes, std::string_view bytes) {
  if (bytes.size() % sizeof(T) != 0 || bytes.size() / sizeof(T) != static_cast<std::size_t>(numel(sizes)))
    throwf("{} elements of {} bytes do not take the {} bytes that are there", to_string(sizes), sizeof(T),
           bytes.size());
  std::vector<std::int64_t> values;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    T value = 0;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    values.push_back(static_cast<std::int64_t>(value));
  }
  return from_data(values, sizes, {.dtype = to});
}
constexpr Widened kWidened[] = {{DType::i32, "|i1", read_as<std::int8_t>},
                                {DType::i32, "<i2", read_as<std::int16_t>},
                                {DType::i32, "<u2", read_as<std::uint16_t>},
                                {DType::i64, "<u4", read_as<std::uint32_t>}};

Tensor read_elements(std::string_view descr, const Shape& sizes, std::string_view bytes) {
  for (const Kind& k : kKinds)
    if (k.descr == descr) return tensor_of_bytes(k.dtype, sizes, bytes);
  for (const Widened& w : kWidened)
    if (w.descr == descr) return w.read(w.dtype, sizes, bytes);
  if (descr.starts_with('>'))
    throwf("dtype '{}' is big-endian; write it as little-endian: a.astype('<{}')", descr, descr.substr(1));
  if (descr.ends_with("V2") || descr.ends_with("V1"))
    throwf(
        "dtype '{}' is raw bytes, as ml_dtypes writes bfloat16 and 8-bit floats without saying which; "
        "write float32 or a safetensors file",
        descr);
  throwf("dtype '{}' is not read; allowed are <f8 <f4 <f2 <i8 <i4 <i2 |i1 <u4 <u2 |u1 |b1", descr);
}

// The header is the text of a Python dictionary. Converts it to JSON by a few replacements; null if that fails.
nlohmann::json parse_dictionary(std::string_view text) {
  constexpr std::string_view kPython = "()'TF";
  constexpr std::string_view kJson = "[]\"tf";
  std::string json;
  bool quoted = false;
  for (const char c : text) {
    quoted ^= c == '\'' || c == '"';
    if (!quoted && (c == ')' || c == '}')) json.resize(json.find_last_not_of(" ,") + 1);  // a comma may end a list
    const std::size_t at = quoted && c != '\'' ? std::string_view::npos : kPython.find(c);
    json += at == std::string_view::npos ? c : kJson[at];
  }
  return nlohmann::json::parse(bounded_json(json), nullptr, false);
}

// Returns the header's text and leaves the rest in `bytes`.
std::string_view split_header(std::string_view& bytes) {
  if (!bytes.starts_with(kMagic)) throw_error("does not start with \"\\x93NUMPY\"; it is not an .npy file");
  if (bytes.size() < 12) throwf("truncated: {} bytes", bytes.size());
  const int major = static_cast<unsigned char>(bytes[6]);
  const int minor = static_cast<unsigned char>(bytes[7]);
  if (major < 1 || major > 3 || minor != 0) throwf("version {}.{}; 1.0, 2.0 and 3.0 are read", major, minor);
  const std::size_t width = major == 1 ? 2 : 4;
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, width);
  bytes.remove_prefix(8 + width);
  if (length > bytes.size()) throwf("truncated: a header of {} bytes, but only {} follow", length, bytes.size());
  const std::string_view header = bytes.substr(0, length);
  bytes.remove_prefix(length);
  return header;
}

Tensor parse(std::string_view bytes) {
  const std::string_view text = split_header(bytes);
  const nlohmann::json header = parse_dictionary(text);
  const auto refuse = [&](const char* what) { throwf("header {}: {}", text.substr(0, 200), what); };
  if (!header.is_object()) refuse("it is not a dictionary");
  for (const char* key : {"descr", "fortran_order", "shape"})
    if (!header.contains(key) || header.size() != 3)
      refuse("it needs the keys descr, fortran_order and shape, no others");
  if (!header["descr"].is_string()) refuse("descr is not a string; structured arrays are not read");
  if (!header["fortran_order"].is_boolean()) refuse("fortran_order is neither True nor False");
  if (!header["shape"].is_array() || !std::ranges::all_of(header["shape"], &nlohmann::json::is_number_integer))
    refuse("shape is not a tuple of sizes");

  const auto descr = header["descr"].get<std::string>();
  const Shape sizes = header["shape"].get<std::vector<std::int64_t>>();
  if (!header["fortran_order"]) return read_elements(descr, sizes, bytes);
  Shape stored = sizes;
  std::ranges::reverse(stored);
  const Tensor t = read_elements(descr, stored, bytes);
  Shape strides = t.strides();
  std::ranges::reverse(strides);
  return as_strided(t, sizes, strides, 0);
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& name) {
  return in_context("npy \"" + name + "\"", [&] { return parse(bytes); });
}

Tensor load_npy(const std::string& path) { return parse_npy(read_file(path), path); }

void save_npy(const std::string& path, const Tensor& tensor) {
  const auto* kind = std::ranges::find(kKinds, tensor.dtype(), &Kind::dtype);
  if (kind == std::end(kKinds))
    throwf(
        "save_npy: NumPy has no {}; f32 holds all its values: save_npy(path, t.to(DType::f32)), or write safetensors",
        to_string(tensor.dtype()));
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", kind->descr,
                                   fmt::join(tensor.sizes(), ", "), tensor.dim() == 1 ? "," : "");
  header.append(63 - (10 + header.size()) % 64, ' ');  // the data then starts at a multiple of 64
  header += '\n';

  const Tensor dense = tensor.detach().to(Device::cpu()).contiguous();
  const auto length = static_cast<std::uint16_t>(header.size());
  AtomicFile file(path);
  file.write(kMagic);
  file.write(std::string_view("\x01\x00", 2));
  file.write(&length, sizeof length);
  file.write(header);
  file.write(dense.raw(), dense.nbytes());
  file.commit();
}

}  // namespace gradual
