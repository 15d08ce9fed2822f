#include "tasks.h"

#include "../core/ops/ops.h"
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

}  // namespace

LabData data_for(const std::string& spec, std::int64_t context) {
  const std::size_t colon = spec.find(':');
  const std::string kind = spec.substr(0, colon);
  const std::string path = colon == std::string::npos ? "" : spec.substr(colon + 1);
  if (context && kind != "text")
    throw_error("data '" + spec + "' have no context option (" + std::to_string(context) +
                " was given); text:FILE has");
  if (kind == "digits" && path.empty()) {
    return {kind, [all = data::digits()](std::uint64_t seed) { return data::split(all, 1437, seed); }};
  }
  if (kind == "mnist" && !path.empty()) return {spec, [both = data::mnist(path)](std::uint64_t) { return both; }};
  if (kind == "text" && !path.empty()) {
    const data::TextDataset text = context ? data::read_text(path, {.context = context}) : data::read_text(path);
    return {context ? spec + ", context " + std::to_string(context) : spec,
            [split = data::Split{text.train, text.test}](std::uint64_t) { return split; }};
  }
  if (kind == "addition" && path.empty()) {
    const data::Dataset all = data::addition().problems;
    return {kind, [all](std::uint64_t seed) { return data::split(all, all.size() * 9 / 10, seed); }};
  }
  throw_error("no data '" + spec + "'; allowed are digits, mnist:DIR, text:FILE and addition");
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
