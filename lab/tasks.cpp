#include "tasks.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "../core/files/npy.h"
#include "../core/files/safetensors.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../data/cifar10.h"
#include "../data/digits.h"
#include "../data/idx.h"
#include "../data/text.h"
#include "built_in_tasks.h"

namespace gradual::lab {
namespace {

// [.., C] with [..] as rows.
std::pair<Tensor, Tensor> rows(const Tensor& logits, const Tensor& targets) {
  if (logits.dim() == 2) return {logits, targets};
  return {reshape(logits, {-1, logits.sizes().back()}), reshape(targets, {-1})};
}

constexpr std::int64_t kMostClasses = 1 << 20;  // a model has an output for each

constexpr std::int64_t kIgnored = -100;  // of the targets of a sequence

// Samples of numbers with class numbers, or with numbers.
data::Dataset labelled(const Tensor& inputs, const Tensor& targets, const std::string& name) {
  if (inputs.dim() < 2 || targets.dim() < 1 || targets.numel() == 0 || inputs.numel() == 0)
    throwf("{}: inputs {} and targets {} {}; allowed are inputs [N, ..] and targets [N, ..], none of them empty", name,
           to_string(inputs.sizes()), to_string(targets.dtype()), to_string(targets.sizes()));
  const Tensor x = inputs.to(DType::f32);
  data::Dataset d{x, targets.to(targets.is_floating() ? DType::f32 : DType::i64), 0, name};
  d.size();  // Error if the two differ in N
  if (targets.is_floating()) return d;
  const std::vector<std::int64_t> labels = d.targets.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == kIgnored && targets.dim() > 1) continue;
    if (labels[i] < 0 || labels[i] >= kMostClasses)
      throwf("{}: target {} is {}; allowed are class numbers from 0 to {}", name, i, labels[i], kMostClasses - 1);
  }
  d.classes = static_cast<std::int64_t>(max(d.targets).item()) + 1;
  return d;
}

// A field with the dtype that models read.
Tensor readable(const Tensor& values) {
  if (values.is_floating()) return values.to(DType::f32);
  return values.dtype() == DType::bool_ ? values : values.to(DType::i64);
}

// Samples of several tensors.
data::Dataset with_fields(const data::Fields& given, const std::string& name) {
  data::Dataset d{.name = name};
  for (const auto& [field, values] : given) {
    if (values.dim() == 0 || values.numel() == 0)
      throwf("{}: '{}' is {}; allowed are tensors [N, ..] that are not empty", name, field, to_string(values.sizes()));
    d.fields.emplace_back(field, readable(values));
  }
  d.inputs = d.fields.front().second;
  d.targets = d.fields.back().second;
  d.size();  // Error if two differ in N
  return d;
}

// "NAME=FILE,NAME=FILE,..": arrays of NumPy.
data::Fields fields_of(const std::string& list, const std::string& spec) {
  data::Fields fields;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    const std::string one = list.substr(at, end - at);
    const std::size_t equal = one.find('=');
    if (equal == std::string::npos || equal == 0 || equal + 1 == one.size())
      throwf("data '{}': '{}' is no NAME=FILE; allowed are npy:INPUTS,TARGETS and npy:NAME=FILE,NAME=FILE,..", spec,
             one);
    const std::string field = one.substr(0, equal);
    if (std::ranges::find(fields, field, &data::Fields::value_type::first) != fields.end())
      throwf("data '{}': '{}' is given twice", spec, field);
    fields.emplace_back(field, load_npy(one.substr(equal + 1)));
    at = end + 1;
  }
  return fields;
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
  LabData data = parted(all.name, all, all.size() * 4 / 5);
  data.use_loss_of(all);
  return data;
}

LabData augmented(const std::string& spec, const data::Split& images) {
  LabData data = fixed(spec, images);
  data.augment = [](const data::Batch& batch) { return data::flip_and_crop(batch); };
  return data;
}

LabData from_safetensors(const std::string& path, const std::string& spec) {
  const Safetensors file = load_safetensors(path);
  const bool plain = file.tensors.size() == 2 && file.tensors.contains("inputs") && file.tensors.contains("targets");
  if (plain || file.tensors.empty() || !file.unread.empty())
    return four_fifths(labelled(file.tensor("inputs"), file.tensor("targets"), spec));
  data::Fields fields;
  for (const auto& [name, value] : file.tensors) fields.emplace_back(name, std::get<Tensor>(value));
  return four_fifths(with_fields(fields, spec));
}

// The data that this program makes; null for another name.
std::optional<LabData> built_in(const std::string& kind) {
  if (kind == "digits") return parted(kind, data::digits(), 1437);
  if (kind == "regression" || kind == "autoencoder") {
    LabData data = four_fifths(kind == "regression" ? teacher_and_student() : reconstructed_digits());
    data.model = kind == "regression" ? "mlp" : "autoencoder";
    return data;
  }
  if (kind == "brackets") return four_fifths(bracket_depths());
  if (kind != "addition") return std::nullopt;
  const data::Dataset all = data::addition().problems;
  return parted(kind, all, all.size() * 9 / 10);
}

}  // namespace

LabData data_for(const std::string& spec, std::int64_t context) {
  const std::size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon);
  const std::string path = colon == std::string::npos ? "" : spec.substr(colon + 1);
  if (context && kind != "text")
    throw_error("data '" + spec + "' have no context option (" + std::to_string(context) +
                " was given); text:FILE has");
  if (path.empty())
    if (std::optional<LabData> made = built_in(kind)) return *made;
  if (kind == "mnist" && !path.empty()) return fixed(spec, data::mnist(path));
  if (kind == "cifar10" && !path.empty()) return augmented(spec, data::cifar10(path));
  if (kind == "cifar100" && !path.empty()) return augmented(spec, data::cifar100(path));
  if (kind == "text" && !path.empty()) {
    const data::TextDataset text = context ? data::read_text(path, {.context = context}) : data::read_text(path);
    LabData windows = fixed(context ? spec + ", context " + std::to_string(context) : spec, {text.train, text.test});
    windows.metric = "perplexity";
    return windows;
  }
  if (kind == "npy" && path.find('=') != std::string::npos)
    return four_fifths(with_fields(fields_of(path, spec), spec));
  if (const std::size_t comma = path.find(','); kind == "npy" && comma != std::string::npos)
    return four_fifths(labelled(load_npy(path.substr(0, comma)), load_npy(path.substr(comma + 1)), spec));
  if (kind == "safetensors" && !path.empty()) return from_safetensors(path, spec);
  throwf("no data '{}'; allowed are {}", spec, kDataNames);
}

void LabData::use_loss_of(const data::Dataset& d) {
  loss = "cross_entropy";
  metric = "accuracy";
  if (d.classes == 0 && d.targets.defined() && d.targets.is_floating()) {
    loss = "mse";
    metric = "rmse";
  }
  if (!d.fields.empty()) {
    loss = "output";
    metric = "loss";
  }
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
