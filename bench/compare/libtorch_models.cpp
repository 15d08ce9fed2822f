// The models by libtorch, eager, as its users write them.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <functional>
#include <optional>

#include "libtorch_worker.h"
#include "synthetic.h"

namespace compare {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

nn::Sequential mlp(const std::vector<std::int64_t>& widths) {
  nn::Sequential model;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    if (i > 0) model->push_back(nn::ReLU());
    model->push_back(nn::Linear(widths[i], widths[i + 1]));
  }
  return model;
}

nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride, bool bias) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(bias));
}

nn::Sequential cnn(const std::vector<std::int64_t>& image, std::int64_t classes) {
  const nn::MaxPool2dOptions pool(2);
  return nn::Sequential(conv(image[0], 32, 3, 1, true), nn::BatchNorm2d(32), nn::ReLU(), nn::MaxPool2d(pool),
                        conv(32, 64, 3, 1, true), nn::BatchNorm2d(64), nn::ReLU(), nn::MaxPool2d(pool), nn::Flatten(),
                        nn::Linear(64 * (image[1] / 4) * (image[2] / 4), classes));
}

struct ResidualBlock : nn::Module {
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : body(register_module("body", nn::Sequential(conv(in, out, 3, stride, false), nn::BatchNorm2d(out), nn::ReLU(),
                                                    conv(out, out, 3, 1, false), nn::BatchNorm2d(out)))) {
    if (in == out && stride == 1) return;
    shortcut = register_module("shortcut", nn::Sequential(conv(in, out, 1, stride, false), nn::BatchNorm2d(out)));
  }
  Tensor forward(const Tensor& x) { return torch::relu(body->forward(x) + (shortcut ? shortcut->forward(x) : x)); }

  nn::Sequential body;
  nn::Sequential shortcut{nullptr};
};

nn::Sequential resnet(std::int64_t channels, const std::vector<std::int64_t>& widths, int blocks,
                      std::int64_t classes) {
  nn::Sequential model(conv(channels, widths[0], 3, 1, false), nn::BatchNorm2d(widths[0]), nn::ReLU());
  std::int64_t in = widths[0];
  for (const std::int64_t width : widths)
    for (int i = 0; i < blocks; ++i, in = width) model->push_back(ResidualBlock(in, width, in == width ? 1 : 2));
  model->push_back(nn::AdaptiveAvgPool2d(1));
  model->push_back(nn::Flatten());
  model->push_back(nn::Linear(in, classes));
  return model;
}

Tensor causal_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
#if TORCH_VERSION_MAJOR >= 2
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, true);
#else
  return std::get<0>(at::_scaled_dot_product_attention(q, k, v, {}, 0.0, false, true));
#endif
}

struct TransformerBlock : nn::Module {
  TransformerBlock(std::int64_t width, std::int64_t head_count)
      : heads(head_count),
        norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})))),
        in_proj(register_module("in_proj", nn::Linear(width, 3 * width))),
        out_proj(register_module("out_proj", nn::Linear(width, width))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})))),
        linear1(register_module("linear1", nn::Linear(width, 4 * width))),
        linear2(register_module("linear2", nn::Linear(4 * width, width))) {}
  Tensor forward(const Tensor& x) {
    const std::int64_t batch = x.size(0);
    const std::int64_t length = x.size(1);
    const std::int64_t width = x.size(2);
    const auto parts = in_proj(norm1(x)).chunk(3, -1);
    const auto of_heads = [&](const Tensor& t) {
      return t.view({batch, length, heads, width / heads}).transpose(1, 2);
    };
    const Tensor attended = causal_attention(of_heads(parts[0]), of_heads(parts[1]), of_heads(parts[2]));
    const Tensor y = x + out_proj(attended.transpose(1, 2).reshape({batch, length, width}));
    return y + linear2(torch::gelu(linear1(norm2(y))));
  }

  std::int64_t heads;
  nn::LayerNorm norm1;
  nn::Linear in_proj, out_proj;
  nn::LayerNorm norm2;
  nn::Linear linear1, linear2;
};

struct Gpt : nn::Module {
  explicit Gpt(const Json& spec) {
    const std::int64_t vocabulary = spec.at("classes");
    const std::int64_t context = spec.at("input").at(0);
    const std::int64_t width = spec.at("width");
    tokens = register_module("tokens", nn::Embedding(vocabulary, width));
    positions = register_module("positions", nn::Embedding(context, width));
    blocks = register_module("blocks", nn::Sequential());
    for (int i = 0; i < spec.at("layers").get<int>(); ++i)
      blocks->push_back(TransformerBlock(width, spec.at("heads").get<std::int64_t>()));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    head = register_module("head", nn::Linear(nn::LinearOptions(width, vocabulary).bias(false)));
    const torch::NoGradGuard off;
    tokens->weight.mul_(0.02);
    positions->weight.mul_(0.02);
  }
  Tensor forward(const Tensor& x) {
    const Tensor at = torch::arange(x.size(1));
    return head(norm(blocks->forward(tokens(x) + positions(at))));
  }

