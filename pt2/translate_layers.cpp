#include "translate_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "../core/support/message_text.h"
#include "translate_calls.h"

namespace gradual::pt2 {
namespace {

// One call of the module, as the steps that compute it.
struct LayerCall {
  const Program& program;
  const std::string& path;
  const ModuleRun& run;

  const Step& step(int i) const { return program.step(run.first + i); }
  int steps() const { return run.last - run.first + 1; }
  const Value& argument(const Step& s, std::string_view name) const {
    const auto at = std::ranges::find(s.op->names, name) - s.op->names.begin();
    return s.arguments[static_cast<std::size_t>(at)];
  }
  bool is_input(const Value& v) const {
    const Ref* const r = v.get<Ref>();
    return r && r->id == run.inputs[0];
  }
  // The module's own tensor of this name in v, or null.
  const Tensor* own(const Value& v, std::string_view name) const {
    const Ref* const r = v.get<Ref>();
    if (!r || program.key_below(r->id, path) != fmt::format("{}.{}", path, name)) return nullptr;
    const Weight& weight = program.weight(*program.state.at(r->id));
    if (weight.tensor.dtype() != DType::f32) return nullptr;
    return weight.parameter && !weight.requires_grad ? nullptr : &weight.tensor;
  }
};

using Layer = std::optional<Construction>;

std::string with_options(const std::string& arguments, const std::vector<std::string>& options) {
  return options.empty() ? arguments : fmt::format("{}, {{{}}}", arguments, join(options));
}

// Whether an optional tensor is none or the module's own; `biased` says which.
bool bias_of(const LayerCall& call, const Value& v, bool& biased) {
  biased = call.own(v, "bias") != nullptr;
  return biased || v.none();
}

Layer linear_layer(const LayerCall& call) {
  const Step& s = call.step(0);
  if (call.steps() != 1 || s.op->target != "aten.linear.default" || !call.is_input(s.arguments[0])) return {};
  const Tensor* const w = call.own(s.arguments[1], "weight");
  bool biased = false;
  if (!w || !bias_of(call, s.arguments[2], biased)) return {};
  const std::vector<std::string> options =
      biased ? std::vector<std::string>{} : std::vector<std::string>{".bias = false"};
  return Construction{"nn::Linear", with_options(fmt::format("{}, {}", w->size(1), w->size(0)), options)};
}

CallToPrint nameless(const LayerCall& call, const Step& s, const std::set<std::string>& hidden) {
  return {call.program, s, [](int) { return std::string("x"); }, "", hidden};
}

Layer conv_layer(const LayerCall& call) {
  const Step& s = call.step(0);
  if (call.steps() != 1 || s.op->target != "aten.conv2d.default" || !call.is_input(s.arguments[0])) return {};
  if (call.program.fact(call.run.inputs[0]).dims != 4) return {};
  const Tensor* const w = call.own(s.arguments[1], "weight");
  bool biased = false;
  if (!w || !bias_of(call, s.arguments[2], biased)) return {};
  const std::set<std::string> hidden;
  const CallToPrint print = nameless(call, s, hidden);
  const std::optional<std::string> fields = filled_pattern(
      print, "{stride:.stride}{padding:.padding}{dilation:.dilation}{groups:.groups}|{input}{weight}{bias}");
  if (!fields) return {};
  std::vector<std::string> options;
  if (fields->size() > 2) options.push_back(fields->substr(1, fields->size() - 2));
  if (!biased) options.emplace_back(".bias = false");
  const std::int64_t groups = *s.arguments[6].get<std::int64_t>();
  const std::string kernel =
      w->size(2) == w->size(3) ? fmt::to_string(w->size(2)) : fmt::format("Size2{{{}, {}}}", w->size(2), w->size(3));
  const std::string sizes = fmt::format("{}, {}, {}", w->size(1) * groups, w->size(0), kernel);
  return Construction{"nn::Conv2d", with_options(sizes, options)};
}

std::optional<double> number_of(const Value& v) {
  if (const double* const x = v.get<double>()) return *x;
  if (const std::int64_t* const n = v.get<std::int64_t>()) return static_cast<double>(*n);
  return std::nullopt;
}

// Whether a layer of a model in training was in evaluation: the model's train() must not wake it.
bool is_frozen(const LayerCall& call, const Value& mode) {
  const bool* const recorded = mode.get<bool>();
  return (!recorded || !*recorded) && call.program.plan.training_calls > 0;
}

// Whether the step adds 1 to the module's counter of batches.
bool counts_batches(const LayerCall& call, const Step& s) {
  if (s.op->target != "aten.add.Tensor" || s.written < 0 || number_of(s.arguments[1]) != 1.0) return false;
  return call.program.key_below(s.written, call.path) == call.path + ".num_batches_tracked";
}

Layer batch_norm_layer(const LayerCall& call, const char* type, int least_dims, int most_dims) {
  const int dims = call.program.fact(call.run.inputs[0]).dims;
  const Step& s = call.step(call.steps() - 1);
  if (s.op->target != "aten.batch_norm.default" || dims < least_dims || dims > most_dims) return {};
  const bool* const recorded = s.arguments[5].get<bool>();
  if (!recorded || is_frozen(call, s.arguments[5])) return {};
  const bool counted = call.steps() == 2 && counts_batches(call, call.step(0));
  if (!(*recorded ? counted : call.steps() == 1) || !call.is_input(s.arguments[0])) return {};
  const char* const names[] = {"weight", "bias", "running_mean", "running_var"};
  for (std::size_t i = 0; i < 4; ++i)
    if (!call.own(s.arguments[i + 1], names[i])) return {};
  const std::optional<double> momentum = number_of(s.arguments[6]);
  const std::optional<double> eps = number_of(s.arguments[7]);
  if (!momentum || !eps) return {};
  std::vector<std::string> options;
  if (*eps != 1e-5) options.push_back(".eps = " + number_text(*eps));
  if (*momentum != 0.1) options.push_back(".momentum = " + number_text(*momentum));
  const std::int64_t channels = call.own(s.arguments[1], "weight")->size(0);
  return Construction{type, with_options(fmt::to_string(channels), options)};
}

Layer layer_norm_layer(const LayerCall& call) {
  const Step& s = call.step(0);
  if (call.steps() != 1 || s.op->target != "aten.layer_norm.default" || !call.is_input(s.arguments[0])) return {};
  const Tensor* const w = call.own(s.arguments[2], "weight");
  bool biased = false;
  const std::optional<double> eps = number_of(s.arguments[4]);
  if (!w || !bias_of(call, s.arguments[3], biased) || !eps) return {};
  std::vector<std::string> options;
  if (*eps != 1e-5) options.push_back(".eps = " + number_text(*eps));
  if (!biased) options.emplace_back(".bias = false");
  std::vector<std::string> sizes;
  for (const std::int64_t n : w->sizes()) sizes.push_back(fmt::to_string(n));
  const std::string shape = sizes.size() == 1 ? sizes[0] : "Shape{" + join(sizes) + "}";
  return Construction{"nn::LayerNorm", with_options(shape, options)};
}

Layer embedding_layer(const LayerCall& call) {
  const Step& s = call.step(0);
  if (call.steps() != 1 || s.op->target != "aten.embedding.default" || !call.is_input(s.arguments[1])) return {};
  const Tensor* const w = call.own(s.arguments[0], "weight");
  if (!w || call.program.fact(call.run.inputs[0]).dtype != DType::i64) return {};
  const std::int64_t* const padding = s.arguments[2].get<std::int64_t>();
  const bool* const by_frequency = s.arguments[3].get<bool>();
  if (!padding || !by_frequency || *by_frequency) return {};
  std::vector<std::string> options;
  if (*padding != -1)
    options.push_back(fmt::format(".padding_idx = {}", *padding < 0 ? *padding + w->size(0) : *padding));
  return Construction{"nn::Embedding", with_options(fmt::format("{}, {}", w->size(0), w->size(1)), options)};
}

// A layer without weights: one op, and the constructor by a pattern (translate_calls.cpp).
struct PlainLayer {
  const char* python_class;
  const char* type;
  const char* target;
  const char* arguments;
  bool images = false;  // of [N, C, H, W] alone
};

constexpr PlainLayer kPlainLayers[] = {
    {"ReLU", "nn::ReLU", "aten.relu.default", "|{self}"},
    {"SiLU", "nn::SiLU", "aten.silu.default", "|{self}"},
    {"Tanh", "nn::Tanh", "aten.tanh.default", "|{self}"},
    {"Sigmoid", "nn::Sigmoid", "aten.sigmoid.default", "|{self}"},
    {"GELU", "nn::GELU", "aten.gelu.default", "|{self}"},
    {"GELU", "nn::GELU", "aten.gelu.default", "{approximate:gelu}|{self}"},
    {"LeakyReLU", "nn::LeakyReLU", "aten.leaky_relu.default", "{negative_slope}|{self}"},
    {"Softmax", "nn::Softmax", "aten.softmax.int", "{dim}|{self}"},
    {"LogSoftmax", "nn::LogSoftmax", "aten.log_softmax.int", "{dim}|{self}"},
    {"Dropout", "nn::Dropout", "aten.dropout.default", "{p}|{input}{train}"},
    {"Flatten", "nn::Flatten", "aten.flatten.using_ints", "{start_dim}, {end_dim}|{self}"},
    {"MaxPool2d", "nn::MaxPool2d", "aten.max_pool2d.default",
     "{kernel_size:.kernel}{stride:.stride}{padding:.padding}|{self}", true},
    {"AvgPool2d", "nn::AvgPool2d", "aten.avg_pool2d.default", "{kernel_size:.kernel}{stride:.stride}|{self}", true},
    {"AdaptiveAvgPool2d", "nn::AdaptiveAvgPool2d", "aten.adaptive_avg_pool2d.default", "{output_size:both}|{self}",
     true},
};

Layer plain_layer(const LayerCall& call, std::string_view kind) {
  const Step& s = call.step(0);
  if (call.steps() != 1 || !s.owners.empty()) return {};
  for (const PlainLayer& row : kPlainLayers) {
    if (row.python_class != kind || row.target != s.op->target || !call.is_input(s.arguments[0])) continue;
    if (row.images && call.program.fact(call.run.inputs[0]).dims != 4) continue;
    if (kind == "Dropout" && is_frozen(call, s.arguments[2])) continue;
    const std::set<std::string> hidden;
    const CallToPrint print = nameless(call, s, hidden);
    if (const std::optional<std::string> arguments = filled_pattern(print, row.arguments))
      return Construction{row.type, *arguments};
  }
  return {};
}

Layer layer_of(const LayerCall& call, std::string_view kind) {
  if (call.run.inputs.size() != 1 || call.run.outputs.size() != 1 || call.steps() == 0) return {};
  for (const RunItem& item : call.run.items)
    if (item.run || !call.program.step(item.step).grad || !call.program.step(item.step).autocast) return {};
  if (kind == "Linear") return linear_layer(call);
  if (kind == "Conv2d") return conv_layer(call);
  if (kind == "BatchNorm1d") return batch_norm_layer(call, "nn::BatchNorm1d", 2, 3);
  if (kind == "BatchNorm2d") return batch_norm_layer(call, "nn::BatchNorm2d", 4, 4);
  if (kind == "LayerNorm") return layer_norm_layer(call);
  if (kind == "Embedding") return embedding_layer(call);
  return plain_layer(call, kind);
}

}  // namespace

std::optional<Construction> library_layer(const Program& program, const std::string& path,
                                          const std::vector<const ModuleRun*>& runs) {
  const auto found = program.classes.find(path);
  if (runs.empty() || found == program.classes.end() || !found->second.starts_with("torch.nn.modules.")) return {};
  const std::string kind = found->second.substr(found->second.rfind('.') + 1);
  Layer layer;
  for (const ModuleRun* const run : runs) {
    const Layer one = layer_of({program, path, *run}, kind);
    if (!one || (layer && *layer != *one)) return {};
    layer = one;
  }
  return layer;
}

}  // namespace gradual::pt2
