#include "cifar10.h"

#include <filesystem>

#include "../core/files/input_file.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::data {
namespace {

constexpr std::size_t kPixels = 3 * 32 * 32;

Dataset parse(std::string_view bytes) {
  if (bytes.empty() || bytes.size() % (kPixels + 1) != 0)
    throwf("{} bytes; a file has records of {}", bytes.size(), kPixels + 1);
  const auto n = static_cast<std::int64_t>(bytes.size() / (kPixels + 1));
  Dataset d{
      .inputs = empty({n, 3, 32, 32}), .targets = empty(n, {.dtype = DType::i64}), .classes = 10, .name = "cifar10"};
  constexpr double kMean[] = {0.4914, 0.4822, 0.4465}, kDeviation[] = {0.2470, 0.2435, 0.2616};
  auto* x = d.inputs.data<float>();
  for (std::int64_t i = 0; i < n; ++i, bytes.remove_prefix(kPixels + 1)) {
    const auto* record = reinterpret_cast<const unsigned char*>(bytes.data());
    if (record[0] > 9) throwf("label {} is {}; 0 to 9 are allowed", i, record[0]);
    d.targets.data<std::int64_t>()[i] = record[0];
    for (std::size_t p = 0; p < kPixels; ++p) {
      const std::size_t c = p / 1024;
      *x++ = static_cast<float>((record[1 + p] / 255.0 - kMean[c]) / kDeviation[c]);
    }
  }
  return d;
}

Dataset read(const std::string& path) {
  return in_context("cifar10 \"" + path + "\"", [&] { return parse(read_file(path)); });
}

}  // namespace

Split cifar10(const std::string& folder) {
  std::vector<Tensor> inputs, targets;
  for (int i = 1; i <= 5; ++i) {
    const std::string path = fmt::format("{}/data_batch_{}.bin", folder, i);
    if (std::error_code none; !std::filesystem::exists(path, none)) continue;
    const Dataset part = read(path);
    inputs.push_back(part.inputs), targets.push_back(part.targets);
  }
  if (inputs.empty()) throwf("cifar10: \"{}\" has no data_batch_1.bin to data_batch_5.bin", folder);
  Split both{.train = {}, .test = read(folder + "/test_batch.bin")};
  both.train = both.test;
  both.train.inputs = cat(inputs), both.train.targets = cat(targets);
  return both;
}

Batch flip_and_crop(const Batch& batch, std::int64_t margin) {
  const Tensor& x = batch.inputs;
  if (x.dim() != 4 || x.dtype() != DType::f32 || !x.device().is_cpu() || margin < 0)
    throwf("flip_and_crop: {} with a margin of {}; allowed are f32 images [N, C, H, W] on the CPU and at least 0",
           describe(x), margin);
  const std::int64_t n = x.size(0), channels = x.size(1), height = x.size(2), width = x.size(3);
  const std::vector<std::int64_t> drawn =
      randint(0, 2 * (2 * margin + 1) * (2 * margin + 1), n).to_vector<std::int64_t>();
  const Tensor source = contiguous(x);
  Batch out = batch;
  out.inputs = zeros(x.sizes());
  const auto* from = source.data<float>();
  auto* to = out.inputs.data<float>();
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t draw = drawn[static_cast<std::size_t>(i)], down = draw / 2 / (2 * margin + 1) - margin,
                       right = draw / 2 % (2 * margin + 1) - margin;
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t h = std::max<std::int64_t>(0, -down); h < std::min(height, height - down); ++h)
        for (std::int64_t w = std::max<std::int64_t>(0, -right); w < std::min(width, width - right); ++w) {
          const std::int64_t row = ((i * channels + c) * height + h) * width, column = w + right;
          to[row + w] = from[row + down * width + (draw % 2 ? width - 1 - column : column)];
        }
  }
  return out;
}

}  // namespace gradual::data
