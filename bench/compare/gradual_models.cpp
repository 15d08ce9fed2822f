// The models by this library, as a user would write them.
#include <gradual/amp/autocast.h>
#include <gradual/amp/precision_observer.h>
#include <gradual/amp/recipe.h>
#include <gradual/core/ops/compute_mode.h>
#include <gradual/core/ops/fusions.h>
#include <gradual/core/ops/ops.h>
#include <gradual/lab/models.h>
#include <gradual/nn/activation.h>
#include <gradual/nn/conv.h>
#include <gradual/nn/flatten.h>
#include <gradual/nn/linear.h>
#include <gradual/nn/norm.h>
#include <gradual/nn/pool.h>
#include <gradual/nn/sequential.h>
#include <gradual/optim/adam.h>
#include <gradual/optim/grad_scaler.h>
#include <gradual/optim/sgd.h>

#include "gradual_worker.h"
#include "synthetic.h"

namespace compare {
namespace {

using namespace gradual;

std::shared_ptr<nn::Module> mlp(const std::vector<std::int64_t>& widths) {
  auto model = std::make_shared<nn::Sequential>();
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    if (i > 0) model->push_back(nn::ReLU());
    model->push_back(nn::Linear(widths[i], widths[i + 1]));
  }
  return model;
}

nn::Conv2d conv3x3(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return nn::Conv2d(in, out, 3, {.stride = stride, .padding = 1, .bias = false});
}

// relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)); the shortcut is a 1x1 convolution where the shape changes.
struct ResidualBlock : nn::Module {
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : body(register_module("body", nn::Sequential(conv3x3(in, out, stride), nn::BatchNorm2d(out), nn::ReLU(),
                                                    conv3x3(out, out, 1), nn::BatchNorm2d(out)))),
        shortcut(register_module("shortcut", nn::Sequential())) {
    if (in == out && stride == 1) return;
    shortcut.push_back(nn::Conv2d(in, out, 1, {.stride = stride, .bias = false}));
    shortcut.push_back(nn::BatchNorm2d(out));
  }
  Tensor forward(const Tensor& x) override { return relu(body(x) + (shortcut.size() ? shortcut(x) : x)); }

