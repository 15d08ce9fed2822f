// CIFAR-10's files, written here in their shape, and the augmentation.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <cmath>
#include <fstream>
#include <string>

#include "support/files.h"

using namespace gradual;

namespace {

struct Folder {
  ::test::TemporaryFolder temporary;
  std::string path = temporary.path();

  // `count` records; pixel p of image i is (i + p) % 256, its label i % 10 + shift.
  void write(const std::string& name, int count, int shift = 0, int drop = 0) const {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(i % 10 + shift);
      for (int p = 0; p < 3072; ++p) bytes += static_cast<char>((i + p) % 256);
    }
    bytes.resize(bytes.size() - static_cast<std::size_t>(drop));
    std::ofstream(path + "/" + name, std::ios::binary) << bytes;
  }
  std::string error() const {
    try {
      data::cifar10(path);
    } catch (const Error& e) { return e.what(); }
    return "no error";
  }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("cifar10 reads the batches that are there, normalised by channel") {
  const Folder folder;
  CHECK(contains(folder.error(), "has no data_batch_1.bin to data_batch_5.bin"));
  folder.write("data_batch_1.bin", 3);
  folder.write("data_batch_4.bin", 12);
  CHECK(contains(folder.error(), "test_batch.bin"));
  folder.write("test_batch.bin", 2);
  const data::Split both = data::cifar10(folder.path);
  CHECK(both.train.inputs.sizes() == Shape{15, 3, 32, 32});
  CHECK(both.test.size() == 2);
  CHECK(both.train.classes == 10);
  CHECK(both.train.targets[14].item() == 1);  // the twelfth of the second file
  const double mean[] = {0.4914, 0.4822, 0.4465};
  const double deviation[] = {0.2470, 0.2435, 0.2616};
  for (int c = 0; c < 3; ++c)
    CHECK(std::abs(both.train.inputs.index({4, c, 2, 5}).item() -
                   ((1 + c * 1024 + 2 * 32 + 5) % 256 / 255.0 - mean[c]) / deviation[c]) < 1e-6);

  folder.write("test_batch.bin", 2, 0, 1);
  CHECK(contains(folder.error(), "test_batch.bin\": 6145 bytes; a file has records of 3073"));
  folder.write("test_batch.bin", 2, 9);
  CHECK(contains(folder.error(), "a label is 10; 0 to 9 are allowed"));
}

TEST_CASE("flip_and_crop mirrors half of the images and moves them, with zeros at the rim") {
  const Tensor x = arange(1, 49).to(DType::f32).reshape({1, 2, 4, 6}).expand({400, 2, 4, 6});
  const data::Batch batch{.inputs = x, .targets = zeros(400, DType::i64)};
  const auto drawn = [&] {
    Generator generator(0);
    const GeneratorScope scope(generator);
    return data::flip_and_crop(batch, 1);
  };
  const data::Batch out = drawn();
  CHECK(out.inputs.sizes() == x.sizes());
  int mirrored = 0;
  int in_place = 0;
  for (int i = 0; i < 400; ++i) {
    const Tensor got = out.inputs[i];
    bool found = false;
    for (int flip = 0; flip < 2; ++flip)
      for (int down = -1; down <= 1; ++down)
        for (int right = -1; right <= 1; ++right) {
          Tensor want = flip ? gradual::flip(x[0], 2) : x[0];  // pixel (h, w) is the one at (h + down, w + right)
          want = pad(want, {0, 1, 1}, {0, 1, 1}).narrow(1, 1 + down, 4).narrow(2, 1 + right, 6);
          if (all(eq(got, want)).item() == 0) continue;
          found = true;
          mirrored += flip;
          in_place += down == 0 && right == 0;
        }
    CHECK(found);
  }
  CHECK(mirrored > 150);
  CHECK(mirrored < 250);
  CHECK(in_place > 20);
  CHECK(in_place < 80);
  CHECK(all(eq(drawn().inputs, out.inputs)).item() == 1);
  CHECK_THROWS_AS(data::flip_and_crop({.inputs = zeros({2, 3}), .targets = {}}), Error);
}

TEST_CASE("cifar100: fine and coarse labels before the pixels") {
  const Folder folder;
  const auto write = [&](const char* name, int fine) {
    std::string bytes{char{3}, static_cast<char>(fine)};
    for (int p = 0; p < 3072; ++p) bytes += static_cast<char>(p % 256);
    std::ofstream(folder.path + "/" + name, std::ios::binary) << bytes;
  };
  write("train.bin", 99);
  write("test.bin", 7);
  const data::Split fine = data::cifar100(folder.path);
  CHECK(fine.train.targets.item() == 99);
  CHECK(fine.test.targets.item() == 7);
  CHECK(fine.train.classes == 100);
  CHECK(std::abs(fine.train.inputs.index({0, 2, 0, 1}).item() - (1 / 255.0 - 0.4409) / 0.2762) < 1e-6);
  const data::Split coarse = data::cifar100(folder.path, true);
  CHECK(coarse.train.targets.item() == 3);
  CHECK(coarse.train.classes == 20);
  write("test.bin", 100);
  CHECK_THROWS_WITH_AS(data::cifar100(folder.path), doctest::Contains("a label is 100; 0 to 99 are allowed"), Error);
}
