#include "run.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "../amp/operand_bits.h"
#include "../core/files/checkpoint_file.h"
#include "../core/files/json_text.h"
#include "../core/files/safetensors.h"
#include "../core/formats/rounding.h"
#include "../core/observe/profile.h"
#include "../core/observe/tracer.h"
#include "../core/support/throwf.h"
#include "../cuda/cuda.h"
#include "../pt2/module.h"
#include "folder.h"
#include "json/fields.h"

namespace gradual::inspect {

template <class V> void fields(V& v, Update& u) {
  v("part", u.part);
  v("parameter", u.parameter);
  v("op", u.op);
  v("elements", u.elements);
  v("intended", u.intended);
  v("vanished", u.vanished);
  v("weight_squares", u.weight_squares);
  v("intended_squares", u.intended_squares);
  v("product", u.product);
}

}  // namespace gradual::inspect

namespace gradual::lab {
namespace {

// Appends to a file, so that all runs of a comparison share it; "-" writes to stdout.
std::shared_ptr<std::FILE> sink(const std::string& path) {
  std::FILE* const file = path == "-" ? stdout : std::fopen(path.c_str(), "a");
  if (!file) throw_error("cannot write '" + path + "'");
  return {file, [](std::FILE* f) { f == stdout ? std::fflush(f) : std::fclose(f); }};  // before progress on stderr
}

// Error if what was written so far has not all arrived.
void check_written(std::FILE* file, const std::string& path) {
  if (std::fflush(file) != 0 || std::ferror(file) != 0)
    throwf("cannot write '{}': {}", path, errno != 0 ? std::strerror(errno) : "an earlier write failed");
}

// One row of counts per role and layer: "0 fc1" for the activations of fc1.
constexpr std::size_t kCounts = sizeof(amp::CastTally) / sizeof(std::int64_t);
StateDict casts_state(const amp::CastStatsTable& casts) {
  StateDict state;
  for (const auto& [key, tally] : casts) {
    const auto values = std::bit_cast<std::array<std::int64_t, kCounts>>(tally);
    state.set(fmt::format("{} {}", static_cast<int>(key.first), key.second),
              from_data(std::vector(values.begin(), values.end()), kCounts));
  }
  return state;
}
amp::CastStatsTable casts_from(const StateDict& state) {
  amp::CastStatsTable casts;
  for (const auto& [name, value] : state) {
    const std::vector<std::int64_t> values = state.tensor(name).to_vector<std::int64_t>();
    const int role = name[0] - '0';
    if (values.size() != kCounts || role < 0 || role >= amp::kRoles || name.size() < 2)
      throw_error("a checkpoint's counts of casts are of another version");
    std::array<std::int64_t, kCounts> counts;
    std::ranges::copy(values, counts.begin());
    casts[{static_cast<amp::Role>(role), name.substr(2)}] = std::bit_cast<amp::CastTally>(counts);
  }
  return casts;
}

// Tells of the second moments that low precision has broken by the end of a run.
void note_moments(amp::RecipeRun& run, const Options& options, std::uint64_t seed) {
  if (!options.note) return;
  const std::string faults = to_string(run.optimizer().moment_faults());
  if (!faults.empty()) options.note(fmt::format("{}, seed {}: {}", run.recipe().name, seed, faults));
}

std::string key_of(const inspect::Update& u) { return std::string(to_string(u.part)) + ":" + u.parameter; }

data::Batch on_device(data::Batch batch, Device device) {
  batch.inputs = batch.inputs.to(device);
  batch.targets = batch.targets.to(device);
  for (auto& [field, values] : batch.fields) values = values.to(device);
  return batch;
}

double median(std::vector<double> values) {
  const std::size_t middle = values.size() / 2;
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(middle));
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : values[middle];
}

// The settings by name; those of the recipe by their paths in it.
std::map<std::string, std::string> by_name(const std::string& settings) {
  constexpr std::string_view kRecipe = ", recipe ";
  const std::size_t at = settings.find(kRecipe);
  std::map<std::string, std::string> values;
  std::istringstream fields(settings.substr(0, at));
  for (std::string field; std::getline(fields >> std::ws, field, ',');)
    values[field.substr(0, field.find(' '))] = field.substr(field.find(' ') + 1);
  if (at == std::string::npos) return values;
  const nlohmann::json recipe =
      nlohmann::json::parse(bounded_json(settings.substr(at + kRecipe.size())), nullptr, false);
  const nlohmann::json flat = recipe.flatten();
  for (const auto& [path, value] : flat.items()) values["recipe" + path] = value.dump();
  return values;
}

}  // namespace