  nn::Sequential& body;
  nn::Sequential& shortcut;
};

// He et al. 2016, section 4.2.
std::shared_ptr<nn::Module> resnet(std::int64_t channels, const std::vector<std::int64_t>& widths, int blocks,
                                   std::int64_t classes) {
  auto model =
      std::make_shared<nn::Sequential>(conv3x3(channels, widths[0], 1), nn::BatchNorm2d(widths[0]), nn::ReLU());
  std::int64_t in = widths[0];
  for (const std::int64_t width : widths)
    for (int i = 0; i < blocks; ++i, in = width) model->push_back(ResidualBlock(in, width, in == width ? 1 : 2));
  model->push_back(nn::AdaptiveAvgPool2d(1));
  model->push_back(nn::Flatten());
  model->push_back(nn::Linear(in, classes));
  return model;
}

std::shared_ptr<nn::Module> build(const Json& spec) {
  const std::string kind = spec.at("kind");
  if (kind == "mlp") return mlp(spec.at("widths"));
  if (kind == "gpt")
    return lab::make_gpt({.vocabulary = spec.at("classes"),
                          .context = spec.at("input").at(0),
                          .width = spec.at("width"),
                          .heads = spec.at("heads"),
                          .layers = spec.at("layers")});
  const std::vector<std::int64_t> image = spec.at("input");
  if (kind == "cnn") return lab::make_cnn(image[0], image[1], image[2], spec.at("classes"));
  if (kind == "resnet") return resnet(image[0], spec.at("widths"), spec.at("blocks"), spec.at("classes"));
  throw std::invalid_argument("no model of kind '" + kind + "'");
}

amp::MakeOptimizer optimizer(const Json& o) {
  if (o.at("kind") == "adamw") return optim::AdamWOptions{.lr = o.at("lr"), .weight_decay = o.at("weight_decay")};
  return optim::SGDOptions{.lr = o.at("lr"), .momentum = o.at("momentum"), .weight_decay = o.at("weight_decay")};
}

class Training : public Job {
 public:
  explicit Training(const Json& spec) : model_(build(spec)) {
    model_->to(device());
    const amp::MakeOptimizer make = optimizer(spec.at("optimizer"));
    if (const auto recipe = spec.find("recipe"); recipe != spec.end())
      run_.emplace(recipe->is_string() ? amp::recipe(*recipe) : amp::recipe_from_json(recipe->dump()), *model_, make);
    else optimizer_ = make({{.params = model_->parameters()}}, {});
    counts_ = spec.value("count", false);
    const std::string precision = spec.at("precision");
    if (precision == "bf16") dtype_ = DType::bf16;
    if (precision == "f16") {
      dtype_ = DType::f16;
      scaler_.emplace();
    }
    if (precision == "tf32") matmul_ = MatmulPrecision::tf32;
    const std::int64_t batch = spec.at("batch");
    const std::int64_t classes = spec.at("classes");
    std::vector<std::int64_t> sizes = spec.at("input");
    sizes.insert(sizes.begin(), batch);
    const Shape shape(sizes);
    const bool tokens = spec.at("kind") == "gpt";
    if (tokens) {
      const auto values = integers(Stream::tokens, numel(shape), classes);
      x_ = from_data(values, shape);
      checksum_ = checksum(values);
    } else {
      const auto values = numbers(numel(shape));
      x_ = from_data(values, shape);
      checksum_ = checksum(values);
    }
    const std::int64_t targets = tokens ? numel(shape) : batch;
    y_ = from_data(integers(Stream::classes, targets, classes), {targets}).to(device());
    x_ = x_.to(device());
    for (const Json& variant : spec.value("variant", Json::array()))
      if (variant == "channels_last") x_ = channels_last(x_);
      else if (variant == "separate_gradients") separate_gradients_ = true;
      else throw std::invalid_argument("no variant '" + variant.get<std::string>() + "' here");
  }

  void step() override {
    if (run_) {
      std::optional<amp::PrecisionObserver> watch;
      if (counts_) watch.emplace(casts_, run_->recipe());
      loss_ = run_->step([&] { return forward(); }).loss;
      return;
    }
    const MatmulPrecisionScope precision(matmul_);
    optimizer_->zero_grad();
    loss_ = forward();
    if (scaler_) {
      backward(scaler_->scale(loss_));
      scaler_->step(*optimizer_);
      scaler_->update();
    } else {
      backward(loss_);
      optimizer_->step();
    }
  }
  std::optional<double> loss() const override { return loss_.item(); }
  Json facts() const override {
    std::int64_t count = 0;
    for (const Tensor& p : model_->parameters()) count += p.numel();
    return {{"parameters", count}, {"data", checksum_}};
  }

 private:
  // With separate_gradients the gradients of a linear layer's weight and bias are two ops on a GPU, too.
  void backward(const Tensor& loss) const {
    std::optional<UnfusedScope> separate;
    if (separate_gradients_) separate.emplace();
    loss.backward();
  }
  Tensor forward() {
    std::optional<amp::Autocast> scope;
    if (dtype_) scope.emplace(amp::AutocastOptions{.dtype = dtype_, .device = device()});
    const Tensor logits = (*model_)(x_);
    return cross_entropy(logits.dim() == 2 ? logits : logits.reshape({-1, logits.size(-1)}), y_);
  }

  std::shared_ptr<nn::Module> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<amp::RecipeRun> run_;  // in place of the optimizer
  amp::CastStatsTable casts_;
  bool counts_ = false;
  bool separate_gradients_ = false;
  std::optional<DType> dtype_;
  std::optional<optim::GradScaler> scaler_;
  MatmulPrecision matmul_ = MatmulPrecision::f32;
  Tensor x_, y_, loss_;
  double checksum_ = 0;
};

}  // namespace

std::unique_ptr<Job> gradual_model(const Json& spec) { return std::make_unique<Training>(spec); }

}  // namespace compare
