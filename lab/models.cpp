#include "models.h"

#include <algorithm>

#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "../nn/activation.h"
#include "../nn/conv.h"
#include "../nn/flatten.h"
#include "../nn/linear.h"
#include "../nn/norm.h"
#include "../nn/pool.h"
#include "../nn/sequential.h"
#include "../pt2/module.h"
#include "gpt.h"

namespace gradual::lab {
namespace {

std::string sizes_of(const data::Dataset& d) { return to_string(d.inputs.sizes()); }

MakeModel mlp_for(const data::Dataset& d) {
  if (d.inputs.dtype() == DType::i64) image_sizes("mlp", d);
  return [inputs = d.inputs.numel() / d.size(), outputs = outputs_for(d)] { return make_mlp(inputs, outputs); };
}
MakeModel cnn_for(const data::Dataset& d) {
  const Shape sizes = image_sizes("cnn", d);
  if (sizes[2] < 4 || sizes[3] < 4)
    throw_error("model cnn reads images [N, C, H, W] of at least 4 x 4, the data are " + sizes_of(d) +
                "; images with the channels last need x.permute({0, 3, 1, 2})");
  return [s = sizes, outputs = outputs_for(d)] { return make_cnn(s[1], s[2], s[3], outputs); };
}
MakeModel autoencoder_for(const data::Dataset& d) {
  if (d.inputs.dtype() == DType::i64) image_sizes("autoencoder", d);
  return [inputs = d.inputs.numel() / d.size()] { return make_autoencoder(inputs); };
}
MakeModel gpt_for(const std::string& name, const data::Dataset& d, std::int64_t experts) {
  if (d.inputs.dtype() != DType::i64)
    throwf("model {} reads tokens, the data are {} numbers; use --data text:FILE or addition", name, sizes_of(d));
  const std::int64_t tokens = d.tokens ? d.tokens : d.classes;
  const GptOptions options{
      .vocabulary = tokens, .context = d.inputs.size(1), .outputs = outputs_for(d), .experts = experts};
  return [options] { return make_gpt(options); };
}
MakeModel dense_gpt_for(const data::Dataset& d) { return gpt_for("gpt", d, 0); }
MakeModel moe_gpt_for(const data::Dataset& d) { return gpt_for("moe-gpt", d, 4); }

std::vector<std::pair<std::string, ModelFor>>& models() {
  static std::vector<std::pair<std::string, ModelFor>> all{{"mlp", mlp_for},
                                                           {"cnn", cnn_for},
                                                           {"gpt", dense_gpt_for},
                                                           {"moe-gpt", moe_gpt_for},
                                                           {"autoencoder", autoencoder_for}};
  return all;
}

}  // namespace

std::shared_ptr<nn::Module> make_mlp(std::int64_t inputs, std::int64_t classes) {
  return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(inputs, 128), nn::ReLU(), nn::Linear(128, 128),
                                          nn::ReLU(), nn::Linear(128, classes));
}

std::shared_ptr<nn::Module> make_autoencoder(std::int64_t inputs) {
  return std::make_shared<nn::Sequential>(nn::Flatten(), nn::Linear(inputs, 64), nn::ReLU(), nn::Linear(64, 8),
                                          nn::Linear(8, 64), nn::ReLU(), nn::Linear(64, inputs));
}

std::int64_t outputs_for(const data::Dataset& d) {
  return d.classes ? d.classes : d.targets.numel() / std::max<std::int64_t>(1, d.size());
}

std::shared_ptr<nn::Module> make_cnn(std::int64_t channels, std::int64_t height, std::int64_t width,
                                     std::int64_t classes) {
  return std::make_shared<nn::Sequential>(nn::Conv2d(channels, 32, 3, {.padding = 1}), nn::BatchNorm2d(32), nn::ReLU(),
                                          nn::MaxPool2d(2), nn::Conv2d(32, 64, 3, {.padding = 1}), nn::BatchNorm2d(64),
                                          nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                                          nn::Linear(64 * (height / 4) * (width / 4), classes));
}

std::shared_ptr<nn::Module> make_gpt(const GptOptions& options) { return std::make_shared<Gpt>(options); }

Shape image_sizes(const std::string& model, const data::Dataset& d) {
  if (d.inputs.dtype() == DType::i64)
    throw_error("model " + model + " reads images, the data are tokens; use --model gpt");
  if (d.inputs.dim() != 4) throw_error("model " + model + " reads images [N, C, H, W], the data are " + sizes_of(d));
  return d.inputs.sizes();
}

void add_model(const std::string& name, ModelFor model) {
  std::erase_if(models(), [&](const auto& known) { return known.first == name; });
  models().emplace_back(name, not_null(std::move(model), "add_model: the function that makes the model"));
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, model] : models()) names.push_back(name);
  return names;
}

// A model that PyTorch exported. It is read once here, so that an error comes before the first run.
static MakeModel exported_model(const std::string& path, const data::Dataset& d) {
  const auto first = pt2::load(path);
  if (d.fields.empty() && first->inputs().size() > 2)
    throwf(
        "model {}: its forward takes {} arguments; the data have inputs and targets alone, without names (--data "
        "npy:NAME=FILE,.. has names)",
        path, first->inputs().size());
  if (!first->exported_in_training())
    throwf(
        "model {}: exported in evaluation, so its batch norms and dropouts would not train; export it after "
        "net.train()",
        path);
  return [path] { return pt2::load(path); };
}

MakeModel model_for(const std::string& name, const data::Dataset& d) {
  if (d.size() == 0) throwf("model {}: the data '{}' have no training samples", name, d.name);
  if (name.ends_with(".pt2")) return exported_model(name, d);
  for (const auto& [known, model] : models())
    if (known == name) return model(d);
  throwf("no model '{}'; allowed are {} and FILE.pt2", name, join(model_names()));
}

}  // namespace gradual::lab
