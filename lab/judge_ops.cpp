#include "judge_ops.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradual::lab {
namespace {

constexpr std::string_view kArranging[] = {"aten.cat.",
                                           "aten.stack.",
                                           "aten.pad.",
                                           "aten.constant_pad_nd.",
                                           "aten.clone.",
                                           "aten.roll.",
                                           "aten.flip.",
                                           "aten.repeat.",
                                           "aten.repeat_interleave.",
                                           "aten.index.",
                                           "aten.gather.",
                                           "aten.embedding.",
                                           "aten.index_select.",
                                           "aten.where.",
                                           "aten.masked_fill.",
                                           "aten.tril.",
                                           "aten.triu.",
                                           "aten.relu.",
                                           "aten.max_pool2d.",
                                           "aten.maximum.",
                                           "aten.minimum.",
                                           "aten.clamp",
                                           "aten.copy.",
                                           "aten.slice_scatter.",
                                           "aten.select_scatter.",
                                           "aten.fill.",
                                           "aten.neg.",
                                           "aten.abs.",
                                           "aten.sort.",
                                           "aten.topk.",
                                           "aten.amax.",
                                           "aten.max.",
                                           "aten.min.",
                                           "aten.amin.",
                                           "aten.index_put.",
                                           "aten.hardtanh.",
                                           "aten.relu6.",
                                           "aten.upsample_nearest2d.",
                                           "aten.lift_fresh",
                                           "_operator.getitem",
                                           "aten.zeros",
                                           "aten.ones",
                                           "aten.full",
                                           "aten.arange",
                                           "aten.new_",
                                           "aten.empty"};

constexpr std::string_view kComposites[] = {"aten.layer_norm.",
                                            "aten.batch_norm.",
                                            "aten.group_norm.",
                                            "aten.instance_norm.",
                                            "aten.rms_norm.",
                                            "aten.softmax.",
                                            "aten.log_softmax.",
                                            "aten.cross_entropy_loss.",
                                            "aten.scaled_dot_product_attention.",
                                            "aten.lstm.",
                                            "aten.gru.",
                                            "aten.rnn_",
                                            "aten.lstm_cell.",
                                            "aten.gru_cell.",
                                            "aten.var",
                                            "aten.std",
                                            "aten.norm.",
                                            "aten.linalg_vector_norm.",
                                            "aten.logsumexp.",
                                            "aten.nll_loss",
                                            "aten.mse_loss.",
                                            "aten.einsum.",
                                            "aten.cosine_similarity.",
                                            "aten.upsample_bilinear2d.",
                                            "aten.upsample_bicubic2d.",
                                            "aten.binary_cross_entropy",
                                            "aten.kl_div.",
                                            "aten.smooth_l1_loss.",
                                            "aten.avg_pool1d.",
                                            "aten.bilinear.",
                                            "aten.cumprod.",
                                            "aten.prod."};

// Ops whose derivative jumps. Where an operand is at the jump, or nearer than its error, either side may be taken.
constexpr std::string_view kKinks[] = {"aten.relu",        "aten.hardtanh.",    "aten.abs.",        "aten.clamp",
                                       "aten.maximum.",    "aten.minimum.",     "aten.max.other",   "aten.min.other",
                                       "aten.fmax.",       "aten.fmin.",        "aten.leaky_relu.", "aten.prelu.",
                                       "aten.hardswish.",  "aten.hardsigmoid.", "aten.threshold.",  "aten.hardshrink.",
                                       "aten.softshrink.", "aten.elu.",         "aten.selu.",       "aten.celu."};
constexpr std::string_view kRandom[] = {"aten.dropout.",     "aten.feature_dropout.", "aten.rand",  "aten.bernoulli",
                                        "aten.multinomial.", "aten.uniform",          "aten.normal"};

template <std::size_t N> bool listed(const std::string_view (&list)[N], const std::string& target) {
  return std::ranges::any_of(list, [&](std::string_view start) { return target.starts_with(start); });
}

}  // namespace

bool only_arranges(const pt2::Step& step) {
  return step.op->aliasing != pt2::Aliasing::none || listed(kArranging, step.op->target);
}

bool draws(const pt2::Step& step) {
  const std::string& target = step.op->target;
  if (target.starts_with("aten.dropout.") || target.starts_with("aten.feature_dropout.")) {
    const double* const p = step.arguments[1].get<double>();
    const bool* const train = step.arguments[2].get<bool>();
    return !(p && *p == 0) && !(train && !*train);
  }
  if (target.starts_with("aten.scaled_dot_product_attention.")) {
    const double* const p = step.arguments[4].get<double>();
    return p && *p != 0;
  }
  return listed(kRandom, target);
}

bool has_sums_inside(const pt2::Step& step) { return listed(kComposites, step.op->target); }

bool derivative_jumps(const pt2::Step& step) { return listed(kKinks, step.op->target); }

bool is_op(const pt2::Step& step, std::string_view name) {
  const std::string_view target = step.op->target;
  return target.starts_with(name) && target.size() > name.size() && target[name.size()] == '.';
}

int id_of(const pt2::Step& step, std::size_t i) {
  const pt2::Ref* const r = argument_of<pt2::Ref>(step, i);
  return r ? r->id : -1;
}

std::vector<std::int64_t> integers_of(const pt2::Step& step, std::size_t i) {
  std::vector<std::int64_t> all;
  if (const auto* one = argument_of<std::int64_t>(step, i)) all.push_back(*one);
  if (const auto* list = argument_of<pt2::Value::List>(step, i))
    for (const pt2::Value& item : *list)
      if (const auto* one = item.get<std::int64_t>()) all.push_back(*one);
  return all;
}

}  // namespace gradual::lab
