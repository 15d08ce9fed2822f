#include "npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>

#include "atomic_file.h"
#include "input_file.h"

namespace gradual {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's bytes are copied as they are");

constexpr std::string_view kMagic = "\x93NUMPY";

struct Kind {
  DType dtype;
  std::string_view code;
};
constexpr Kind kKinds[] = {{DType::f64, "f8"}, {DType::f32, "f4"}, {DType::f16, "f2"},  {DType::i64, "i8"},
                           {DType::i32, "i4"}, {DType::u8, "u1"},  {DType::bool_, "b1"}};
constexpr const char* kAllowed = "allowed are <f8 <f4 <f2 <i8 <i4 |u1 |b1";

[[noreturn]] void refuse(const std::string& file, const std::string& what) {
  fail("npy \"" + file + "\": " + what);
}

// The header is the text of a Python dictionary with three known keys.
struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<Shape> sizes;
};

class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  Header parse() {
    Header h;
    expect('{');
    while (!take('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !h.descr) {
        if (peek() == '[') fail_here("structured arrays are not read");
        h.descr = string();
      } else if (key == "fortran_order" && !h.fortran_order) {
        h.fortran_order = boolean();
      } else if (key == "shape" && !h.sizes) {
        h.sizes = shape();
      } else {
        fail_here("the key '" + key + "' is unknown or there twice");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    if (peek() != '\0') fail_here("something follows the dictionary");
    if (!h.descr || !h.fortran_order || !h.sizes)
      fail_here("it needs the keys descr, fortran_order and shape");
    return h;
  }

 private:
  [[noreturn]] void fail_here(const std::string& what) const {
    refuse(file_, "header, character " + std::to_string(at_) + ": " + what);
  }
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail_here(std::string("expected '") + c + "'");
  }
  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail_here("expected a string");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail_here("a string does not end");
    const std::string out(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return out;
  }
  bool boolean() {
    static_cast<void>(peek());
    for (const std::string_view word : {std::string_view("True"), std::string_view("False")}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return word == "True";
    }
    fail_here("expected True or False");
  }
  Shape shape() {
    Shape sizes;
    std::int64_t product = 1;  // of the sizes that are not 0: strides are such products
    expect('(');
    while (!take(')')) {
      static_cast<void>(peek());
      std::int64_t size = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0) fail_here("expected a size");
      if (size != 0 && __builtin_mul_overflow(product, size, &product))
        fail_here("the shape has too many elements");
      if (sizes.size() == kMaxDims)
        fail_here("at most " + std::to_string(kMaxDims) + " dimensions are allowed");
      sizes.push_back(size);
      at_ = static_cast<std::size_t>(end - text_.data());
      if (!take(',') && peek() != ')') fail_here("expected ',' or ')'");
    }
    return sizes;
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
};

DType parse_descr(const std::string& descr, const std::string& file) {
  const std::string found = "dtype '" + descr + "'";
  const std::string code = descr.empty() ? "" : descr.substr(1);
  if (descr.starts_with('>'))
    refuse(file, found + " is big-endian; write it as little-endian: a.astype('<" + code + "')");
  if (code == "V2" || code == "V1")
    refuse(file,
           found +
               " is raw bytes, which is how ml_dtypes writes bfloat16 and 8-bit floats: it does not say "
               "which; write float32 or a safetensors file");
  const auto* kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.code == code; });
  const bool order_is_known = descr.starts_with('<') || (descr.starts_with('|') && code.ends_with('1'));
  if (kind == std::end(kKinds) || !order_is_known) refuse(file, found + " is not read; " + kAllowed);
  return kind->dtype;
}

// The header's text; sets `data` to what follows it.
std::string_view split_header(std::string_view bytes, const std::string& file, std::string_view& data) {
  if (!bytes.starts_with(kMagic)) refuse(file, "does not start with \"\\x93NUMPY\"; it is no .npy file");
  if (bytes.size() < 10) refuse(file, "truncated: " + std::to_string(bytes.size()) + " bytes");
  const int major = static_cast<unsigned char>(bytes[6]);
  const int minor = static_cast<unsigned char>(bytes[7]);
  if ((major != 1 && major != 2) || minor != 0)
    refuse(file, "version " + std::to_string(major) + "." + std::to_string(minor) + "; 1.0 and 2.0 are read");
  const std::size_t width = major == 1 ? 2 : 4;
  if (bytes.size() < 8 + width) refuse(file, "truncated: " + std::to_string(bytes.size()) + " bytes");
  std::uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, width);
  const std::string_view rest = bytes.substr(8 + width);
  if (length > rest.size())
    refuse(file, "truncated: a header of " + std::to_string(length) + " bytes, but only " +
                     std::to_string(rest.size()) + " follow");
  data = rest.substr(length);
  return rest.substr(0, length);
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& file) {
  std::string_view data;
  const Header h = HeaderParser(split_header(bytes, file, data), file).parse();
  const DType dtype = parse_descr(*h.descr, file);
  const Shape& sizes = *h.sizes;
  std::uint64_t needed = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(numel(sizes)), size_of(dtype), &needed) ||
      needed != data.size())
    refuse(file, std::string(name(dtype)) + " " + to_string(sizes) + " takes " + std::to_string(needed) +
                     " bytes, " + std::to_string(data.size()) + " follow the header");
  if (dtype == DType::bool_ && std::any_of(data.begin(), data.end(), [](unsigned char c) { return c > 1; }))
    refuse(file, "a bool byte is neither 0 nor 1");

  Shape stored = sizes;
  if (*h.fortran_order) std::reverse(stored.begin(), stored.end());
  const Tensor t = empty(stored, {.dtype = dtype});
  if (!data.empty()) std::memcpy(t.raw(), data.data(), data.size());
  if (!*h.fortran_order) return t;
  Shape strides = t.strides();
  std::reverse(strides.begin(), strides.end());
  return as_strided(t, sizes, strides, 0);
}

Tensor load_npy(const std::string& path) { return parse_npy(read_file(path), path); }

void save_npy(const std::string& path, const Tensor& tensor) {
  const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](const Kind& k) { return k.dtype == tensor.dtype(); });
  if (kind == std::end(kKinds))
    fail("save_npy: NumPy has no " + std::string(name(tensor.dtype())) +
         "; f32 holds all its values: save_npy(path, t.to(DType::f32)), or write safetensors");
  std::string header = "{'descr': '" + std::string(size_of(kind->dtype) == 1 ? "|" : "<") +
                       std::string(kind->code) + "', 'fortran_order': False, 'shape': (";
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
