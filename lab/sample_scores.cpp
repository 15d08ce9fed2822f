#include "sample_scores.h"

#include <cstddef>
#include <cstring>

#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"

namespace gradual::lab {
namespace {

// FNV-1a by words of 8 bytes.
class Hash {
 public:
  void add(const void* bytes, std::size_t count) {
    const auto* at = static_cast<const std::byte*>(bytes);
    while (count > 0) {
      const std::size_t taken = count < sizeof(std::uint64_t) ? count : sizeof(std::uint64_t);
      std::uint64_t word = 0;
      std::memcpy(&word, at, taken);
      value_ ^= word;
      value_ *= 0x100000001b3U;
      value_ ^= value_ >> 32;
      at += taken;
      count -= taken;
    }
  }
  std::uint32_t folded() const { return static_cast<std::uint32_t>(value_ ^ (value_ >> 32)); }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

void add_row(Hash& hash, const Tensor& rows, std::int64_t index) {
  const Tensor row = rows.narrow(0, index, 1).to(Device::cpu()).contiguous();
  hash.add(row.raw(), static_cast<std::size_t>(row.numel()) * size_of(row.dtype()));
}

// [.., C] with [..] as rows.
Tensor as_rows(const Tensor& logits) { return reshape(logits, {-1, logits.sizes().back()}); }

// The losses of rows of logits.
Tensor of_each(const Tensor& logits, const Tensor& targets) {
  return cross_entropy(logits, targets.to(logits.device()), {.reduction = Reduction::none}).to(DType::f32);
}

}  // namespace

std::string_view to_string(Direction direction) { return enum_name(direction, {"higher", "lower"}); }

std::uint32_t content_name(const Tensor& inputs, const Tensor& targets, std::int64_t index) {
  const StageScope unobserved(chain().observe, nullptr);
  Hash hash;
  add_row(hash, inputs, index);
  add_row(hash, targets, index);
  return hash.folded();
}

void add_samples(SampleScores& samples, const Tensor& logits, const data::Batch& batch) {
  const StageScope unobserved(chain().observe, nullptr);
  const Tensor x = as_rows(logits.dtype() == DType::f64 ? logits : logits.to(DType::f32));
  const Tensor y = reshape(batch.targets, {-1});
  const std::vector<float> loss = of_each(x, y).to_vector<float>();
  const std::vector<std::int64_t> guess = argmax(x, 1).to_vector<std::int64_t>();
  const std::vector<std::int64_t> truth = y.to_vector<std::int64_t>();
  const std::int64_t count = batch.size();
  const std::size_t each = count == 0 ? 0 : truth.size() / static_cast<std::size_t>(count);
  std::size_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    double losses = 0;
    float counted = 0;
    float right = 0;
    for (const std::size_t end = at + each; at < end; ++at) {
      if (truth[at] == -100) continue;
      losses += loss[at];
      counted += 1;
      right += guess[at] == truth[at] ? 1.0F : 0.0F;
    }
    samples.sample.push_back(content_name(batch.inputs, batch.targets, i));
    samples.counted.push_back(counted);
    samples.loss.push_back(static_cast<float>(losses));
    samples.score.push_back(right);
  }
}

}  // namespace gradual::lab
