#include <doctest/doctest.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/files/npy.h>
#include <gradual/core/files/safetensors.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/golden_values.h"

using namespace gradual;
using test::message_of;

namespace {

// A file of this header and this many bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes, char fill = 0) {
  std::string out(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i));
  return out + header + std::string(data_bytes, fill);
}

void check_equal(const StateDict& found, const StateDict& expected) {
  CHECK(found.size() == expected.size());
  for (const auto& [name, value] : expected) {
    const auto& name_shown = name;
    CAPTURE(name_shown);
    REQUIRE(found.contains(name));
    CHECK(test::same_bits(found.tensor(name), std::get<Tensor>(value)));
  }
}

}  // namespace

TEST_CASE("safetensors: all dtypes come back with the same bits, in the same order") {
  const test::TemporaryFolder folder;
  const StateDict expected = test::golden_values();
  save_safetensors(folder / "a.safetensors", expected, {{"made by", "gradual"}, {"é", "ü"}});
  const Safetensors found = load_safetensors(folder / "a.safetensors");
  check_equal(found.tensors, expected);
  auto entry = found.tensors.begin();
  for (const auto& [name, value] : expected) CHECK((entry++)->name == name);
  CHECK(found.metadata.at("é") == "ü");
  CHECK(found.metadata.size() == 2);
  CHECK(folder.names() == std::vector<std::string>{"a.safetensors"});
}

TEST_CASE("safetensors: the reference implementation's file is read, and written again byte for byte") {
  const std::string path = test::golden("all.safetensors");
  const Safetensors found = load_safetensors(path);
  check_equal(found.tensors, test::golden_values());
  CHECK(found.metadata.at("made by") == "safetensors");
  const test::TemporaryFolder folder;
  save_safetensors(folder / "again", found.tensors, found.metadata);
  CHECK(read_file(folder / "again") == read_file(path));
}

TEST_CASE("files for make_files.py --check") {
  // Set GRADUAL_TEST_WRITE_FILES to a folder and have Python read what is written there.
  const char* folder = std::getenv("GRADUAL_TEST_WRITE_FILES");
  if (!folder) return;
  const StateDict values = test::golden_values();
  save_safetensors(std::string(folder) + "/all.safetensors", values, {{"made by", "gradual"}, {"é", "ü"}});
  for (const auto& [name, value] : values) {
    const Tensor& t = std::get<Tensor>(value);
    if (t.dtype() != DType::bf16 && !is_f8(t.dtype())) save_npy(std::string(folder) + "/" + name + ".npy", t);
  }
}

TEST_CASE("safetensors: every tensor's data is aligned to its elements") {
  const test::TemporaryFolder folder;
  StateDict state;
  state.set("odd", test::integers({1, 2, 3}, {3}, DType::u8));
  state.set("wide", test::doubles({1}, {1}, DType::f64));
  state.set("half", test::doubles({1}, {1}, DType::f16));
  save_safetensors(folder / "a", state);
  const std::string bytes = read_file(folder / "a");
  CHECK(static_cast<unsigned char>(bytes[0]) % 8 == 0);
  CHECK(test::contains(bytes, R"("wide":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})"));
  CHECK(test::contains(bytes, R"("half":{"dtype":"F16","shape":[1],"data_offsets":[8,10]})"));
  check_equal(load_safetensors(folder / "a").tensors, state);
}

TEST_CASE("safetensors: a strided tensor is written row-major") {
  const test::TemporaryFolder folder;
  StateDict state;
  const Tensor t = test::integers({1, 2, 3, 4, 5, 6}, {2, 3}, DType::i32);
  state.set("t", as_strided(t, {3, 2}, {1, 3}, 0));
  save_safetensors(folder / "a", state);
  CHECK(load_safetensors(folder / "a").tensors.tensor("t").to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{1, 4, 2, 5, 3, 6});
}

