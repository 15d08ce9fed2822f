#include <doctest/doctest.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/data/gzip.h>
#include <gradual/data/idx.h>
#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/files.h"

using namespace gradual;
using namespace gradual::data;
using test::message_of;

namespace {

std::string idx(std::vector<std::uint32_t> sizes, const std::string& bytes) {
  std::string out("\0\0\x08", 3);
  out += static_cast<char>(sizes.size());
  for (const std::uint32_t s : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(s >> shift);
  return out + bytes;
}

std::string packed(const std::string& bytes) {
  z_stream z{};
  REQUIRE(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&z, static_cast<uLong>(bytes.size())) + 32, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  z.avail_in = static_cast<uInt>(bytes.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

}  // namespace

TEST_CASE("idx: plain and gzipped bytes of any shape") {
  const std::string bytes = idx({2, 1, 3}, std::string("\x00\x01\x02\xfd\xfe\xff", 6));
  for (const std::string& file : {bytes, packed(bytes)}) {
    const Tensor t = parse_idx(file, "x");
    CHECK(t.dtype() == DType::u8);
    CHECK(t.sizes() == Shape{2, 1, 3});
    CHECK(t.to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 253, 254, 255});
  }
  CHECK(parse_idx(idx({0, 28, 28}, ""), "x").sizes() == Shape{0, 28, 28});
}

TEST_CASE("idx: a malformed file gives an error that names what is wrong") {
  const std::string good = idx({2, 2}, "abcd");
  std::string floats = good;
  floats[2] = 0x0a;
  std::string damaged = packed(good);
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);  // in the checksum
  const std::string big = packed(idx({1000, 100}, std::string(100000, 'x')));
  struct Row {
    std::string bytes, message;
  };
  const Row rows[] = {
      {"", "idx \"bad\": truncated: 0 bytes"},
      {std::string("\0\0\x08", 3), "idx \"bad\": truncated: 3 bytes"},
      {"P5 2 2 255", "idx \"bad\": does not start with two zero bytes; it is not an IDX file"},
      {floats, "idx \"bad\": element type 10; allowed are 8 (u8), 9 (i8), 11 (i16), 12 (i32), 13 (f32) and 14 (f64)"},
      {idx({}, "a"), "idx \"bad\": 0 dimensions; 1 to 8 are allowed"},
      {idx({1, 1, 1, 1, 1, 1, 1, 1, 1}, "a"), "idx \"bad\": 9 dimensions; 1 to 8 are allowed"},
      {good.substr(0, 9), "idx \"bad\": truncated within its sizes"},
      {good.substr(0, 15), "idx \"bad\": u8 [2, 2] does not take the 3 bytes that are there"},
      {good + "e", "idx \"bad\": u8 [2, 2] does not take the 5 bytes that are there"},
      {idx({0xffffffff, 0xffffffff, 0xffffffff}, ""),
       "idx \"bad\": too many elements: [4294967295, 4294967295, 4294967295]"},
      {idx({0xffffffff, 0x10000}, ""), "does not take the 0 bytes"},
      {packed(good).substr(0, 20), "gzip \"bad\": truncated"},
      {damaged, "gzip \"bad\": damaged: incorrect data check"},
      {packed(good) + "tail", "gzip \"bad\": damaged: incorrect header check"},
      {"\x1f\x8b\x07" + std::string(7, '\0'), "gzip \"bad\": damaged: unknown compression method"},
      {big.substr(0, big.size() / 2), "gzip \"bad\": truncated"},
  };
  for (const Row& row : rows) {
    const std::string message = message_of([&] { parse_idx(row.bytes, "bad"); });
    CAPTURE(message);
    CAPTURE(row.message);
    CHECK(test::contains(message, row.message));
  }
}

TEST_CASE("gzip: several members are one stream, and there is a limit") {
  CHECK(gunzip_if_packed(packed("one ") + packed("") + packed("two"), "x") == "one two");
  CHECK(gunzip_if_packed(packed(std::string(200000, 'x')), "x") == std::string(200000, 'x'));
  CHECK(message_of([] { gunzip_if_packed(packed(std::string(200000, 'x')), "x", 100000); }) ==
        "gzip \"x\": unpacks to more than the 100000 bytes allowed");
  CHECK(gunzip_if_packed("plain", "x") == "plain");
}

TEST_CASE("mnist: four files, plain or packed, become two normalised datasets") {
  const test::TemporaryFolder folder;
  std::string pixels(2 * 28 * 28, '\0');
  pixels[1] = '\xff';
  write_file_atomically(folder / "train-images-idx3-ubyte", idx({2, 28, 28}, pixels));
  write_file_atomically(folder / "train-labels-idx1-ubyte.gz", packed(idx({2}, "\x09\x03")));
  CHECK(test::contains(message_of([&] { mnist(folder.path()); }), "t10k-images-idx3-ubyte.gz\" is there"));
  write_file_atomically(folder / "t10k-images-idx3-ubyte.gz", packed(idx({1, 28, 28}, std::string(784, '\x80'))));
  write_file_atomically(folder / "t10k-labels-idx1-ubyte", idx({1}, "\x01"));
  const Split data = mnist(folder.path());
  CHECK(data.train.inputs.sizes() == Shape{2, 1, 28, 28});
  CHECK(data.train.inputs.dtype() == DType::f32);
  CHECK(data.train.inputs.data<float>()[0] == static_cast<float>(-0.1307 / 0.3081));
  CHECK(data.train.inputs.data<float>()[1] == static_cast<float>((1 - 0.1307) / 0.3081));
  CHECK(data.train.targets.to_vector<std::int64_t>() == std::vector<std::int64_t>{9, 3});
  CHECK(data.train.classes == 10);
  CHECK(data.test.size() == 1);

  write_file_atomically(folder / "t10k-labels-idx1-ubyte", idx({2}, "ab"));
  CHECK(test::contains(message_of([&] { mnist(folder.path()); }), "is [2] for images [1, 28, 28]"));
  write_file_atomically(folder / "t10k-labels-idx1-ubyte", idx({1}, "\x0a"));
  CHECK(test::contains(message_of([&] { mnist(folder.path()); }), "label 0 is 10"));
}

TEST_CASE("mnist: the real images have the mean and deviation that they are normalised with") {
  const std::string folder = test::shared_data("mnist9k");
  if (folder.empty()) {
    MESSAGE("skipped: ../shared/data/mnist9k is not there");
    return;
  }
  const Split data = mnist(folder);
  CHECK(data.train.size() == 8000);
  CHECK(data.test.size() == 1000);
  double sum = 0;
  double squares = 0;
  for (const float x : data.train.inputs.to_vector<float>()) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const auto n = static_cast<double>(data.train.inputs.numel());
  CHECK(std::abs(sum / n) < 0.02);
  CHECK(std::abs(std::sqrt(squares / n) - 1) < 0.02);
}

TEST_CASE("idx: signed bytes, 16- and 32-bit integers and floats are big-endian") {
  const auto typed = [](char type, const std::string& bytes) {
    std::string file = idx({2}, bytes);
    file[2] = type;
    return parse_idx(file, "x");
  };
  const Tensor bytes = typed(9, "\xff\x7f");
  CHECK(bytes.dtype() == DType::i32);
  CHECK(bytes.to_vector<std::int64_t>() == std::vector<std::int64_t>{-1, 127});
  CHECK(typed(11, std::string("\xff\xfe\x01\x00", 4)).to_vector<std::int64_t>() == std::vector<std::int64_t>{-2, 256});
  CHECK(typed(12, std::string("\xff\xff\xff\xfd\x00\x01\x00\x00", 8)).to_vector<std::int64_t>() ==
        std::vector<std::int64_t>{-3, 65536});
  const Tensor floats = typed(13, std::string("\x3f\xc0\x00\x00\xc0\x00\x00\x00", 8));
  CHECK(floats.dtype() == DType::f32);
  CHECK(floats.to_vector<double>() == std::vector<double>{1.5, -2});
  const Tensor doubles = typed(14, std::string("\x3f\xf8\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0", 16));
  CHECK(doubles.dtype() == DType::f64);
  CHECK(doubles.to_vector<double>() == std::vector<double>{1.5, -2});
  CHECK(test::contains(message_of([&] { typed(13, "abc"); }), "f32 [2] does not take the 3 bytes that are there"));
}

TEST_CASE("idx: a gzip file is unpacked no further than its sizes say") {
  const std::string bomb = packed(idx({2, 2}, std::string(50'000'000, '\0')));
  CHECK(message_of([&] { parse_idx(bomb, "x"); }) == "gzip \"x\": unpacks to more than the 68 bytes allowed");
  const std::string other = packed(std::string(50'000'000, '\0'));
  CHECK(test::contains(message_of([&] { parse_idx(other, "x"); }), "idx \"x\": element type 0; allowed are 8 (u8)"));
}

TEST_CASE("mnist: names with a dot before idx, as Kaggle has them") {
  const test::TemporaryFolder folder;
  for (const char* part : {"train", "t10k"}) {
    write_file_atomically(folder / (std::string(part) + "-images.idx3-ubyte"), idx({1, 2, 2}, "abcd"));
    write_file_atomically(folder / (std::string(part) + "-labels.idx1-ubyte"), idx({1}, "\x03"));
  }
  CHECK(mnist(folder.path()).train.targets.item() == 3);
}
