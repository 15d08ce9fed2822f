#include "twin.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "../core/support/error.h"
#include "../core/support/generator.h"
#include "../core/support/throwf.h"
#include "../data/data_loader.h"
#include "gpt.h"
#include "studied_step.h"

namespace gradual::lab {
namespace {

constexpr double kDrawn = 1e-3;  // the sampler draws a class of this probability now and then

// log softmax of a row of logits.
std::vector<double> log_probabilities(const double* logits, std::int64_t classes) {
  const double largest = *std::max_element(logits, logits + classes);
  double sum = 0;
  for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(logits[c] - largest);
  const double log_sum = largest + std::log(sum);
  std::vector<double> logs(static_cast<std::size_t>(classes));
  for (std::size_t c = 0; c < logs.size(); ++c) logs[c] = logits[c] - log_sum;
  return logs;
}

TwinChoices one_choice(const std::vector<double>& learner, const std::vector<double>& sampler) {
  TwinChoices choice{.count = 1};
  double square = 0;
  for (std::size_t c = 0; c < learner.size(); ++c) {
    const double drawn = std::exp(sampler[c]);
    const double log_weight = learner[c] - sampler[c];
    choice.kl -= drawn * log_weight;
    square += std::exp(2 * learner[c] - sampler[c]);
    choice.largest = std::max(choice.largest, std::abs(std::exp(learner[c]) - drawn));
    if (drawn < kDrawn) continue;
    choice.smallest_log = std::min(choice.smallest_log, log_weight);
    choice.largest_log = std::max(choice.largest_log, log_weight);
  }
  choice.log_square = std::log(square);
  const auto most_likely = [](const std::vector<double>& logs) {
    return std::max_element(logs.begin(), logs.end()) - logs.begin();
  };
  choice.changed = most_likely(learner) == most_likely(sampler) ? 0 : 1;
  return choice;
}

void check_logits(const Tensor& learner, const Tensor& sampler) {
  if (learner.sizes() != sampler.sizes() || learner.dim() < 1 || learner.size(-1) < 1)
    throwf("twins: logits {} of the learner and {} of the sampler; both must be [.., C] with C of at least 1",
           to_string(learner.sizes()), to_string(sampler.sizes()));
}

void check_finite(const double* logits, std::int64_t classes, std::int64_t row, const char* side) {
  if (!std::all_of(logits, logits + classes, [](double v) { return std::isfinite(v); }))
    throwf("twins: row {} of the {}'s logits is not finite, so it has no probabilities", row, side);
}

void check_has_cache(const MakeModel& make_model) {
  Generator draws;  // the caller's stays as it is
  const GeneratorScope scope(draws);
  const std::shared_ptr<nn::Module> model = make_model();
  if (!dynamic_cast<Gpt*>(model.get()))
    throwf("twins: a model {} has no cache of keys and values; the lab's gpt has", model->kind());
}

std::optional<SplitScope> scope_of(const std::optional<Split>& split, nn::Module& model) {
  return split ? std::optional<SplitScope>(std::in_place, *split, model) : std::nullopt;
}

// The test data's choices under both recipes.
class Comparison {
 public:
  Comparison(const LabData& data, const TwinOptions& options)
      : data_(data.load(options.study.seed)),
        device_(options.study.device),
        samples_(options.samples),
        cache_(options.cache) {}

  void run(TwinSide& learner, TwinSide& sampler, const std::optional<Split>& split, Twins& twins) const {
    const auto batch_of = [this](const std::vector<std::int64_t>& chosen) { return data::take(data_.test, chosen); };
    data::DataLoader loader(std::min(samples_, data_.test.size()), batch_of,
                            {.batch = 64, .device = device_, .prefetch = false});
    data::Batch batch;
    const auto of_sampler = [&] { return cache_ ? cached_logits(sampler, batch, *cache_) : logits(sampler, batch); };
    inspect::RouteObserver learner_routes(*learner.model);
    inspect::RouteObserver sampler_routes(*sampler.model);
    for (const auto& layer : learner_routes.layers()) twins.routes.push_back({layer.path, {}});
    while (loader.next(batch)) {
      const Tensor learned = logits(learner, batch);
      const std::optional<SplitScope> in_parts = scope_of(split, *sampler.model);
      add(learned, of_sampler(), counted(batch.targets), twins);
      if (in_parts) in_parts->check_used();
      add_routes(learner_routes, sampler_routes, batch.size(), twins);
    }
  }

