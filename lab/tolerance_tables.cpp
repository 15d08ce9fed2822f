// A step's tolerances as a table and as JSON.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tolerance.h"

namespace gradual::lab {
namespace {

bool shown(const Tolerated& t, bool all) {
  if (all) return true;
  return t.kind != ToleratedKind::gradient && !t.cast && !t.quantized;
}

constexpr std::size_t kNameWidth = 23;  // a mark ends a line of 78 columns

// "grad:..fc1.weight"
std::string shortened(const std::string& name, std::size_t most) {
  if (name.size() <= most) return name;
  const std::size_t colon = name.find(':');
  const std::string start = (colon == std::string::npos ? "" : name.substr(0, colon + 1)) + "..";
  return start + name.substr(name.size() - most + start.size());
}

// "0" for 0, to be told from a small number.
std::string number(double x) { return x == 0 ? "0" : fmt::format("{:.1e}", x); }

std::string over(double bound, double sampled) {
  if (sampled == 0) return "-";
  return fmt::format("{:.3g}", bound / sampled);
}

std::string of_split(const Tolerated& t) { return t.split ? number(*t.split) : "-"; }

}  // namespace

std::string to_string(const Tolerances& t, bool all) {
  std::string text;
  if (!t.recipe.empty()) text = fmt::format("{}, step {} of {}\n", t.recipe, t.step, t.data);
  text += fmt::format("{} sampled orders; likely: {:.1f} times the spread of simulations, an estimate:\n", t.orders,
                      t.factor);
  text += "99% for all elements together if the errors of ops are independent and normal\n";
  if (!t.split.empty()) text += fmt::format("split: {}\n", t.split);
  const bool split = !t.split.empty();
  text += fmt::format("\n{:<{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7}\n", "largest of an element", kNameWidth, "size",
                      "bound", split ? "split" : "alone", "likely", "sampled", "ratio");
  std::size_t hidden = 0;
  std::size_t outside = 0;
  std::size_t unlikely = 0;
  for (const Tolerated& one : t.tensors) {
    outside += one.worst > 1 ? 1 : 0;
    unlikely += one.worst_probably > 1 ? 1 : 0;
    if (!shown(one, all)) {
      ++hidden;
      continue;
    }
    text += fmt::format("{:<{}} {:>8} {:>8} {:>8} {:>8} {:>8} {:>7}{}\n", shortened(one.name, kNameWidth), kNameWidth,
                        number(one.size), number(one.bound), split ? of_split(one) : number(one.local),
                        number(one.tolerance), number(one.sampled), over(one.tolerance, one.sampled),
                        one.worst > 1            ? " !"
                        : one.worst_probably > 1 ? " ?"
                                                 : "");
  }
  if (hidden > 0) text += fmt::format("\n{} gradients of activations, casts and quantised operands: --all\n", hidden);
  text += fmt::format("\nmedian of bound / sampled: {:.3g}; of likely / sampled: {:.3g}\n",
                      t.median_ratio(&Tolerated::bound), t.median_ratio(&Tolerated::tolerance));
  if (const double norms = t.median_ratio(&Tolerated::of_norms); norms > 0)
    text += fmt::format("median of theory of norms / sampled: {:.3g}\n", norms);
  if (outside > 0) text += fmt::format("{} tensors are outside of the bound (!)\n", outside);
  else if (split) text += "every sampled order, this program's own step and the split are within the bound\n";
  else text += "every sampled order and the results of this program's ops are within the bound\n";
  if (unlikely > 0) text += fmt::format("{} tensors are outside of what is likely (?)\n", unlikely);
  if (outside + unlikely > 0)
    text += fmt::format("  in a sampled order{} in this program's own step{}\n", split ? "," : " or",
                        split ? " or under the split" : "");
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
                       {"tolerance", one.tolerance},
                       {"bound", one.bound},
                       {"alone", one.local},
                       {"sampled", one.sampled},
                       {"own", one.own}});
    if (one.split) tensors.back()["split"] = *one.split;
  }
  Json all{{"recipe", t.recipe}, {"data", t.data},     {"step", t.step},
           {"orders", t.orders}, {"factor", t.factor}, {"tensors", std::move(tensors)}};
  if (!t.split.empty()) all["split"] = t.split;
  return all.dump(1) + "\n";
}

}  // namespace gradual::lab
