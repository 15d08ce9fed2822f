#include "tasks.h"

#include "../core/files/npy.h"
#include "../core/files/safetensors.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../data/cifar10.h"
#include "../data/digits.h"
#include "../data/idx.h"
#include "../data/text.h"

namespace gradual::lab {
namespace {

// [.., C] with [..] as rows.
std::pair<Tensor, Tensor> rows(const Tensor& logits, const Tensor& targets) {
  if (logits.dim() == 2) return {logits, targets};
  return {reshape(logits, {-1, logits.sizes().back()}), reshape(targets, {-1})};
}

constexpr std::int64_t kMostClasses = 1 << 20;  // a model has an output for each

// Samples of numbers with class numbers.
data::Dataset labelled(const Tensor& inputs, const Tensor& targets, const std::string& name) {
  if (inputs.dim() < 2 || targets.dim() != 1 || targets.is_floating() || targets.numel() == 0 || inputs.numel() == 0)
    throwf("{}: inputs {} and targets {} {}; allowed are inputs [N, ..] and integers [N], none of them empty", name,
           to_string(inputs.sizes()), to_string(targets.dtype()), to_string(targets.sizes()));
  const Tensor y = targets.to(DType::i64);
  const std::vector<std::int64_t> labels = y.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (labels[i] < 0 || labels[i] >= kMostClasses)
      throwf("{}: target {} is {}; allowed are class numbers from 0 to {}", name, i, labels[i], kMostClasses - 1);
  data::Dataset d{inputs.to(DType::f32), y, static_cast<std::int64_t>(max(y).item()) + 1, name};
  d.size();  // Error if the two differ in N
  return d;
}

// `train` of the samples train and the others test, other ones for each seed.
LabData parted(const std::string& name, const data::Dataset& all, std::int64_t train) {
  return {name, [all, train](std::uint64_t seed) { return data::split(all, train, seed); }};
}
LabData fixed(const std::string& name, const data::Split& split) {
  return {name, [split](std::uint64_t) { return split; }};
}
LabData four_fifths(const data::Dataset& all) {
  if (all.size() < 2)
    throwf("{}: the number of samples is {}; it must be at least 2, one to train with and one to test", all.name,
           all.size());
  return parted(all.name, all, all.size() * 4 / 5);
}

}  // namespace

LabData data_for(const std::string& spec, std::int64_t context) {
  const std::size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon);
  const std::string path = colon == std::string::npos ? "" : spec.substr(colon + 1);
  if (context && kind != "text")
    throw_error("data '" + spec + "' have no context option (" + std::to_string(context) +
                " was given); text:FILE has");
  if (kind == "digits" && path.empty()) return parted(kind, data::digits(), 1437);
  if (kind == "mnist" && !path.empty()) return fixed(spec, data::mnist(path));
  if (kind == "cifar10" && !path.empty()) {
    LabData images = fixed(spec, data::cifar10(path));
    images.augment = [](const data::Batch& batch) { return data::flip_and_crop(batch); };
    return images;
  }
  if (kind == "text" && !path.empty()) {
    const data::TextDataset text = context ? data::read_text(path, {.context = context}) : data::read_text(path);
    return fixed(context ? spec + ", context " + std::to_string(context) : spec, {text.train, text.test});
  }
  if (kind == "addition" && path.empty()) {
    const data::Dataset all = data::addition().problems;
    return parted(kind, all, all.size() * 9 / 10);
  }
  if (const std::size_t comma = path.find(','); kind == "npy" && comma != std::string::npos)
    return four_fifths(labelled(load_npy(path.substr(0, comma)), load_npy(path.substr(comma + 1)), spec));
  if (kind == "safetensors" && !path.empty()) {
    const Safetensors file = load_safetensors(path);
    return four_fifths(labelled(file.tensor("inputs"), file.tensor("targets"), spec));
  }
  throw_error("no data '" + spec +
              "'; allowed are digits, addition, mnist:DIR, cifar10:DIR, text:FILE, npy:INPUTS,TARGETS and "
              "safetensors:FILE");
}

Tensor classification_loss(const Tensor& logits, const Tensor& targets) {
  const auto [x, y] = rows(logits, targets);
  return cross_entropy(x, y);
}

void add_score(Score& score, const Tensor& logits, const Tensor& targets) {
  const auto [x, y] = rows(logits.dtype() == DType::f64 ? logits : logits.to(DType::f32), targets);
  const std::vector<std::int64_t> guess = argmax(x, 1).to_vector<std::int64_t>();
  const std::vector<std::int64_t> truth = y.to_vector<std::int64_t>();
  score.loss += cross_entropy(x, y, {.reduction = Reduction::sum}).item();
  for (std::size_t i = 0; i < truth.size(); ++i) {
    if (truth[i] == -100) continue;
    ++score.counted;
    score.correct += guess[i] == truth[i];
  }
}

}  // namespace gradual::lab
