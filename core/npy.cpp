#include "npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "atomic_file.h"
#include "input_file.h"

namespace gradual {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's bytes are copied as they are");

constexpr std::string_view kMagic = "\x93NUMPY";

struct Kind {
  DType dtype;
  std::string_view descr;
};
constexpr Kind kKinds[] = {{DType::f64, "<f8"}, {DType::f32, "<f4"}, {DType::f16, "<f2"},  {DType::i64, "<i8"},
                           {DType::i32, "<i4"}, {DType::u8, "|u1"},  {DType::bool_, "|b1"}};

DType parse_descr(std::string_view descr) {
  for (const Kind& k : kKinds)
    if (k.descr == descr) return k.dtype;
  const std::string found = "dtype '" + std::string(descr) + "'";
  if (descr.starts_with('>'))
    fail(found + " is big-endian; write it as little-endian: a.astype('<" + std::string(descr.substr(1)) + "')");
  if (descr.ends_with("V2") || descr.ends_with("V1"))
    fail(found +
         " is raw bytes, as ml_dtypes writes bfloat16 and 8-bit floats without saying which; "
         "write float32 or a safetensors file");
  fail(found + " is not read; allowed are <f8 <f4 <f2 <i8 <i4 |u1 |b1");
}

// The header is the text of a Python dictionary with three known keys.
struct Header {
  std::string_view descr;
  bool fortran_order = false;
  Shape sizes;
};

struct Cursor {
  std::string_view text;
  std::size_t at = 0;

  [[noreturn]] void refuse(const std::string& what) const {
    fail("header, character " + std::to_string(at) + ": " + what);
  }
  bool take(std::string_view word) {  // skipping blanks
    at = std::min(text.find_first_not_of(" \n", at), text.size());
    if (!text.substr(at).starts_with(word)) return false;
    at += word.size();
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) refuse("expected " + std::string(word));
  }
  std::string_view string() {
    const char* quote = take("'") ? "'" : "\"";
    if (*quote == '"' && !take(quote)) refuse("expected a string; structured arrays are not read");
    const std::size_t end = text.find(quote, at);
    if (end == std::string_view::npos) refuse("a string does not end");
    const std::string_view out = text.substr(at, end - at);
    at = end + 1;
    return out;
  }
  Shape sizes() {
    Shape out;
    expect("(");
    while (!take(")")) {
      std::int64_t size = 0;
      const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), size);
      if (error != std::errc()) refuse("expected a size");
      out.push_back(size);
      at = static_cast<std::size_t>(end - text.data());
      if (!take(",")) {
        expect(")");
        break;
      }
    }
    return out;
  }
};

Header parse_header(std::string_view text) {
  Cursor c{.text = text};
  Header h;
  std::string seen;  // the keys, sorted
  c.expect("{");
  while (!c.take("}")) {
    const std::string_view key = c.string();
    c.expect(":");
    if (key == "descr") {
      h.descr = c.string();
    } else if (key == "fortran_order") {
      h.fortran_order = c.take("True");
      if (!h.fortran_order) c.expect("False");
    } else if (key == "shape") {
      h.sizes = c.sizes();
    } else {
      c.refuse("unknown key '" + std::string(key) + "'");
    }
    seen += key[0];
    if (!c.take(",")) {
      c.expect("}");
      break;
    }
  }
  std::sort(seen.begin(), seen.end());
  if (seen != "dfs") c.refuse("it needs each of the keys descr, fortran_order and shape once");
  c.take("");
  if (c.at != text.size()) c.refuse("something follows the dictionary");
  return h;
}

// The header's text; what follows it stays in `bytes`.
std::string_view split_header(std::string_view& bytes) {
  if (!bytes.starts_with(kMagic)) fail("does not start with \"\\x93NUMPY\"; it is no .npy file");
  if (bytes.size() < 12) fail("truncated: " + std::to_string(bytes.size()) + " bytes");
  const int major = static_cast<unsigned char>(bytes[6]);
  const int minor = static_cast<unsigned char>(bytes[7]);
  if ((major != 1 && major != 2) || minor != 0)
    fail("version " + std::to_string(major) + "." + std::to_string(minor) + "; 1.0 and 2.0 are read");
  const std::size_t width = major == 1 ? 2 : 4;
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, width);
  bytes.remove_prefix(8 + width);
  if (length > bytes.size())
    fail("truncated: a header of " + std::to_string(length) + " bytes, but only " + std::to_string(bytes.size()) +
         " follow");
  const std::string_view header = bytes.substr(0, length);
  bytes.remove_prefix(length);
  return header;
}

Tensor parse(std::string_view bytes) {
  const Header h = parse_header(split_header(bytes));
  const DType dtype = parse_descr(h.descr);
  const std::size_t width = size_of(dtype);
  if (bytes.size() % width != 0 || bytes.size() / width != static_cast<std::uint64_t>(numel(h.sizes)))
    fail(std::string(name(dtype)) + " " + to_string(h.sizes) + " does not take the " + std::to_string(bytes.size()) +
         " bytes that follow the header");
  if (dtype == DType::bool_ && std::any_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c > 1; }))
    fail("a bool byte is neither 0 nor 1");

  Shape stored = h.sizes;
  if (h.fortran_order) std::reverse(stored.begin(), stored.end());
  const Tensor t = empty(stored, {.dtype = dtype});
  if (!bytes.empty()) std::memcpy(t.raw(), bytes.data(), bytes.size());
  if (!h.fortran_order) return t;
  Shape strides = t.strides();
  std::reverse(strides.begin(), strides.end());
  return as_strided(t, h.sizes, strides, 0);
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& name) {
  return in_context("npy \"" + name + "\"", [&] { return parse(bytes); });
}

Tensor load_npy(const std::string& path) { return parse_npy(read_file(path), path); }

void save_npy(const std::string& path, const Tensor& tensor) {
  const auto* kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.dtype == tensor.dtype(); });
  if (kind == std::end(kKinds))
    fail("save_npy: NumPy has no " + std::string(name(tensor.dtype())) +
         "; f32 holds all its values: save_npy(path, t.to(DType::f32)), or write safetensors");
  std::string header = "{'descr': '" + std::string(kind->descr) + "', 'fortran_order': False, 'shape': (";
  const Shape& sizes = tensor.sizes();
  for (int i = 0; i < sizes.size(); ++i) header += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  header += sizes.size() == 1 ? ",), }" : "), }";
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