 private:
  static Tensor logits(TwinSide& side, const data::Batch& batch) {
    side.model->eval();
    const auto output = [&] { return outputs_of(*side.model, batch, true).all[0]; };
    return side.run->evaluate(output).to(Device::cpu()).to(DType::f64).contiguous();
  }
  // A token at a time, as generation reads them.
  static Tensor cached_logits(TwinSide& side, const data::Batch& batch, const Quantizer& cache) {
    auto& gpt = dynamic_cast<Gpt&>(*side.model);
    gpt.eval();
    nn::KeyValueCaches caches = gpt.empty_caches(cache);
    std::vector<Tensor> all;
    for (std::int64_t t = 0; t < batch.inputs.size(1); ++t) {
      const Tensor token = batch.inputs.narrow(1, t, 1);
      const auto output = [&] { return gpt(token, caches); };
      all.push_back(side.run->evaluate(output).to(Device::cpu()).to(DType::f64));
    }
    return cat(all, 1);
  }
  // The choices for a batch, sample by sample: a sampler with a cache has a call for each token.
  static Tensor choices(const std::vector<Tensor>& calls, std::int64_t samples) {
    std::vector<Tensor> parts;
    for (const Tensor& t : calls) {
      const bool whole = t.size(0) % samples == 0;
      parts.push_back(whole ? t.reshape({samples, t.size(0) / samples, t.size(1)}) : t.unsqueeze(0));
    }
    return cat(parts, 1);
  }
  static void add_routes(inspect::RouteObserver& learner, inspect::RouteObserver& sampler, std::int64_t samples,
                         Twins& twins) {
    for (std::size_t i = 0; i < twins.routes.size(); ++i)
      if (const auto& chosen = learner.layers()[i].chosen; !chosen.empty())
        twins.routes[i].change +=
            inspect::compare_routes(choices(chosen, samples), choices(sampler.layers()[i].chosen, samples));
    learner.clear();
    sampler.clear();
  }
  // 1 where a target counts: class -100 is ignored.
  static Tensor counted(const Tensor& targets) {
    constexpr std::int64_t kIgnored = -100;
    const Tensor given = targets.to(Device::cpu()).contiguous();
    Tensor mask = zeros(given.sizes());
    for (std::int64_t i = 0; i < given.numel(); ++i)
      mask.data<float>()[i] = given.data<std::int64_t>()[i] == kIgnored ? 0.0F : 1.0F;
    return mask;
  }
  static void add(const Tensor& learner, const Tensor& sampler, const Tensor& mask, Twins& twins) {
    if (learner.dim() != 3) {
      twins.all.add(compare_choices(learner, sampler, mask));
      return;
    }
    const auto length = static_cast<std::size_t>(learner.size(1));
    if (twins.positions.size() < length) twins.positions.resize(length);
    for (std::int64_t t = 0; t < learner.size(1); ++t) {
      const TwinChoices at = compare_choices(learner.select(1, t).contiguous(), sampler.select(1, t).contiguous(),
                                             mask.select(1, t).contiguous());
      twins.positions[static_cast<std::size_t>(t)].add(at);
      twins.all.add(at);
    }
  }

  data::Split data_;
  Device device_;
  std::int64_t samples_;
  std::optional<Quantizer> cache_;
};

std::string positions_table(const Twins& twins) {
  std::string text = "\nposition   KL, nats   another class   KL so far   effective draws so far\n";
  double kl = 0;
  double log_square = 0;
  std::size_t next = 0;
  std::size_t last = 0;
  for (std::size_t t = 0; t < twins.positions.size(); ++t)
    if (twins.positions[t].count > 0) last = t;
  for (std::size_t t = 0; t <= last; ++t) {
    const TwinChoices& at = twins.positions[t];
    if (at.count == 0) continue;
    kl += at.mean_kl();
    log_square += at.log_square / static_cast<double>(at.count);
    if (t < next && t != last) continue;
    next = next == 0 ? 1 : 2 * next;
    text += fmt::format("{:>8} {:>10.2e} {:>14.2f}% {:>11.2e} {:>23.2f}%\n", t, at.mean_kl(), 100 * at.changed_share(),
                        kl, 100 * std::exp(-log_square));
  }
  return text;
}

std::string routes_table(const Twins& twins) {
  std::string text = "\nlayer with a router               tokens   other experts   choices that move\n";
  for (const auto& [layer, change] : twins.routes)
    text += change.tokens == 0 ? fmt::format("{:<29} {:>10} {:>15} {:>18}\n", layer, change.tokens, "-", "-")
                               : fmt::format("{:<29} {:>10} {:>14.2f}% {:>17.2f}%\n", layer, change.tokens,
                                             100 * change.changed_share(), 100 * change.moved_share());
  return text;
}

std::string layers_table(const Twins& twins) {
  std::string text =
      fmt::format("\nlayer                         loss of {} - loss of {}\n", twins.learner, twins.sampler);
  for (const inspect::ShadowDiff::Contribution& layer : twins.layers)
    text +=
        fmt::format("{:<29} {:>+12.3e}\n", layer.layer.empty() ? "outside modules" : layer.layer, layer.a - layer.b);
  return text;
}

}  // namespace

void TwinChoices::add(const TwinChoices& other) {
  count += other.count;
  kl += other.kl;
  log_square += other.log_square;
  changed += other.changed;
  largest = std::max(largest, other.largest);
  smallest_log = std::min(smallest_log, other.smallest_log);
  largest_log = std::max(largest_log, other.largest_log);
}

double TwinChoices::effective_share() const { return std::exp(-log_square / static_cast<double>(count)); }

TwinChoices compare_choices(const Tensor& learner, const Tensor& sampler, const Tensor& mask) {
  check_logits(learner, sampler);
  const Tensor a = learner.to(Device::cpu()).to(DType::f64).contiguous();
  const Tensor b = sampler.to(Device::cpu()).to(DType::f64).contiguous();
  const std::int64_t classes = a.size(-1);
  const std::int64_t rows = a.numel() / classes;
  if (mask.defined() && mask.numel() != rows)
    throwf("twins: a mask {} for logits {}; it must have an element per row", to_string(mask.sizes()),
           to_string(a.sizes()));
  const Tensor chosen = mask.defined() ? mask.to(Device::cpu()).to(DType::f32).contiguous() : mask;
  TwinChoices choices;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (chosen.defined() && chosen.data<float>()[row] == 0) continue;
    const double* const x = a.data<double>() + row * classes;
    const double* const y = b.data<double>() + row * classes;
    check_finite(x, classes, row, "learner");
    check_finite(y, classes, row, "sampler");
    choices.add(one_choice(log_probabilities(x, classes), log_probabilities(y, classes)));
  }
  return choices;
}

