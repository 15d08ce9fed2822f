#include "instance.h"

#include <fmt/format.h>
#include <gradual/gradual.h>
#include <gradual/inspect/cures.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flaws.h"

namespace gradual::precision_bench {
namespace {

constexpr std::string_view kFamilies[] = {"mlp", "mlp-norm", "cnn", "cnn-norm", "transformer", "recurrent"};
constexpr std::string_view kGroups[] = {"failure", "control", "healthy"};

constexpr std::int64_t kPixels = 8;  // of a side
constexpr std::int64_t kClasses = 10;

bool is_image(Family f) { return f == Family::cnn || f == Family::cnn_norm; }
bool is_sequence(Family f) { return f == Family::transformer || f == Family::recurrent; }

// A layer whose input is changed without an effect on exact results: multiplied by a number by which the output is
// divided (it has no bias then), or with a constant channel, which the weights ignore at first.
class ChangedInput {
 public:
  ChangedInput(const Model& model, std::int64_t number, nn::Module& layer, std::int64_t in, bool image)
      : range_(model.ranged == number ? model.range : 1) {
    if (model.outlier != number) return;
    const Shape sizes = image ? Shape{in, 1, 1} : Shape{in};
    kept_ = ones(sizes);
    constant_ = zeros(sizes);
    const std::int64_t step = model.outlier_every > 0 ? model.outlier_every : in;
    for (std::int64_t channel = 0; channel < in; channel += step) {
      kept_.narrow(0, channel, 1).fill_(0);
      constant_.narrow(0, channel, 1).fill_(model.outlier_size);
      for (const auto& [name, parameter] : layer.named_parameters())
        if (parameter.dim() >= 2 && parameter.size(1) == in) parameter.detach().narrow(1, channel, 1).fill_(0);
    }
  }
  Tensor operator()(nn::Module& layer, const Tensor& x) const {
    Tensor h = x;
    if (kept_.defined()) h = h * kept_ + constant_;
    if (range_ == 1) return layer(h);
    return layer(h * range_) * (1 / range_);
  }

 private:
  double range_;
  Tensor kept_, constant_;
};

// A layer with its norm, its activation and what is planted behind it.
class Block : public nn::Module {
 public:
  Block(const Model& model, std::int64_t number)
      : model_(model),
        number_(number),
        layer_(register_module("layer", make_layer())),
        call_(model, number, *layer_, inputs(), is_image(model.family)) {
    const nn::BatchNormOptions of_norm{.momentum = model.momentum};
    if (model.family == Family::mlp_norm) norm_ = std::make_shared<nn::BatchNorm1d>(model.width, of_norm);
    if (model.family == Family::cnn_norm) norm_ = std::make_shared<nn::BatchNorm2d>(model.width, of_norm);
    if (norm_) register_module("norm", norm_);
    if (model.flaw_at == number) flaw_ = make_flaw(model);
    if (flaw_) register_module("flaw", flaw_);
  }

  Tensor forward(const Tensor& x) override {
    Tensor h = call_(*layer_, x);
    if (norm_ && model_.offset != 0) h = h + model_.offset;
    if (norm_) h = (*norm_)(h);
    if (!is_sequence(model_.family)) h = model_.tanh ? tanh(h) : relu(h);
    if (is_image(model_.family) && number_ == 0) h = max_pool2d(h, {.kernel = 2});
    return flaw_ ? (*flaw_)(h) : h;
  }

 private:
  std::int64_t inputs() const {
    if (number_ > 0 || model_.family == Family::transformer) return model_.width;
    if (is_image(model_.family)) return 1;
    return is_sequence(model_.family) ? kPixels : kPixels * kPixels;
  }
  std::shared_ptr<nn::Module> make_layer() const {
    const std::int64_t width = model_.width;
    if (model_.family == Family::transformer)
      return std::make_shared<nn::TransformerBlock>(width, 4, nn::TransformerBlockOptions{.feedforward = 2 * width});
    if (model_.family == Family::recurrent) return std::make_shared<nn::GRU>(inputs(), width);
    const bool bias = model_.ranged != number_;
    if (is_image(model_.family))
      return std::make_shared<nn::Conv2d>(inputs(), width, 3, nn::Conv2dLayerOptions{.padding = 1, .bias = bias});
    return std::make_shared<nn::Linear>(inputs(), width, nn::LinearOptions{.bias = bias});
  }