  nn::Embedding tokens{nullptr};
  nn::Embedding positions{nullptr};
  nn::Sequential blocks{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};

// torch::autocast's scope, which the C++ interface leaves to its callers.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::set_cpu_enabled(true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_cpu_enabled(false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

using Forward = std::function<Tensor(const Tensor&)>;

// The module, and its call.
std::pair<std::shared_ptr<nn::Module>, Forward> build(const Json& spec) {
  const std::string kind = spec.at("kind");
  if (kind == "gpt") {
    auto gpt = std::make_shared<Gpt>(spec);
    return {gpt, [gpt](const Tensor& x) { return gpt->forward(x); }};
  }
  nn::Sequential model{nullptr};
  if (kind == "mlp") model = mlp(spec.at("widths"));
  else if (kind == "cnn") model = cnn(spec.at("input"), spec.at("classes"));
  else if (kind == "resnet")
    model = resnet(spec.at("input").at(0), spec.at("widths"), spec.at("blocks"), spec.at("classes"));
  else throw std::invalid_argument("no model of kind '" + kind + "'");
  return {model.ptr(), [model](const Tensor& x) mutable { return model->forward(x); }};
}

std::unique_ptr<torch::optim::Optimizer> optimizer(const Json& o, const std::vector<Tensor>& params) {
  const double lr = o.at("lr");
  const double decay = o.at("weight_decay");
  if (o.at("kind") == "adamw")
    return std::make_unique<torch::optim::AdamW>(params, torch::optim::AdamWOptions(lr).weight_decay(decay));
  return std::make_unique<torch::optim::SGD>(
      params, torch::optim::SGDOptions(lr).momentum(o.at("momentum").get<double>()).weight_decay(decay));
}

class Training : public Job {
 public:
  explicit Training(const Json& spec) : autocast_(spec.at("precision") == "bf16") {
    std::tie(model_, forward_) = build(spec);
    const std::int64_t batch = spec.at("batch");
    const std::int64_t classes = spec.at("classes");
    std::vector<std::int64_t> sizes = spec.at("input");
    sizes.insert(sizes.begin(), batch);
    const std::int64_t count = c10::multiply_integers(sizes);
    const bool tokens = spec.at("kind") == "gpt";
    if (tokens) {
      const auto values = integers(Stream::tokens, count, classes);
      x_ = torch::tensor(values).view(sizes);
      checksum_ = checksum(values);
    } else {
      const auto values = numbers(count);
      x_ = torch::tensor(values).view(sizes);
      checksum_ = checksum(values);
    }
    y_ = torch::tensor(integers(Stream::classes, tokens ? count : batch, classes));
    for (const Json& variant : spec.value("variant", Json::array()))
      if (variant == "channels_last") to_channels_last();
      else throw std::invalid_argument("no variant '" + variant.get<std::string>() + "' here");
    optimizer_ = optimizer(spec.at("optimizer"), model_->parameters());
  }

  void step() override {
    for (const Tensor& p : model_->parameters()) p.mutable_grad().reset();
    Tensor loss = loss_of_batch();
    loss.backward();
    optimizer_->step();
    loss_ = loss.detach();
  }
  std::optional<double> loss() const override { return loss_.item<double>(); }
  Json facts() const override {
    std::int64_t count = 0;
    for (const Tensor& p : model_->parameters()) count += p.numel();
    return {{"parameters", count}, {"data", checksum_}};
  }

 private:
  void to_channels_last() {
    x_ = x_.contiguous(at::MemoryFormat::ChannelsLast);
    for (Tensor& p : model_->parameters())
      if (p.dim() == 4) p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
  }
  Tensor loss_of_batch() {
    std::optional<Autocast> scope;
    if (autocast_) scope.emplace();
    const Tensor logits = forward_(x_);
    return torch::cross_entropy_loss(logits.dim() == 2 ? logits : logits.view({-1, logits.size(-1)}), y_);
  }

  std::shared_ptr<nn::Module> model_;
  Forward forward_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  bool autocast_;
  Tensor x_, y_, loss_;
  double checksum_ = 0;
};

}  // namespace

std::unique_ptr<Job> libtorch_model(const Json& spec) { return std::make_unique<Training>(spec); }

}  // namespace compare