TEST_CASE("safetensors: no tensors, empty metadata") {
  const test::TemporaryFolder folder;
  save_safetensors(folder / "a", {});
  CHECK(load_safetensors(folder / "a").tensors.empty());
  CHECK(parse_safetensors(file_of("{}", 0), "x").tensors.empty());
  CHECK(parse_safetensors(file_of(R"({"__metadata__":{}}   )", 0), "x").metadata.empty());
}

TEST_CASE("safetensors: a malformed file gives an error that names what is wrong") {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  CHECK(parse_safetensors(file_of(good, 8), "x").tensors.tensor("a").numel() == 2);
  struct Row {
    std::string bytes, message;
  };
  const auto entry = [](const std::string& inside) { return R"({"a":{)" + inside + "}}"; };
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  const Row rows[] = {
      {"", "has 0 bytes, less than its header's length takes"},
      {"abc", "has 3 bytes, less than its header's length takes"},
      {std::string(8, '\xff'), "a header of 18446744073709551615 bytes, at most 100000000 are allowed"},
      {"GIF89a\x01\x02 and so on", "at most 100000000 are allowed; is it a safetensors file?"},
      {file_of(good, 8).substr(0, 20), "a header of 54 bytes, but only 12 follow; the file is truncated"},
      {file_of(good, 7), "tensor \"a\": data_offsets [0,8] do not lie in order within the 7 bytes of data"},
      {file_of(good, 9), "1 bytes are left over after the last tensor's data"},
      {file_of("", 0), "the header does not start with \"{\""},
      {file_of(" {}", 0), "the header does not start with \"{\""},
      {file_of("{", 0), "not JSON: line 1, column 2"},
      {file_of("{}x", 0), "not JSON"},
      {file_of("{\"\xff\":1}", 0), "not JSON"},
      {file_of(R"({"a":1})", 0), "tensor \"a\": its entry is not an object"},
      {file_of(R"({"a":[[[[[[]]]]]]})", 0), "tensor \"a\": its entry is not an object"},
      {file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})", 0), "the key \"a\" is given twice"},
      {file_of(entry(R"("dtype":"U8","dtype":"U8")"), 0), "the key \"dtype\" is given twice"},
      {file_of(entry(R"("dtype":"F32","shape":[2])"), 8), "tensor \"a\": has no \"data_offsets\""},
      {file_of(entry(R"("dtype":"F4","shape":[2],"data_offsets":[0,8])"), 8),
       "tensor \"a\": F4 [2] does not take the 8 bytes that are there"},
      {file_of(entry(R"("dtype":"U64","shape":[4611686018427387904],"data_offsets":[0,8])"), 8),
       "does not take the 8 bytes that are there"},
      {file_of(entry(R"("dtype":"F5","shape":[2],"data_offsets":[0,8])"), 8),
       "tensor \"a\": dtype \"F5\" is unknown; allowed are F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, "
       "U8, BOOL"},
      {file_of(entry(R"("dtype":7,"shape":[2],"data_offsets":[0,8])"), 8), "dtype 7 is unknown"},
      {file_of(entry(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), 8),
       "tensor \"a\": shape 2 is not a list of sizes"},
      {file_of(entry(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8), "shape [-2] is not a list of sizes"},
      {file_of(entry(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8), "shape [2.0] is not a list of sizes"},
      {file_of(entry(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8])"), 8),
       "is not a list of sizes"},
      {file_of(entry(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"), 8),
       "tensor \"a\": a tensor has at most 8 dimensions"},
      {file_of(entry(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"), 8), "too many elements"},
      {file_of(entry(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])"), 0),
       "too many elements"},
      {file_of(entry(R"("dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0])"), 0),
       "f64 [4611686018427387904] does not take the 0 bytes"},
      {file_of(entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8),
       "tensor \"a\": f32 [3] does not take the 8 bytes that are there"},
      {file_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8),
       "data_offsets [8,0] do not lie in order"},
      {file_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), 8), "are not two unsigned integers"},
      {file_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[-1,7])"), 8), "are not two unsigned integers"},
      {file_of(entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,1e400])"), 8), "not JSON"},
      {file_of(two("[0,4]", "[2,6]"), 6), "tensor \"b\": its data starts at byte 2, within another tensor's"},
      {file_of(two("[0,4]", "[0,4]"), 4), "tensor \"b\": its data starts at byte 0, within another tensor's"},
      {file_of(two("[0,4]", "[5,9]"), 9),
       "tensor \"b\": its data starts at byte 5, but bytes from 4 on belong to none"},
      {file_of(two("[4,8]", "[0,4]"), 9), "1 bytes are left over"},
      {file_of(R"({"__metadata__":[]})", 0), "__metadata__ is not an object"},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "__metadata__: \"a\" is not text"},
  };
  for (const Row& row : rows) {
    const std::string message = message_of([&] { parse_safetensors(row.bytes, "bad.safetensors"); });
    CAPTURE(message);
    CAPTURE(row.message);
    CHECK(message.starts_with("safetensors \"bad.safetensors\": "));
    CHECK(test::contains(message, row.message));
  }
}

TEST_CASE("safetensors: what cannot be written is refused and leaves the old file alone") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a";
  write_file_atomically(path, "old");
  StateDict number;
  number.set("step", 3);
  CHECK(message_of([&] { save_safetensors(path, number); }) ==
        "save_safetensors: \"" + path +
            "\": \"step\" is the integer 3, the format has tensors only; save_checkpoint has both");
  StateDict reserved;
  reserved.set("__metadata__", test::doubles({1}, {1}, DType::f32));
  CHECK(test::contains(message_of([&] { save_safetensors(path, reserved); }), "cannot be called __metadata__"));
  StateDict not_text;
  not_text.set("\xff", test::doubles({1}, {1}, DType::f32));
  CHECK(test::contains(message_of([&] { save_safetensors(path, not_text); }), "a name or text is not valid UTF-8"));
  CHECK(read_file(path) == "old");
  CHECK(folder.names().size() == 1);
  CHECK(test::contains(message_of([&] { load_safetensors(folder / "b"); }), "No such file"));
  CHECK(test::contains(message_of([&] { load_safetensors(folder.path()); }), "it is a folder"));
  CHECK(test::contains(message_of([&] { save_safetensors(folder / "no/such/a", {}); }), "No such file"));
}