Twins twin(const MakeModel& make_model, const LabData& data, const amp::Recipe& learner, const amp::Recipe& sampler,
           const TwinOptions& options) {
  const Objective objective = objective_of(data, options.study.loss, {});
  if (objective.loss.known() != KnownLoss::cross_entropy)
    throwf("twins: the loss is '{}'; only with cross_entropy a model gives probabilities of classes",
           objective.loss.name);
  if (options.cache) check_has_cache(make_model);
  if (options.cache && options.split)
    throw_error("twins: a cache and a split of the sampler are given; one of them is allowed");
  if (options.split) check_valid(*options.split, sampler.quantization);
  if (options.samples < 1) throwf("twins: {} samples; at least 1 is allowed", options.samples);
  Study trained(make_model, data, learner, options.study);
  TwinSide a(learner, make_model, options.study, trained);
  TwinSide b(sampler, make_model, options.study, trained);
  Twins twins{.learner = learner.name, .sampler = sampler.name, .data = data.name, .step = options.study.step};
  if (options.cache) twins.cache = describe(*options.cache);
  if (options.split) twins.split = describe(*options.split);
  Comparison(data, options).run(a, b, options.split, twins);
  // A step moves running statistics and histories of amaxes, so it comes last.
  if (options.layers) {
    for (TwinSide* side : {&a, &b}) {
      side->model->train();
      const std::optional<SplitScope> in_parts = scope_of(side == &b ? options.split : std::nullopt, *side->model);
      side->observe_loss(options.study, trained);
    }
    twins.layers = inspect::ShadowDiff(*a.shadow, *b.shadow).contributions();
  }
  if (twins.all.count == 0) throwf("twins: the test data of '{}' have no class that counts", data.name);
  return twins;
}

std::string to_string(const Twins& twins) {
  const TwinChoices& all = twins.all;
  std::string text = fmt::format(
      "learner {}, before step {}; sampler {}{}{}\n"
      "{} choices of the test data of {}\n\n"
      "KL(sampler || learner)              {:.3e} nats per choice\n"
      "another class is the most likely    {:.2f}% of the choices\n"
      "a probability differs by at most    {:.3e}\n"
      "importance weights of the draws     {:.4g} to {:.4g} (p from {})\n"
      "effective draws                     {:.3f}% per choice\n",
      twins.learner, twins.step, twins.sampler,
      twins.cache.empty() ? "" : fmt::format("\nthe sampler's cache: {}", twins.cache),
      twins.split.empty() ? "" : fmt::format("\nsplit of the sampler: {}", twins.split), all.count, twins.data,
      all.mean_kl(), 100 * all.changed_share(), all.largest, std::exp(all.smallest_log), std::exp(all.largest_log),
      kDrawn, 100 * all.effective_share());
  if (!twins.positions.empty()) text += positions_table(twins);
  if (!twins.routes.empty()) text += routes_table(twins);
  if (!twins.layers.empty()) text += layers_table(twins);
  return text;
}

std::string routes_csv(const Twins& twins) {
  std::string text = "layer,tokens,changed,choices,moved\n";
  for (const auto& [layer, c] : twins.routes)
    text += fmt::format("{},{},{},{},{}\n", layer, c.tokens, c.changed, c.choices, c.moved);
  return text;
}

std::string to_csv(const Twins& twins) {
  std::string text = "position,choices,kl,changed,largest_difference,effective_share\n";
  const auto row = [&](const std::string& position, const TwinChoices& at) {
    if (at.count == 0) return;
    text += fmt::format("{},{},{:.9g},{:.9g},{:.9g},{:.9g}\n", position, at.count, at.mean_kl(), at.changed_share(),
                        at.largest, at.effective_share());
  };
  for (std::size_t t = 0; t < twins.positions.size(); ++t) row(std::to_string(t), twins.positions[t]);
  if (twins.positions.empty()) row("all", twins.all);
  return text;
}

}  // namespace gradual::lab