std::string differences(const std::string& there, const std::string& here) {
  const auto theirs = by_name(there);
  const auto ours = by_name(here);
  const auto of = [](const auto& values, const std::string& name) {
    const auto it = values.find(name);
    if (it == values.end()) return std::string("none");
    return name == "lr" && it->second == "0" ? "the optimizer's own" : it->second;
  };
  std::map<std::string, std::string> all = theirs;
  all.insert(ours.begin(), ours.end());
  std::string text;
  for (const auto& [name, value] : all)
    if (of(theirs, name) != of(ours, name))
      text +=
          fmt::format("{}{} {} there and {} here", text.empty() ? "" : ", ", name, of(theirs, name), of(ours, name));
  return text;
}

std::string settings(const amp::Recipe& recipe, const Options& o) {
  const std::string device = o.device.is_cpu() ? "" : ", device " + to_string(o.device);
  std::string ranks;
  if (o.ranks || o.ranks_emulated) {
    const int count = o.ranks_emulated ? o.ranks_emulated : o.ranks->size();
    ranks = fmt::format(", shards {}", dist::shards_of({.ranks_emulated = o.ranks_emulated}, count));
    if (recipe.exchange) ranks += fmt::format(", ranks {}", count);
    if (o.synchronized_batch_norm) ranks += ", synchronized batch-norm";
  }
  std::string task = settings_of(o.training);
  if (!o.loss.name.empty()) task += fmt::format(", loss {}", o.loss.name);
  if (!o.metric.name.empty()) task += fmt::format(", metric {}", o.metric.name);
  return fmt::format("epochs {}, batch {}, optimizer {}, lr {}{}{}{}, recipe {}", o.epochs, o.batch, o.optimizer, o.lr,
                     task, device, ranks, amp::to_json(recipe));
}

Run::Run(const MakeModel& make_model, const LabData& data, const amp::Recipe& recipe, std::uint64_t seed,
         const Options& options)
    : recipe_(recipe),
      options_(options),
      seed_(seed),
      generator_(seed),
      data_(data.load(seed)),
      objective_(objective_of(data, options.loss, options.metric)) {
  if (data_.train.size() == 0) throwf("lab: the data '{}' have no training samples", data.name);
  if (data_.test.size() == 0)
    throwf("lab: the data '{}' have no test samples, which the {} is of", data.name, objective_.info.name);
  memory_before_ = memory_stats(options.device);
  const GeneratorScope scope(generator_);
  model_ = make_model();
  model_->to(options.device);
  const auto batch_of = [train = data_.train, augment = data.augment](const std::vector<std::int64_t>& samples) {
    const data::Batch batch = data::take(train, samples);
    return augment ? augment(batch) : batch;
  };
  loader_.emplace(
      data_.train.size(), batch_of,
      data::DataLoaderOptions{.batch = options.batch, .shuffle = true, .seed = seed, .device = options.device});
  run_.emplace(
      recipe, *model_, make_optimizer(options.optimizer, options.lr, options.training.rates),
      amp::RunOptions{.clip_norm = options.training.clip, .seed = seed, .steps = loader_->size() * options.epochs});
  if (options.training.average > 0) average_.emplace(*run_, options.training.average);
  use_ranks();
  schedule_.emplace(run_->optimizer(), schedule_for(options.training, loader_->size() * options.epochs));
  result_.recipe = recipe.name;
  result_.model = options.model_name;
  result_.data = data.name;
  result_.seed = static_cast<std::int64_t>(seed);
  result_.settings = settings(recipe, options);
  result_.device = to_string(options.device);
  if (options.device.is_cuda()) result_.device += " (" + cuda::device_info(options.device).name + ")";
  result_.batch = options.batch;
  result_.lr = options.lr != 0 ? options.lr : optimizer_info(options.optimizer).lr;
  result_.optimizer = options.optimizer;
  result_.metric = objective_.info;
  result_.constant_metric = constant_metric(objective_, data_.test);
  result_.definition = amp::to_json(recipe);
  result_.origin = origin_of(recipe, options);
  result_.operand_bits = amp::operand_bits(recipe);
  result_.status = Status::ok;
}