TEST_CASE("safetensors: a dtype that no tensor has leaves the file's other tensors readable") {
  struct Row {
    std::string dtype, shape;
    int bytes;
  };
  const Row rows[] = {{"I8", "[4]", 4},  {"I16", "[2]", 4},     {"U16", "[2]", 4},
                      {"U32", "[1]", 4}, {"U64", "[1]", 8},     {"C64", "[1]", 8},
                      {"F4", "[8]", 4},  {"F8_E8M0", "[4]", 4}, {"F6_E2M3", "[4]", 3}};
  for (const Row& row : rows) {
    const std::string offsets = "[4," + std::to_string(4 + row.bytes) + "]";
    const std::string header = R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"s":{"dtype":")" + row.dtype +
                               R"(","shape":)" + row.shape + R"(,"data_offsets":)" + offsets + "}}";
    const Safetensors file = parse_safetensors(file_of(header, 4 + row.bytes), "x");
    CAPTURE(row.dtype);
    CHECK(file.tensor("w").numel() == 4);
    CHECK_FALSE(file.tensors.contains("s"));
    REQUIRE(file.unread.size() == 1);
    CHECK(file.unread[0].name == "s");
    CHECK(
        test::contains(message_of([&] { file.tensor("s"); }), "safetensors: \"s\" is " + row.dtype + " " + row.shape));
  }
}

TEST_CASE("safetensors: other keys, an empty name and bools above 1, as the reference reads them") {
  const std::string header = R"({"":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3],"about":{"x":[1]}}})";
  std::string bytes = file_of(header, 3);
  bytes[bytes.size() - 3] = 0;
  bytes[bytes.size() - 2] = 2;
  bytes[bytes.size() - 1] = static_cast<char>(255);
  const Tensor t = parse_safetensors(bytes, "x").tensors.tensor("");
  CHECK(t.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 1});
  CHECK(t.data<bool>()[1] == true);
}
