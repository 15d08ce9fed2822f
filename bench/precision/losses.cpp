#include <gradual/gradual.h>

#include <string>

#include "flaws.h"

namespace gradual::precision_bench {
namespace {

constexpr std::string_view kForms[] = {"cross_entropy", "log of softmax", "large squares"};
constexpr std::int64_t kClasses = 10;

constexpr int kLogFirst = __LINE__;
Tensor log_of_softmax(const Tensor& logits, const Tensor& classes, double sharpness) {
  const Tensor probabilities = softmax(logits * sharpness, 1);
  return -mean(log(gather(probabilities, 1, unsqueeze(classes, 1))));
}
constexpr int kLogLast = __LINE__;

constexpr int kSquaresFirst = __LINE__;
Tensor large_squares(const Tensor& logits, const Tensor& classes, double size) {
  const Tensor wanted = one_hot(classes, kClasses).to(logits.dtype());
  return mean(square((logits - wanted) * size));
}
constexpr int kSquaresLast = __LINE__;

std::string lines(int first, int last) { return "losses.cpp:" + std::to_string(first) + "-" + std::to_string(last); }

}  // namespace

std::string_view to_string(LossForm form) { return kForms[static_cast<int>(form)]; }

std::string lines_of(LossForm form) {
  return form == LossForm::log_of_softmax ? lines(kLogFirst, kLogLast) : lines(kSquaresFirst, kSquaresLast);
}

lab::Loss make_loss(const Instance& instance) {
  const double weight = instance.loss_weight;
  const double scale = instance.loss_scale;
  switch (instance.loss) {
    case LossForm::log_of_softmax:
      return {"log of softmax", [=](const Tensor& x, const Tensor& y) { return log_of_softmax(x, y, scale) * weight; }};
    case LossForm::large_squares:
      return {"large squares", [=](const Tensor& x, const Tensor& y) { return large_squares(x, y, scale) * weight; }};
    default:
      if (weight == 1) return "cross_entropy";
      return {"weighted cross entropy", [=](const Tensor& x, const Tensor& y) { return cross_entropy(x, y) * weight; }};
  }
}

}  // namespace gradual::precision_bench