void Run::use_ranks() {
  if (!options_.ranks && !options_.ranks_emulated) {
    if (!recipe_.exchange) return;
    throwf("recipe '{}' has an exchange between ranks; it needs --parallel data or --ranks-emulated", recipe_.name);
  }
  if (!options_.ranks) alone_ = dist::single();
  const std::string data = fmt::format("{}, {} samples, sum {}", data_.train.name, data_.train.size(),
                                       data_.train.inputs.to(DType::f64).sum().item());
  parallel_.emplace(options_.ranks ? *options_.ranks : *alone_, *run_,
                    dist::DataParallelOptions{.ranks_emulated = options_.ranks_emulated,
                                              .synchronized_batch_norm = options_.synchronized_batch_norm,
                                              .count = true,
                                              .facts = {{"the data", data}}});
}

void Run::want_what_if(const std::vector<amp::Recipe>& recipes) {
  what_if_.emplace();
  for (const amp::Recipe& r : recipes)
    for (int role = 0; role < amp::kRoles; ++role)
      for (const Format& f : formats_of(r, static_cast<amp::Role>(role)))
        if (f.has_zero && std::ranges::find(*what_if_, f) == what_if_->end()) what_if_->push_back(f);
}

amp::RunStep Run::sampled_step(const std::function<amp::RunStep()>& step, double scale, double& underflow) {
  const std::int64_t all = loader_->size() * options_.epochs;
  std::optional<GradientSample> sample;
  if (what_if_ && steps_ + options_.sample_every >= all) sample.emplace();
  amp::CastStatsTable casts;
  amp::RunStep outcome;
  // The meter holds copies, so peaks of memory are taken from other steps.
  const bool metered = is_metered();
  {
    const amp::PrecisionObserver watch(casts, recipe_);
    std::optional<inspect::UpdateMeter> meter;
    std::optional<ObserverScope> metering;
    std::optional<inspect::StepWatch> monitors;
    if (metered) {
      take_memory();
      metering.emplace(meter.emplace(*model_));
      if (seed_ == 0) monitors.emplace(*model_);
    }
    outcome = step();
    if (metered) add_updates(*meter, 2 * steps_ <= all);
    if (monitors) add_to(result_.monitors, *monitors, steps_);
  }
  if (metered && all > 1) reset_peak_memory(options_.device);
  if (sample) result_.what_if = sample->what_if_json(*model_, scale, steps_, *what_if_);
  add(casts_, casts);
  const amp::CastTally gradients = total(casts, amp::kGradients);
  if (gradients.counts.elements > 0) underflow = gradients.underflow_percent();
  return outcome;
}

bool Run::is_metered() const { return samples_ && !replay_ && steps_ % (std::int64_t{2} * options_.sample_every) == 0; }

void Run::sum_updates(const std::vector<inspect::Update>& rows) {
  for (const inspect::Update& u : rows)
    if (std::isfinite(u.weight_squares) && std::isfinite(u.intended_squares)) updates_[key_of(u)] += u;
}

void Run::update_average() {
  if (!is_metered() || recipe_.averages != amp::Averages::storage) {
    average_->update();
    return;
  }
  take_memory();  // the meter holds copies
  {
    inspect::UpdateMeter meter(*model_);
    average_->update(&meter);
    sum_updates(meter.parts());
  }
  if (loader_->size() * options_.epochs > 1) reset_peak_memory(options_.device);
}

void Run::add_updates(const inspect::UpdateMeter& meter, bool early) {
  sum_updates(meter.updates());
  sum_updates(meter.parts());
  if (seed_ == 0) add(result_.updates, meter, steps_, early);
}

Tensor Run::loss_of(const data::Batch& batch) const {
  const Loss& loss = objective_.loss;
  return lab::loss_of(loss, outputs_of(*model_, batch, !loss.is_output()));
}

amp::RunStep Run::plain_step(const data::Batch& batch) {
  if (options_.training.accumulate > 1)
    return accumulated_step(*run_, batch, options_.training.accumulate,
                            [&](const data::Batch& part) { return loss_of(part); });
  return run_->step([&] { return loss_of(batch); });
}

