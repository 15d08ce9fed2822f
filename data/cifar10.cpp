#include "cifar10.h"

#include <filesystem>

#include "../core/files/input_file.h"
#include "../core/ops/derived_ops.h"
#include "../core/ops/dispatch.h"
#include "../core/support/throwf.h"
#include "../core/tensor/literal.h"

namespace gradual::data {
namespace {

struct Kind {
  const char* name;
  std::int64_t labels;  // bytes before the pixels
  std::int64_t label;   // the one that is the target
  std::int64_t classes;
  double mean[3], deviation[3];
};
constexpr Kind kCifar10{"cifar10", 1, 0, 10, {0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616}};
constexpr Kind kFine{"cifar100", 2, 1, 100, {0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}};
constexpr Kind kCoarse{"cifar100", 2, 0, 20, {0.5071, 0.4865, 0.4409}, {0.2673, 0.2564, 0.2762}};

Tensor by_channel(const double (&values)[3]) {
  return from_data(std::vector<double>(values, values + 3), {3}).reshape({3, 1, 1});
}

// In f32.
Dataset parse(const Kind& kind, const std::string& bytes) {
  constexpr std::int64_t kPixels = 3 * 32 * 32;
  const std::int64_t record = kind.labels + kPixels;
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size == 0 || size % record != 0) throwf("{} bytes; a file has records of {}", size, record);
  const Tensor records = tensor_of_bytes(DType::u8, {size / record, record}, bytes);
  const Tensor labels = records.select(1, kind.label).to(DType::i64);
  const Tensor pixels = records.narrow(1, kind.labels, kPixels).to(DType::f32);
  if (const double most = max(labels).item(); most >= static_cast<double>(kind.classes))
    throwf("a label is {}; 0 to {} are allowed", most, kind.classes - 1);
  const Tensor images = pixels.reshape({-1, 3, 32, 32}) / 255;
  return {.inputs = (images - by_channel(kind.mean)) / by_channel(kind.deviation),
          .targets = labels,
          .classes = kind.classes,
          .name = kind.name};
}

Dataset read(const Kind& kind, const std::string& path) {
  return in_context(fmt::format("{} \"{}\"", kind.name, path), [&] { return parse(kind, read_file(path)); });
}

}  // namespace

Split cifar10(const std::string& folder) {
  std::vector<Tensor> inputs, targets;
  for (int i = 1; i <= 5; ++i) {
    const std::string path = fmt::format("{}/data_batch_{}.bin", folder, i);
    if (std::error_code none; !std::filesystem::exists(path, none)) continue;
    const Dataset part = read(kCifar10, path);
    inputs.push_back(part.inputs);
    targets.push_back(part.targets);
  }
  if (inputs.empty()) throwf("cifar10: \"{}\" has no data_batch_1.bin to data_batch_5.bin", folder);
  const Dataset test = read(kCifar10, folder + "/test_batch.bin");
  return {.train = {cat(inputs), cat(targets), test.classes, test.name}, .test = test};
}

Split cifar100(const std::string& folder, bool coarse) {
  const Kind& kind = coarse ? kCoarse : kFine;
  return {.train = read(kind, folder + "/train.bin"), .test = read(kind, folder + "/test.bin")};
}

Batch flip_and_crop(const Batch& batch, std::int64_t margin) {
  const Tensor& x = batch.inputs;
  if (x.dim() != 4 || x.dtype() != DType::f32 || !x.device().is_cpu() || margin < 0)
    throwf("flip_and_crop: {} with a margin of {}; allowed are f32 images [N, C, H, W] on the CPU and at least 0",
           describe(x), margin);
  const Scoped<Chain> bare(chain(), {});  // observers do not see this, on the loader's thread or on this one
  const std::int64_t moves = 2 * margin + 1;
  const std::int64_t height = x.size(2);
  const std::int64_t width = x.size(3);
  const Tensor padded = pad(x, {0, 0, margin, margin}, {0, 0, margin, margin});
  std::vector<Tensor> images;
  for (const std::int64_t draw : randint(0, 2 * moves * moves, x.size(0)).to_vector<std::int64_t>()) {
    const Tensor image = padded[std::ssize(images)];
    const Tensor part = image.narrow(1, draw / 2 / moves, height).narrow(2, draw / 2 % moves, width);
    images.push_back(draw % 2 ? flip(part, 2) : part);
  }
  return {stack(images), batch.targets, batch.first, batch.whole};
}

}  // namespace gradual::data
