// A step's tolerances as a table and as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tolerance.h"

namespace gradual::lab {
namespace {

bool shown(const Tolerated& t, bool all) {
  if (all) return true;
  const bool cast = t.name.find(".cast") != std::string::npos || t.name.starts_with("cast");
  return t.kind != ToleratedKind::gradient && !cast;
}

std::string shortened(const std::string& name, std::size_t most) {
  return name.size() <= most ? name : ".." + name.substr(name.size() - most + 2);
}

// "0" for 0, to be told from a small number.
std::string number(double x) { return x == 0 ? "0" : fmt::format("{:.1e}", x); }

std::string over(double bound, double sampled) {
  if (sampled == 0) return "-";
  return fmt::format("{:.3g}", bound / sampled);
}

}  // namespace

std::string to_string(const Tolerances& t, bool all) {
  std::string text;
  if (!t.recipe.empty()) text = fmt::format("{}, step {} of {}\n", t.recipe, t.step, t.data);
  text += fmt::format("{} sampled orders; probable: lambda {:.1f}, 99% for all sums\n\n", t.orders, t.lambda);
  text += fmt::format("{:<30} {:>8} {:>8} {:>8} {:>8} {:>7}\n", "largest difference of an element", "size", "bound",
                      "probable", "sampled", "ratio");
  std::size_t hidden = 0;
  std::size_t outside = 0;
  for (const Tolerated& one : t.tensors) {
    outside += one.worst > 1 ? 1 : 0;
    if (!shown(one, all)) {
      ++hidden;
      continue;
    }
    text += fmt::format("{:<32} {:>8} {:>8} {:>8} {:>8} {:>7}{}\n", shortened(one.name, 32), number(one.size),
                        number(one.bound), number(one.probable), number(one.sampled), over(one.bound, one.sampled),
                        one.worst > 1 ? " !" : "");
  }
  if (hidden > 0) text += fmt::format("\n{} gradients of activations and casts: --all\n", hidden);
  text += fmt::format("\nmedian of bound / sampled: {:.3g}; of probable / sampled: {:.3g}\n",
                      t.median_ratio(&Tolerated::bound), t.median_ratio(&Tolerated::probable));
  if (outside > 0) text += fmt::format("{} tensors of sampled orders are outside of the bound (!)\n", outside);
  else text += "every sampled order and this program's own step are within the bound\n";
  return text;
}

std::string to_json(const Tolerances& t) {
  using Json = nlohmann::ordered_json;
  Json tensors = Json::array();
  for (const Tolerated& one : t.tensors) {
    Json sizes = Json::array();
    for (const std::int64_t size : one.sizes) sizes.push_back(size);
    tensors.push_back({{"name", one.name},
                       {"kind", std::string(to_string(one.kind))},
                       {"dtype", std::string(to_string(one.dtype))},
                       {"sizes", std::move(sizes)},
                       {"size", one.size},
                       {"tolerance", one.bound},
                       {"probable", one.probable},
                       {"sampled", one.sampled}});
  }
  const Json all{{"recipe", t.recipe}, {"data", t.data},     {"step", t.step},
                 {"orders", t.orders}, {"lambda", t.lambda}, {"tensors", std::move(tensors)}};
  return all.dump(1) + "\n";
}

}  // namespace gradual::lab