void Run::train_step(const data::Batch& batch) {
  using Clock = std::chrono::steady_clock;
  const bool sampled = steps_ % options_.sample_every == 0;
  const auto step = [&] {
    std::optional<inspect::InterventionScope> intervening;
    if (intervention_) {
      intervention_->begin_step(steps_);
      intervening.emplace(*intervention_);
    }
    return parallel_ ? parallel_->step(batch, [&](const data::Batch& part) { return loss_of(part); })
                     : plain_step(batch);
  };
  const double scale = run_->loss_scale();
  const std::size_t phases = run_->phase_starts().size();
  const auto start = Clock::now();
  std::optional<amp::RunStep> outcome;
  double underflow = std::numeric_limits<double>::quiet_NaN();
  if (traced_step()) {
    const auto file = sink(options_.trace);
    std::fprintf(
        file.get(),
        "# %s, seed %llu: one training step; one line per op: phase, name, operands -> results, module, caller's line, "
        "time,\n# after # why it was inserted, after ! elements of the results that were lost or are subnormal, Inf, "
        "NaN\n",
        recipe_.name.c_str(), static_cast<unsigned long long>(seed_));
    Tracer tracer([&](const std::string& line) { std::fprintf(file.get(), "%s\n", line.c_str()); }, true);
    const ObserverScope scope(tracer);
    outcome = step();
    check_written(file.get(), options_.trace);
  } else if (replay_ && steps_ >= replay_first_) {
    outcome = observed_step(step, batch, *replay_);
  } else if (sampled && !replay_ && samples_) {
    outcome = sampled_step(step, scale, underflow);
  } else {
    outcome = step();
  }
  const double loss = outcome->loss.item();
  const bool skipped = outcome->result.skipped();
  if (!sampled && !traced_step()) seconds_.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  schedule_->step();
  if (average_ && !skipped) update_average();

  bad_losses_ = std::isfinite(loss) ? 0 : bad_losses_ + 1;
  epoch_loss_ += loss;
  ++epoch_steps_;
  result_.skipped_steps += skipped;
  Curve& c = result_.curve;
  c.step.push_back(steps_++);
  c.loss.push_back(loss);
  c.scale.push_back(scale);
  c.skipped.push_back(skipped);
  c.underflow_percent.push_back(underflow);
  c.phase.push_back(static_cast<std::int64_t>(phases));
  if (replay_) {
    replay_->step = steps_ - 1;
    replay_->nonfinite = !std::isfinite(loss) || inspect::first_nonfinite(*model_).has_value();
  }
}

void Run::end_epoch(Progress& progress) {
  result_.train_loss = epoch_loss_ / static_cast<double>(std::max<std::int64_t>(1, epoch_steps_));
  epoch_loss_ = 0;
  epoch_steps_ = 0;
  ++result_.epochs;
  if (recipe_.exchange) {
    const auto [lost, bytes] = parallel_->take_exchanged();
    casts_[{amp::Role::weight_gradient, "exchange"}].counts += lost;
    result_.bytes_sent += static_cast<std::int64_t>(bytes);
  }
  model_->eval();
  std::optional<inspect::InterventionScope> intervening;
  if (intervention_) intervening.emplace(*intervention_);
  std::optional<Average::Scope> averaged;
  if (average_) averaged.emplace(*average_);
  Evaluation evaluation(objective_, data_.test.size(), result_.epochs == options_.epochs);
  data::DataLoader test(data_.test, {.batch = evaluation.batch(), .prefetch = false});
  data::Batch batch;
  while (test.next(batch)) {
    const data::Batch here = on_device(batch, options_.device);
    Outputs outputs;
    run_->evaluate([&] {
      outputs = outputs_of(*model_, here, !objective_.loss.is_output());
      return outputs.all[0];
    });
    evaluation.add(outputs, batch);
  }
  averaged.reset();
  model_->train();
  evaluation.write(result_);
  tell_metric(progress);
}

// The peaks of training only, without building the model, evaluation and checkpoints.
void Run::take_memory() {
  const MemoryStats m = memory_stats(options_.device);
  for (std::size_t i = 0; i < result_.peak_bytes.size(); ++i)
    result_.peak_bytes[i] =
        std::max(result_.peak_bytes[i], m.by_category[i].peak - memory_before_.by_category[i].current);
  result_.peak_total = std::max(result_.peak_total, m.total.peak - memory_before_.total.current);
}

void Run::tell_metric(Progress& p) const {
  p.metric = objective_.info;
  p.value = metric_of(result_);
  p.accuracy = std::isnan(result_.test_accuracy) ? -1 : result_.test_accuracy;
}

