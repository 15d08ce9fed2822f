#include <doctest/doctest.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/npy.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/golden_values.h"

using namespace gradual;
using test::message_of;

namespace {

std::string file_of(const std::string& header, std::size_t data_bytes, char fill = 0, int major = 1) {
  std::string out = "\x93NUMPY";
  out += static_cast<char>(major);
  out += '\0';
  const std::size_t width = major == 1 ? 2 : 4;
  for (std::size_t i = 0; i < width; ++i) out += static_cast<char>(header.size() >> (8 * i));
  return out + header + std::string(data_bytes, fill);
}

}  // namespace

TEST_CASE("npy: NumPy's files are read, and written again byte for byte") {
  const test::TemporaryFolder folder;
  const StateDict expected = test::golden_values();
  for (const char* name : {"f64", "f32", "f16", "i64", "i32", "u8", "bool", "empty", "scalar"}) {
    CAPTURE(name);
    const std::string path = test::golden(std::string(name) + ".npy");
    const Tensor t = load_npy(path);
    CHECK(test::same_bits(t, expected.tensor(name)));
    save_npy(folder / name, t);
    CHECK(read_file(folder / name) == read_file(path));
  }
}

TEST_CASE("npy: version 2 and Fortran order") {
  CHECK(load_npy(test::golden("version2.npy")).to_vector<double>() == std::vector<double>{0, 1, 2, 3});
  const Tensor t = load_npy(test::golden("fortran.npy"));
  CHECK(t.sizes() == Shape{2, 3});
  CHECK(t.strides() == Shape{1, 2});
  CHECK(t.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
  const test::TemporaryFolder folder;
  save_npy(folder / "a", t);  // a strided tensor is written row-major
  CHECK(load_npy(folder / "a").is_contiguous());
  CHECK(load_npy(folder / "a").to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("npy: the header may be written in other ways that Python reads") {
  const Tensor t = parse_npy(file_of(R"({"shape":(2,1,),"fortran_order":False,"descr":"|u1"})", 2, 9, 2), "x");
  CHECK(t.sizes() == Shape{2, 1});
  CHECK(t.to_vector<std::int64_t>() == std::vector<std::int64_t>{9, 9});
}

TEST_CASE("npy: what NumPy has not or what differs between machines is refused") {
  CHECK(message_of([] { save_npy("x", test::doubles({1}, {1}, DType::bf16)); }) ==
        "save_npy: NumPy has no bf16; f32 holds all its values: save_npy(path, t.to(DType::f32)), or write "
        "safetensors");
  CHECK(test::contains(message_of([] { load_npy(test::golden("big_endian.npy")); }),
                       "dtype '>f4' is big-endian; write it as little-endian: a.astype('<f4')"));
  CHECK(test::contains(message_of([] { load_npy(test::golden("bf16.npy")); }), "dtype '<V2' is raw bytes"));
  CHECK(test::contains(message_of([] { load_npy(test::golden("structured.npy")); }), "structured arrays are not read"));
}

TEST_CASE("npy: a malformed file gives an error that names what is wrong") {
  const auto header = [](const std::string& descr, const std::string& order, const std::string& shape) {
    return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  };
  const std::string good = header("'<f4'", "False", "(2,)");
  CHECK(parse_npy(file_of(good, 8), "x").numel() == 2);
  struct Row {
    std::string bytes, message;
  };
  const Row rows[] = {
      {"", "it is not an .npy file"},
      {"PK\x03\x04 a zip archive", "it is not an .npy file"},
      {"\x93NUMPY", "truncated: 6 bytes"},
      {file_of(good, 8, 0, 4), "version 4.0; 1.0, 2.0 and 3.0 are read"},
      {file_of(good, 8).substr(0, 30), "but only 20 follow"},
      {file_of(good, 8, 0, 2).substr(0, 11), "truncated: 11 bytes"},
      {file_of(good, 7), "f32 [2] does not take the 7 bytes that are there"},
      {file_of(good, 9), "f32 [2] does not take the 9 bytes that are there"},
      {file_of("", 0), "truncated: 10 bytes"},
      {file_of("[]", 0), "header []: it is not a dictionary"},
      {file_of("{'descr': '<f4'", 0), "it is not a dictionary"},
      {file_of("{'descr': '<f4", 0), "it is not a dictionary"},
      {file_of("{'descr' '<f4'}", 0), "it is not a dictionary"},
      {file_of("{'descr': '<f4'}", 0), "it needs the keys descr, fortran_order and shape, no others"},
      {file_of("{'descr': '<f4', 'descr': '<f4'}", 0), "it needs the keys descr, fortran_order and shape, no others"},
      {file_of("{'colour': '<f4'}", 0), "it needs the keys descr, fortran_order and shape, no others"},
      {file_of(good + "x", 8), "it is not a dictionary"},
      {file_of(header("'<f4'", "1", "(2,)"), 8), "fortran_order is neither True nor False"},
      {file_of(header("'<f4'", "Maybe", "(2,)"), 8), "it is not a dictionary"},
      {file_of(header("'<f4'", "False", "2"), 8), "shape is not a tuple of sizes"},
      {file_of(header("'<f4'", "False", "(-2,)"), 8), "a size cannot be negative: [-2]"},
      {file_of(header("'<f4'", "False", "(2 3)"), 8), "it is not a dictionary"},
      {file_of(header("'<f4'", "False", "(99999999999999999999,)"), 8), "shape is not a tuple of sizes"},
      {file_of(header("'<f4'", "False", "(0, 4294967296, 4294967296)"), 0),
       "too many elements: [0, 4294967296, 4294967296]"},
      {file_of(header("'<f8'", "False", "(4611686018427387904,)"), 0), "does not take the 0 bytes that are there"},
      {file_of(header("'<f4'", "False", "(1,1,1,1,1,1,1,1,2)"), 8), "at most 8 dimensions"},
      {file_of(header("'<c8'", "False", "(1,)"), 8),
       "dtype '<c8' is not read; allowed are <f8 <f4 <f2 <i8 <i4 <i2 |i1 <u4 <u2 |u1 |b1"},
      {file_of(header("'|f4'", "False", "(2,)"), 8), "dtype '|f4' is not read"},
      {file_of(header("'|O'", "False", "(1,)"), 8), "dtype '|O' is not read"},
      {file_of(header("''", "False", "(1,)"), 8), "dtype '' is not read"},
  };
  for (const Row& row : rows) {
    const std::string message = message_of([&] { parse_npy(row.bytes, "bad.npy"); });
    CAPTURE(message);
    CAPTURE(row.message);
    CHECK(message.starts_with("npy \"bad.npy\": "));
    CHECK(test::contains(message, row.message));
  }
}

TEST_CASE("npy: version 3.0, small integers and bools above 1") {
  const auto file = [](const std::string& descr, const std::string& shape, const std::string& data) {
    const std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }\n";
    return parse_npy(file_of(header, 0, 0, 3) + data, "x");
  };
  using Values = std::vector<std::int64_t>;
  const Tensor bytes = file("|i1", "(2,)", "\xff\x7f");
  CHECK(bytes.dtype() == DType::i32);
  CHECK(bytes.to_vector<std::int64_t>() == Values{-1, 127});
  CHECK(file("<i2", "(1, 2)", std::string("\xfe\xff\x00\x01", 4)).to_vector<std::int64_t>() == Values{-2, 256});
  CHECK(file("<u2", "(1,)", "\xff\xff").to_vector<std::int64_t>() == Values{65535});
  const Tensor wide = file("<u4", "(1,)", "\xff\xff\xff\xff");
  CHECK(wide.dtype() == DType::i64);
  CHECK(wide.to_vector<std::int64_t>() == Values{4294967295});
  CHECK(file("|b1", "(3,)", std::string("\x00\x01\x05", 3)).to_vector<std::int64_t>() == Values{0, 1, 1});
  CHECK(test::contains(message_of([&] { file("<i2", "(2,)", "abc"); }), "do not take the 3 bytes that are there"));
}