  Model model_;
  std::int64_t number_;
  std::shared_ptr<nn::Module> layer_;
  ChangedInput call_;
  std::shared_ptr<nn::Module> norm_, flaw_;
};

class Net : public nn::Module {
 public:
  explicit Net(const Model& model) : model_(model) {
    if (model.family == Family::transformer) {
      embed_ = register_module("embed", std::make_shared<nn::Linear>(kPixels, model.width));
      positions_ = register_module("positions", std::make_shared<nn::Embedding>(kPixels, model.width));
      positions_->parameters()[0].detach().mul_(0.1);
    }
    for (std::int64_t i = 0; i < model.depth; ++i)
      blocks_.push_back(register_module("b" + std::to_string(i), std::make_shared<Block>(model, i)));
    const std::int64_t cells = is_image(model.family) ? kPixels * kPixels / 4 : 1;
    const nn::LinearOptions of_head{.bias = model.ranged != model.depth};
    head_ = register_module("head", std::make_shared<nn::Linear>(model.width * cells, kClasses, of_head));
    call_head_.emplace(model, model.depth, *head_, model.width * cells, false);
    for (const auto& [name, parameter] : named_parameters()) {
      if (model.initial != 1 && parameter.dim() >= 2) parameter.detach().mul_(model.initial);
      if (model.initial_bias != 0 && name.ends_with("layer.bias")) parameter.detach().add_(model.initial_bias);
    }
  }

  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    if (is_sequence(model_.family)) h = h.reshape({-1, kPixels, kPixels});
    if (!is_sequence(model_.family) && !is_image(model_.family)) h = flatten(h, 1);
    if (embed_) h = (*embed_)(h) + (*positions_)(arange(0, kPixels, 1, {.dtype = DType::i64}));
    for (const auto& block : blocks_) h = (*block)(h);
    if (model_.family == Family::transformer) h = mean(h, {1});
    if (model_.family == Family::recurrent) h = select(h, 1, kPixels - 1);
    return (*call_head_)(*head_, flatten(h, 1));
  }

 private:
  Model model_;
  std::shared_ptr<nn::Module> embed_, positions_, head_;
  std::vector<std::shared_ptr<nn::Module>> blocks_;
  std::optional<ChangedInput> call_head_;
};

data::Dataset part(const data::Dataset& all, std::int64_t first, std::int64_t count) {
  data::Dataset some = all;
  some.inputs = all.inputs.narrow(0, first, count).clone();
  some.targets = all.targets.narrow(0, first, count).clone();
  return some;
}

void change_inputs(const Data& data, data::Dataset& set) {
  if (data.bipolar) {
    const Tensor share = (set.inputs * 0.3760 + 0.3053);  // 0 to 1
    set.inputs = share * (data.high - data.low) + data.low;
  }
  if (data.scale != 1) set.inputs = set.inputs * data.scale;
}

void change_training(const Data& data, data::Dataset& set) {
  Generator generator(data.seed + 1);
  const std::int64_t count = set.size();
  const std::int64_t rows = std::llround(data.outlier_rows * static_cast<double>(count));
  if (rows > 0) set.inputs.narrow(0, 0, rows).mul_(data.outlier_factor);
  const Tensor row = set.inputs.narrow(0, count / 2, 1).narrow(2, 3, 1).narrow(3, 3, 1);
  if (data.nan_row) row.fill_(std::numeric_limits<double>::quiet_NaN());
  if (data.huge_row != 0) row.fill_(data.huge_row);
  if (data.shuffled_labels) {
    const Tensor draws = rand({count}, {}, generator) * static_cast<double>(kClasses);
    set.targets = floor(draws).to(DType::i64);
  }
}

// Half of the pixels say nothing: 0 in training, noise in the test.
void quiet(const Data& data, data::Split& split) {
  Generator generator(data.seed + 2);
  split.train.inputs.narrow(3, kPixels / 2, kPixels / 2).fill_(0);
  const Tensor noise = split.test.inputs.narrow(3, kPixels / 2, kPixels / 2);
  noise.copy_(randn(noise.sizes(), {}, generator) * 3);
}

data::Split make_split(const Data& data) {
  const data::Dataset digits = data::digits();
  const data::Split drawn = data::split(digits, data.train + data.test, data.seed);
  data::Split result{part(drawn.train, 0, data.train), part(drawn.train, data.train, data.test)};
  change_inputs(data, result.train);
  change_inputs(data, result.test);
  change_training(data, result.train);
  if (data.quiet_columns) quiet(data, result);
  return result;
}

nlohmann::json json_of(const Truth& truth, const amp::Recipe& recipe) {
  nlohmann::json j;
  for (const inspect::Cause cause : truth.causes) j["causes"].push_back(std::string(inspect::to_string(cause)));
  j["sites"] = truth.sites;
  for (const Role role : truth.roles) j["roles"].push_back(std::string(to_string(role)));
  if (!truth.cured.name.empty()) j["cured"] = nlohmann::json::parse(inspect::edit(recipe, truth.cured));
  j["cured_in_code"] = truth.cured_in_code;
  j["specific"] = truth.specific;
  j["cure"] = truth.cure;
  j["does_not_help"] = truth.does_not_help;
  return j;
}

}  // namespace