void Run::show(Progress& p, bool finished) const {
  if (!options_.progress) return;
  p.step = steps_;
  p.epoch = result_.epochs;
  p.scale = run_->loss_scale();
  p.loss = result_.curve.loss.empty() ? 0 : result_.curve.loss.back();
  if (finished && epoch_steps_ == 0 && result_.epochs > 0) p.loss = result_.train_loss;
  p.skipped = result_.skipped_steps;
  p.finished = finished;
  options_.progress(p);
}

bool Run::train(const std::string& checkpoint, Progress progress) {
  const GeneratorScope scope(generator_);
  Profile profile;
  std::optional<ObserverScope> profiling;
  if (!options_.profile.empty()) profiling.emplace(profile);
  progress.steps = loader_->size() * options_.epochs;
  if (result_.epochs > 0) tell_metric(progress);
  bool stopped = false;
  reset_peak_memory(options_.device);
  while (result_.epochs < options_.epochs && !stopped && bad_losses_ < kDiverged) {
    data::Batch batch;
    while (bad_losses_ < kDiverged && loader_->next(batch)) {
      train_step(batch);
      show(progress, false);
      stop_asked_ = options_.stop && options_.stop();
      stopped = stop_asked_ || replayed() || (stop_after_ >= 0 && steps_ >= stop_after_);
      if (stopped) break;
    }
    take_memory();
    if (!stopped) end_epoch(progress);
    if (parallel_) residuals_ = parallel_->state_dict();
    if (!checkpoint.empty()) save(checkpoint);
    reset_peak_memory(options_.device);
  }
  profiling.reset();
  if (!options_.profile.empty()) {
    const auto file = sink(options_.profile);
    std::fprintf(file.get(), "# %s, seed %llu\n%s\n", recipe_.name.c_str(), static_cast<unsigned long long>(seed_),
                 profile.table().c_str());
    check_written(file.get(), options_.profile);
  }
  stopped = stopped && result_.epochs < options_.epochs;
  if (!options_.save.empty() && !stopped && !replay_ && samples_ && !(options_.ranks && options_.ranks->rank() > 0))
    save_safetensors(options_.save + "/" + run_file(recipe_.name, seed_),
                     average_ ? average_->state_dict(run_->master_state_dict()) : run_->master_state_dict());
  if (bad_losses_ >= kDiverged || (result_.epochs > 0 && !std::isfinite(result_.test_loss)))
    result_.status = Status::diverged;
  else if (stopped) result_.status = Status::interrupted;
  else result_.status = result_.skipped_steps == steps_ ? Status::all_skipped : Status::ok;
  if (!replay_ && samples_ && !stopped) note_moments(*run_, options_, seed_);
  show(progress, true);
  return !stopped;
}

// Those with a step of the run.
static std::vector<PhaseEntry> phases_of(const amp::RecipeRun& run, std::int64_t steps) {
  std::vector<PhaseEntry> all;
  for (const amp::PhaseStart& start : run.phase_starts()) {
    const amp::Phase& phase = run.recipe().schedule[start.phase];
    if (start.step >= steps) continue;
    PhaseEntry& entry = all.emplace_back(PhaseEntry{.step = start.step, .recipe = phase.recipe});
    entry.modules = phase.modules;
    if (!phase.when) continue;
    entry.quantity = to_string(phase.when->quantity);
    entry.value = start.value;
    entry.below = phase.when->below;
  }
  return all;
}

Result Run::result() {
  result_.steps = steps_;
  result_.phases = phases_of(*run_, steps_);
  result_.final_scale = run_->loss_scale();
  if (!seconds_.empty() || !(result_.ms_per_step > 0)) result_.ms_per_step = 1e3 * median(seconds_);
  const amp::CastTally gradients = total(casts_, amp::kGradients);
  const CastCounts& c = gradients.counts;
  result_.underflow_percent = std::nan("");
  result_.overflow_percent = std::nan("");
  result_.zero_percent = std::nan("");
  if (c.elements > 0) {
    result_.underflow_percent = gradients.underflow_percent();
    result_.overflow_percent = gradients.overflow_percent();
    result_.zero_percent = 100 * static_cast<double>(c.zeros + c.underflow) / static_cast<double>(c.elements);
  }
  result_.casts.clear();
  std::map<std::string, std::string> kinds;
  const auto add_rows = [&](auto belongs) {
    for (const auto& [key, t] : casts_)
      if (belongs(key.second))
        result_.casts.push_back({.role = key.first,
                                 .layer = key.second,
                                 .kind = kinds[key.second],
                                 .elements = static_cast<std::int64_t>(t.counts.elements),
                                 .nan = static_cast<std::int64_t>(t.counts.nan),
                                 .underflow_percent = t.underflow_percent(),
                                 .overflow_percent = t.overflow_percent()});
  };
  for (const auto& [path, module] : model_->named_modules()) {
    if (path.empty()) continue;
    kinds[path] = pt2::kind_of(*module);
    add_rows([&, &at = path](const std::string& layer) { return layer == at; });
  }
  add_rows([&](const std::string& layer) { return !kinds.contains(layer); });  // outside of layers
  result_.histograms.clear();
  for (int i = 0; i < amp::kRoles; ++i) result_.histograms.push_back(histogram(static_cast<amp::Role>(i)));
  return result_;
}

