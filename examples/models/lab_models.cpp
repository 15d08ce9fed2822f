// The models of this folder and the optimizers of examples/own_optimizers.h, by name in gradual-lab (--model,
// --optimizer).
#include <gradual/lab/models.h>
#include <gradual/lab/training.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "../own_optimizers.h"
#include "resnet20.h"
#include "row_reader.h"
#include "vit.h"

namespace gradual::lab {
namespace {

optim::ParamGroup rates_of(double lr, const Rates& r) {
  return {.lr = lr,
          .weight_decay = r.weight_decay,
          .momentum = r.momentum,
          .beta1 = r.beta1,
          .beta2 = r.beta2,
          .eps = r.eps};
}

template <class T> amp::MakeOptimizer own(double lr, const Rates& rates) {
  return [rates = rates_of(lr, rates)](std::vector<optim::ParamGroup> groups, const optim::UpdateOptions& precision) {
    return std::make_unique<T>(std::move(groups), rates, precision);
  };
}

// Muon for matrices; AdamW at a fifth of the rate for other parameters.
struct MuonWithAdamW : optim::Optimizer {
  MuonWithAdamW(std::vector<optim::ParamGroup> groups, const optim::ParamGroup& rates,
                const optim::UpdateOptions& precision)
      : Optimizer("muon-adamw", {"momentum", "exp_avg_sq"}, std::move(groups), rates, precision) {}
  Tensor update(const Update& u) override {
    const double lr = u.group.lr.value();
    const double kept = 1 - lr * u.group.weight_decay.value_or(0);
    const Tensor& g = u.gradient;
    Tensor& m = u.state[0];
    Tensor& v = u.state[1];
    if (u.weight.dim() == 2) {
      const double mu = u.group.momentum.value_or(0.95);
      m = mu * m + (1 - mu) * g;
      const double ratio = static_cast<double>(u.weight.size(0)) / static_cast<double>(u.weight.size(1));
      return kept * u.weight - lr * std::sqrt(std::max(1.0, ratio)) * example::orthogonal(mu * m + (1 - mu) * g);
    }
    const auto t = static_cast<double>(u.step);
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * square(g);
    const Tensor deviation = sqrt(v / (1 - std::pow(0.999, t))) + 1e-8;
    return kept * u.weight - 0.2 * lr / (1 - std::pow(0.9, t)) * m / deviation;
  }
};

void add_example_optimizers() {
  add_optimizer({"rmsprop", 1e-3, {"weight_decay", "eps"}, own<example::RMSProp>});
  add_optimizer({"lion", 3e-4, {"weight_decay", "beta1", "beta2"}, own<example::Lion>});
  add_optimizer({"muon", 1e-2, {"weight_decay", "momentum"}, own<MuonWithAdamW>});
}

}  // namespace

void add_example_models();  // declared in lab/main/main.cpp

void add_example_models() {
  add_example_optimizers();
  add_model("resnet20", [](const data::Dataset& d) -> MakeModel {
    const Shape s = image_sizes("resnet20", d);
    return [s, outputs = outputs_for(d)] { return std::make_shared<models::ResNet20>(s[1], outputs); };
  });
  add_model("vit", [](const data::Dataset& d) -> MakeModel {
    const Shape s = image_sizes("vit", d);
    const models::VitOptions o{
        .channels = s[1], .side = s[2], .patch = s[2] < 16 ? 2 : 4, .classes = outputs_for(d)};  // 16 to 64 patches
    if (s[2] != s[3] || s[2] % o.patch != 0)
      throw_error("model vit reads square images of whole patches, the data are " + to_string(s) + ", a patch has " +
                  std::to_string(o.patch) + " pixels a side");
    return [o] { return std::make_shared<models::Vit>(o); };
  });
  add_model("lstm", [](const data::Dataset& d) -> MakeModel {
    const Shape s = image_sizes("lstm", d);
    return [s, outputs = outputs_for(d)] { return std::make_shared<models::RowReader>(s[1] * s[3], 64, outputs); };
  });
}

}  // namespace gradual::lab