std::string_view to_string(Family family) { return kFamilies[static_cast<int>(family)]; }
std::string_view to_string(Group group) { return kGroups[static_cast<int>(group)]; }

const std::vector<Family>& all_families() {
  static const std::vector<Family> all = {Family::mlp,      Family::mlp_norm,    Family::cnn,
                                          Family::cnn_norm, Family::transformer, Family::recurrent};
  return all;
}

Family family_from_name(const std::string& name) {
  for (const Family family : all_families())
    if (to_string(family) == name) return family;
  throw Error("no family '" + name + "'; allowed are mlp, mlp-norm, cnn, cnn-norm, transformer, recurrent");
}

std::string Instance::id() const {
  return fmt::format("{}/{}/{}", kind, precision_bench::to_string(model.family), number);
}

lab::LabData data_of(const Instance& instance) {
  return {"digits", [data = instance.data](std::uint64_t) { return make_split(data); }};
}

lab::MakeModel model_of(const Instance& instance) {
  return [model = instance.model] { return std::make_shared<Net>(model); };
}

lab::Options options_of(const Instance& instance) {
  lab::Options options = instance.options;
  options.model_name = std::string(to_string(instance.model.family));
  options.loss = make_loss(instance);
  options.metric = "accuracy";
  return options;
}

std::vector<std::string> block_paths(const Model& model) {
  std::vector<std::string> paths;
  if (model.family == Family::transformer) paths.emplace_back("embed");
  for (std::int64_t i = 0; i < model.depth; ++i) paths.push_back("b" + std::to_string(i));
  paths.emplace_back("head");
  return paths;
}

std::string describe(const Instance& i) {
  nlohmann::json j{{"id", i.id()}, {"kind", i.kind}, {"group", std::string(to_string(i.group))}, {"seed", i.seed}};
  j["model"] = {{"family", std::string(to_string(i.model.family))}, {"width", i.model.width}, {"depth", i.model.depth}};
  nlohmann::json& model = j["model"];
  if (i.model.flaw != Flaw::none) {
    model["flaw"] = std::string(to_string(i.model.flaw));
    model["flaw_at"] = i.model.flaw_at;
    model["strength"] = i.model.strength;
  }
  if (i.model.ranged >= 0) {
    model["ranged"] = i.model.ranged;
    model["range"] = i.model.range;
  }
  if (i.model.outlier >= 0) {
    model["outlier"] = i.model.outlier;
    model["outlier_size"] = i.model.outlier_size;
    if (i.model.outlier_every > 0) model["outlier_every"] = i.model.outlier_every;
  }
  const Model usual;
  if (i.model.initial != usual.initial) model["initial"] = i.model.initial;
  if (i.model.initial_bias != usual.initial_bias) model["initial_bias"] = i.model.initial_bias;
  if (i.model.momentum != usual.momentum) model["momentum"] = i.model.momentum;
  if (i.model.offset != usual.offset) model["offset"] = i.model.offset;
  j["data"] = {{"train", i.data.train}, {"test", i.data.test}, {"seed", i.data.seed}};
  nlohmann::json& data = j["data"];
  if (i.data.scale != 1) data["scale"] = i.data.scale;
  if (i.data.bipolar) data["between"] = {i.data.low, i.data.high};
  if (i.data.outlier_rows > 0) data["outliers"] = {i.data.outlier_rows, i.data.outlier_factor};
  if (i.data.nan_row) data["nan_row"] = true;
  if (i.data.huge_row != 0) data["huge_row"] = i.data.huge_row;
  if (i.data.shuffled_labels) data["shuffled_labels"] = true;
  if (i.data.quiet_columns) data["quiet_columns"] = true;
  j["loss"] = {{"form", std::string(to_string(i.loss))}, {"weight", i.loss_weight}, {"scale", i.loss_scale}};
  j["recipe"] = nlohmann::json::parse(amp::to_json(i.recipe));
  j["training"] = {{"epochs", i.options.epochs},
                   {"batch", i.options.batch},
                   {"optimizer", i.options.optimizer},
                   {"lr", i.options.lr}};
  j["truth"] = json_of(i.truth, i.recipe);
  return j.dump();
}

}  // namespace gradual::precision_bench