Histogram Run::histogram(amp::Role role) const {
  const amp::CastTally t = total(casts_, {role});
  Histogram h{.role = role, .first_exponent = -127, .as_if = amp::counted_as_if(recipe_)};
  h.counts.assign(t.exponents.bins.begin(), t.exponents.bins.end() - 1);  // the last one is Inf and NaN
  for (const Format& f : formats_of(recipe_, role)) {
    const int least = std::ilogb(f.min_positive());
    const double below = std::ldexp(1.5, least - 1);  // in the binade below the smallest number
    double rounded = 0;
    Rounder{f, rounding_from_name("nearest-even"), Overflow::saturate}.round(&below, &rounded, 1);
    h.formats.push_back({.name = to_string(f),
                         .zero_below_exponent = rounded == 0 ? least : least - 1,
                         .min_normal_exponent = std::ilogb(f.min_normal()),
                         .max_exponent = f.max_exponent()});
  }
  return h;
}

void Run::save(const std::string& path) {
  StateDict lab;
  lab.set("result", results_json({result()}, true));
  lab.set("steps", steps_);
  lab.set("epoch_loss", epoch_loss_);
  lab.set("epoch_steps", epoch_steps_);
  lab.set("bad_losses", std::int64_t{bad_losses_});
  lab.add("casts", casts_state(casts_));
  std::vector<inspect::Update> updates;
  updates.reserve(updates_.size());
  for (const auto& [name, update] : updates_) updates.push_back(update);
  lab.set("updates", json_of(updates).dump());
  save_checkpoint(path, {{"run", run_->state_dict()},
                         {"schedule", schedule_->state_dict()},
                         {"loader", loader_->state_dict()},
                         {"generator", state_dict(generator_)},
                         {"residuals", residuals_},
                         {"average", average_ ? average_->state_dict() : StateDict()},
                         {"lab", lab}});
}

void Run::load(const std::string& path) {
  const Checkpoint c = load_checkpoint(path);
  const StateDict& lab = c.part("lab");
  Result saved = results_from_json(lab.text("result"), path).at(0);
  if (saved.model != result_.model || saved.data != result_.data)
    throwf("{}: was written by a run of {} on {}, this is {} on {}; use another --out, or no --resume", path,
           saved.model, saved.data, result_.model, result_.data);
  if (saved.settings != result_.settings)
    throw_error(path + ": was written by a run with other settings: " + differences(saved.settings, result_.settings) +
                "; use the old ones, another --out, or no --resume");
  run_->load_state_dict(c.part("run"));
  schedule_->load_state_dict(c.part("schedule"));
  loader_->load_state_dict(c.part("loader"));
  load_state_dict(generator_, c.part("generator"));
  if (parallel_) parallel_->load_state_dict(c.part("residuals"));
  if (average_) average_->load_state_dict(c.part("average"));
  casts_ = casts_from(lab.sub("casts"));
  std::vector<inspect::Update> updates;
  try {
    read(Json::parse(bounded_json(lab.text("updates"))), updates);
  } catch (const FieldError& e) {
    throw_error(path + ": counts of updates: " + e.text());
  } catch (const Json::exception& e) { throw_error(path + ": damaged counts of updates: " + json_problem(e)); }
  for (inspect::Update& u : updates) updates_[key_of(u)] = std::move(u);
  result_ = std::move(saved);
  steps_ = lab.integer("steps");
  epoch_loss_ = lab.real("epoch_loss");
  epoch_steps_ = lab.integer("epoch_steps");
  bad_losses_ = static_cast<int>(lab.integer("bad_losses"));
}

}  // namespace gradual::lab
