#include "kinds.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace gradual::precision_bench {
namespace {

std::uint64_t mixed(std::uint64_t seed, const std::string& text) {
  std::uint64_t hash = 14695981039346656037ull ^ seed;  // FNV-1a: the same on every machine
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

bool is_sequence(Family f) { return f == Family::transformer || f == Family::recurrent; }

void draw_sizes(Instance& i, Draw& draw) {
  Model& m = i.model;
  m.width = draw.one_of<std::int64_t>({32, 48, 64});
  m.depth = draw.integer(2, 3);
  if (m.family == Family::cnn || m.family == Family::cnn_norm) {
    m.width = draw.one_of<std::int64_t>({8, 12, 16});
    m.depth = 2;
  }
  if (m.family == Family::transformer || m.family == Family::recurrent) {
    m.width = draw.one_of<std::int64_t>({32, 40});
    m.depth = draw.integer(1, 2);
  }
  m.flaw_at = draw.integer(0, m.depth - 1);
}

void draw_training(Instance& i, Draw& draw) {
  i.data.train = draw.one_of<std::int64_t>({480, 512, 640});
  i.data.test = 480;
  i.data.seed = static_cast<std::uint64_t>(draw.integer(0, 1 << 30));
  i.options.batch = 32;
  i.options.epochs = static_cast<int>(draw.integer(5, 7));
  if (is_sequence(i.model.family)) i.options.epochs += 4;
  i.options.lr = draw.scale(2e-3, 5e-3);
  i.options.sample_every = 8;
}

std::string path_of(const Model& m, std::int64_t block) {
  return block == m.depth ? "head" : "b" + std::to_string(block) + ".layer";
}

}  // namespace

void draw_range(Instance& i, Draw& draw, double low, double high) {
  i.model.ranged = is_sequence(i.model.family) ? i.model.depth : draw.integer(0, i.model.depth - 1);
  i.model.range = draw.scale(low, high);
}
std::string ranged_path(const Instance& i) { return path_of(i.model, i.model.ranged); }

void draw_outlier(Instance& i, Draw& draw) {
  i.model.outlier = is_sequence(i.model.family) ? i.model.depth : draw.integer(1, i.model.depth - 1);
}
std::string outlier_path(const Instance& i) { return path_of(i.model, i.model.outlier); }

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = [] {
    std::vector<Kind> list;
    for (const auto& some : {kinds_of_f16(), kinds_of_updates(), kinds_of_formats(), controls(), healthy_kinds()})
      list.insert(list.end(), some.begin(), some.end());
    return list;
  }();
  return all;
}

Instance base_instance(const Kind& kind, Family family, int number, std::uint64_t seed, int attempt) {
  Instance i;
  i.kind = kind.name;
  i.group = kind.group;
  i.number = number;
  i.model.family = family;
  i.seed = mixed(seed, i.id() + "#" + std::to_string(attempt));
  Draw draw(i.seed);
  draw_sizes(i, draw);
  draw_training(i, draw);
  i.recipe = amp::recipe("fp32");
  return i;
}

Instance draw_instance(const Kind& kind, Family family, int number, std::uint64_t seed, int attempt) {
  Instance i = base_instance(kind, family, number, seed, attempt);
  Draw draw(mixed(i.seed, "plant"));
  kind.plant(i, draw);
  if (!i.truth.cured.name.empty()) i.truth.cured.name = "truly-cured";
  i.recipe.name = std::string("planted-") + kind.name;
  return i;
}

}  // namespace gradual::precision_bench
