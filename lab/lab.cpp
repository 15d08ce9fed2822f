#include "lab.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>

#include "../core/files/atomic_file.h"
#include "../core/ops/ops.h"
#include "../core/support/generator.h"
#include "../core/support/message_text.h"
#include "../core/support/printable.h"
#include "../core/support/throwf.h"
#include "../dist/communicator.h"
#include "cure_trials.h"
#include "folder.h"
#include "folder_lock.h"
#include "live.h"
#include "objective.h"
#include "run.h"
#include "sequential.h"
#include "verdict.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

// Names are printed and written to files.
void check_name(const char* what, const std::string& name) {
  if (!is_printable_name(name))
    throwf("lab: the name of the {}, '{}', has a control character; allowed are letters, digits and marks", what,
           printable(name, ""));
}

void check_options(const std::vector<amp::Recipe>& recipes, const Options& o) {
  const auto at_least = [](const char* what, std::int64_t v, std::int64_t least) {
    if (!(v >= least)) throwf("lab: {} is {}; it must be at least {}", what, v, least);
  };
  if (recipes.empty()) throw_error("lab: no recipe was given");
  check_name("model", o.model_name);
  for (std::size_t i = 0; i < recipes.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (recipes[i].name == recipes[j].name) throw_error("lab: the recipe " + recipes[i].name + " is listed twice");
  at_least("epochs", o.epochs, 1);
  at_least("batch", o.batch, 1);
  at_least("seeds", o.seeds, 1);
  at_least("sample_every", o.sample_every, 1);
  at_least("until", o.until, 0);
  if (!(o.margin > 0)) throwf("lab: margin is {}; it must be positive", o.margin);
  if (!(o.loss_margin > 0)) throwf("lab: loss_margin is {}; it must be positive", o.loss_margin);
  if (!(o.metric_margin > 0)) throwf("lab: metric_margin is {}; it must be positive", o.metric_margin);
  if (!(o.lr >= 0)) throw_error("lab: lr is " + std::to_string(o.lr) + "; it must be positive, or 0 for the usual one");
  make_optimizer(o.optimizer, o.lr, o.training.rates);
  check(o.training);
  if (!o.loss.name.empty()) check_known(o.loss);
  if (!o.metric.name.empty()) info_of(o.metric);
  if (o.loss.function) check_name("loss", o.loss.name);
  if (o.metric.function) check_name("metric", o.metric.name);
  if (o.training.accumulate > 1 && (o.ranks || o.ranks_emulated))
    throwf("lab: accumulate is {}; data-parallel training has shards instead", o.training.accumulate);
}

// Shape and sums of inputs and targets.
std::string samples_of(const data::Dataset& d) {
  const auto sum_of = [](const Tensor& t) { return t.to(DType::f64).sum().item(); };
  std::string text = fmt::format("{} {}, sum {}, targets {}, sum {}", d.name, to_string(d.inputs.sizes()),
                                 sum_of(d.inputs), to_string(d.targets.sizes()), sum_of(d.targets));
  for (const auto& [name, values] : d.fields)
    text += fmt::format(", {} {}, sum {}", name, to_string(values.sizes()), sum_of(values));
  return text;
}

using Results = std::vector<Result>;

std::vector<const amp::Recipe*> undecided(const std::vector<amp::Recipe>& recipes, const Results& results) {
  std::vector<const amp::Recipe*> found;
  for (const amp::Recipe& recipe : recipes) {
    const auto is_undecided = [&](const Result& r) {
      return r.recipe == recipe.name && r.verdict.kind == VerdictKind::undecided;
    };
    if (std::ranges::any_of(results, is_undecided)) found.push_back(&recipe);
  }
  return found;
}

// In the order of the recipes; runs of one recipe keep theirs.
void sort_by_recipe(Results& results, const std::vector<amp::Recipe>& recipes) {
  const auto place_of = [&](const Result& r) {
    return std::ranges::find(recipes, r.recipe, &amp::Recipe::name) - recipes.begin();
  };
  std::ranges::stable_sort(results, {}, place_of);
}

// Error if --resume finds something else on another rank.
void check_same_start(dist::Communicator& ranks, const amp::Recipe& recipe, int seed, bool saved, bool done) {
  const char* found = "nothing";
  if (done) found = "a finished run";
  if (saved) found = "a checkpoint";
  dist::check_same(ranks, {{fmt::format("what --resume finds of {}, seed {}", recipe.name, seed), found}});
}

// Notes the earlier runs that have ended and cannot stand for this one, since they had other settings.
void note_other_settings(const Results& before, const amp::Recipe& recipe, std::uint64_t seed, const Options& options,
                         const LabData& data) {
  for (const Result& b : before)
    if (is_finished(b, recipe, seed, options, data))
      options.note("the finished run of " + recipe.name + ", seed " + std::to_string(seed) +
                   ", had other settings and is done anew: " + differences(b.settings, settings(recipe, options)));
}

// What a comparison compares, and the runs that it has trained so far.
struct Trained {
  const MakeModel& make_model;
  const LabData& data;
  const std::vector<amp::Recipe>& recipes;
  const Options& options;
  Results results = {};     // in the order of the recipes
  Results references = {};  // of fp32, where the recipes lack it
  bool stopped = false;     // by options.stop
  bool last_look = false;   // no seeds will be added

  void judge_all() {
    judge(references);
    judge(results, references, judging_of(options));
  }
};

// Explains the runs of a comparison. What its findings are made of is kept from the end of a run until fp32's run of
// the same seed has ended, and until no further seeds can change the verdict.
class Explainer {
 public:
  explicit Explainer(Trained& trained) : trained_(trained) {}

  bool is_empty() const { return waiting_.empty(); }
  // The last run of `among` waits; its checkpoint is kept until it is explained.
  void add(const amp::Recipe& recipe, Results& among, const std::string& checkpoint, inspect::Evidence evidence) {
    waiting_.push_back({&recipe, &among, among.size() - 1, checkpoint, std::move(evidence)});
  }

  // Explains the runs that fail and can be compared with fp32. Those of which one cannot tell yet wait for the next
  // look. A stop leaves the rest to --resume. `write` stores the results.
  void explain_all(const std::function<void()>& write) {
    trained_.judge_all();
    if (!trained_.stopped) observe_again();
    if (waiting_.empty()) return;
    std::vector<Unexplained> later;
    std::vector<std::string> explained;  // their checkpoints
    for (Unexplained& u : waiting_) {
      if (!is_done_with(u)) later.push_back(std::move(u));
      else if (!u.checkpoint.empty()) explained.push_back(u.checkpoint);
    }
    waiting_ = std::move(later);
    write();
    // Only now: a run whose checkpoint is gone is taken for explained.
    for (const std::string& checkpoint : explained) fs::remove(checkpoint);
  }

 private:
  struct Unexplained {
    const amp::Recipe* recipe;
    Results* among;
    std::size_t index;       // of its result
    std::string checkpoint;  // empty: there is none
    inspect::Evidence evidence;
  };

  // True if the run is explained now, or has nothing to explain.
  bool is_done_with(Unexplained& u) {
    Result& r = (*u.among)[u.index];
    const bool waits = !trained_.last_look && may_be_decided(r, trained_.options);
    if (trained_.stopped || waits || !baseline(trained_.results, trained_.references, r)) return false;
    return !has_to_explain(r, u.evidence) || explain_one(r, u);
  }

  // False if options.stop ended it.
  bool explain_one(Result& r, Unexplained& u) {
    auto found =
        explain(trained_.make_model, trained_.data, *u.recipe, static_cast<std::uint64_t>(r.seed), trained_.options, r,
                baseline(trained_.results, trained_.references, r), std::move(u.evidence));
    if (found) {
      r.findings = std::move(*found);
    } else {
      trained_.stopped = true;
      r.status = Status::interrupted;
    }
    return found.has_value();
  }

  // Trains finished runs of earlier calls to their end once more, for the evidence, where more seeds show since that
  // they are worse.
  void observe_again() {
    Options quiet = trained_.options;
    quiet.progress = {};
    quiet.trace.clear();
    quiet.profile.clear();
    quiet.save.clear();
    for (std::size_t i = 0; i < trained_.results.size() && !trained_.stopped; ++i) {
      const auto recipe = std::ranges::find(trained_.recipes, trained_.results[i].recipe, &amp::Recipe::name);
      const bool waits = std::ranges::any_of(
          waiting_, [&](const Unexplained& u) { return u.among == &trained_.results && u.index == i; });
      if (waits || recipe == trained_.recipes.end() || !lacks_explanation(trained_.results[i])) continue;
      const auto seed = static_cast<std::uint64_t>(trained_.results[i].seed);
      Run run(trained_.make_model, trained_.data, *recipe, seed, quiet);
      trained_.stopped = !run.train("", {.recipe = *recipe, .seed = seed});
      if (trained_.stopped) return;
      Result again = run.result();
      if (seed == 0) run.observe_errors(again);  // as in Comparison::train(), where the evidence is of later steps
      waiting_.push_back({&*recipe, &trained_.results, i, "", run.evidence()});
    }
  }

  Trained& trained_;
  std::vector<Unexplained> waiting_;
};

// A comparison while it runs.
class Comparison {
 public:
  Comparison(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
             const std::string& out, const Options& options)
      : recipes_(recipes),
        options_(options),
        out_(out),
        folder_(out, existing(options)),
        trained_{.make_model = make_model, .data = data, .recipes = recipes, .options = options} {
    if (options.resume && !out.empty()) before_ = folder_.finished();
    else folder_.clear();
    for (const std::string& path : {options.trace, options.profile})
      if (!path.empty() && path != "-") write_file_atomically(path, "");
  }

  Results run() {
    const auto full = std::ranges::find(recipes_, fp32_.name, &amp::Recipe::name);
    const bool listed = full != recipes_.end();
    runs_ = static_cast<int>(recipes_.size() + !listed) * options_.seeds;
    // one run provides the numbers for the section on formats (what_if): fp32's, if there is one
    const amp::Recipe& looked_at = listed ? *full : recipes_.front();
    for (const amp::Recipe& recipe : recipes_) {
      for (int seed = 0; seed < options_.seeds; ++seed)
        train(recipe, seed, trained_.results, &recipe == &looked_at && seed == 0);
      explainer_.explain_all([this] { write(); });
    }
    for (int seed = 0; seed < options_.seeds && !listed && !trained_.stopped; ++seed)
      train(fp32_, seed, trained_.references, false);
    explainer_.explain_all([this] { write(); });
    until_decided(listed ? *full : fp32_, listed ? trained_.results : trained_.references);
    if (options_.cure && !trained_.stopped)
      try_cures(trained_.make_model, trained_.data, recipes_, options_, trained_.results, trained_.references);
    write();
    return trained_.results;
  }

 private:
  void train(const amp::Recipe& recipe, int seed, Results& into, bool what_if) {
    const int number = number_++;
    const auto s = static_cast<std::uint64_t>(seed);
    const std::string checkpoint = folder_.checkpoint(recipe.name, s);
    const bool saved = options_.resume && !checkpoint.empty() && fs::exists(checkpoint);
    const Result* done = finished_run(before_, recipe, s, options_, trained_.data);
    if (options_.ranks && options_.ranks->size() > 1) check_same_start(*options_.ranks, recipe, seed, saved, done);
    if (done && !saved) return into.push_back(*done);  // with a checkpoint it is finished, but not explained
    if (options_.stop && options_.stop()) return;
    if (!done && options_.note) note_other_settings(before_, recipe, s, options_, trained_.data);
    // curves.csv grows while the run goes on.
    LiveCurves live(out_, trained_.results, recipe.name, seed);
    const Run* running = nullptr;
    Options watched = options_;
    watched.progress = [&](const Progress& p) {
      live.update(running->curve(), p.finished);
      if (options_.progress) options_.progress(p);
    };
    Run run(trained_.make_model, trained_.data, recipe, s, watched);
    running = &run;
    if (what_if) run.want_what_if(recipes_);
    if (saved) run.load(checkpoint);
    const bool ended = run.train(checkpoint, {.recipe = recipe, .run = number, .runs = runs_, .seed = s});
    trained_.stopped = trained_.stopped || !ended;
    into.push_back(run.result());
    if (ended && seed == 0) run.observe_errors(into.back());
    if (ended) explainer_.add(recipe, into, checkpoint, run.evidence());
    write();
  }

  // Trains more seeds of the recipes that are undecided, and of fp32, until none is or options.until is reached.
  void until_decided(const amp::Recipe& fp32, Results& base) {
    const std::vector<int> planned = looks(options_.seeds, options_.until);
    for (std::size_t look = 1; look < planned.size() && !trained_.stopped; ++look) {
      const std::vector<const amp::Recipe*> again = undecided(recipes_, trained_.results);
      if (again.empty()) return;
      runs_ += static_cast<int>(again.size() + 1) * (planned[look] - planned[look - 1]);
      for (int seed = planned[look - 1]; seed < planned[look]; ++seed) {
        if (!trained_.stopped) train(fp32, seed, base, false);
        for (const amp::Recipe* recipe : again)
          if (!trained_.stopped) train(*recipe, seed, trained_.results, false);
      }
      trained_.last_look = look + 1 == planned.size();
      explainer_.explain_all([this] { write(); });
      if (explainer_.is_empty()) sort_by_recipe(trained_.results, recipes_);
    }
  }

  void write() {
    trained_.judge_all();
    Results unlisted = trained_.references;
    unlisted.insert(unlisted.end(), before_.begin(), before_.end());
    folder_.write(trained_.results, unlisted);
  }

  const std::vector<amp::Recipe>& recipes_;
  const Options& options_;
  const std::string out_;
  const Folder folder_;
  const amp::Recipe fp32_ = amp::recipe("fp32");
  Results before_;  // finished by earlier calls
  Trained trained_;
  Explainer explainer_{trained_};
  int number_ = 0;
  int runs_ = 0;
};

}  // namespace

void check(const MakeModel& make_model, const std::vector<amp::Recipe>& recipes, const std::string& out,
           const Options& options) {
  check_options(recipes, options);
  if (options.device.is_cuda()) device::select(options.device);  // an Error now if there is none
  {
    Generator generator(0);
    const GeneratorScope scope(generator);
    const auto model = not_null(not_null(make_model, "lab: the function that makes the model")(), "lab: the model");
    for (const amp::Recipe& r : recipes) amp::check_valid(r, *model);
    for (const auto& [path, module] : model->named_modules()) check_name("layer", path);
  }
  if (!out.empty() || !options.save.empty()) check_file_names(recipes, std::max(options.seeds, options.until));
  const Folder writable(out, existing(options));
  if (!options.save.empty()) fs::create_directories(options.save);
}

void check_same(dist::Communicator& ranks, const LabData& data, const std::vector<amp::Recipe>& recipes,
                const Options& o) {
  dist::Facts facts = {{"model_name", o.model_name},
                       {"epochs", std::to_string(o.epochs)},
                       {"batch", std::to_string(o.batch)},
                       {"lr", fmt::format("{}", o.lr)},
                       {"optimizer", o.optimizer},
                       {"loss", o.loss.name},
                       {"metric", o.metric.name},
                       {"the training", settings_of(o.training)},
                       {"seeds", std::to_string(o.seeds)},
                       {"device", to_string(o.device)},
                       {"sample_every", std::to_string(o.sample_every)},
                       {"margin", fmt::format("{}", o.margin)},
                       {"loss_margin", fmt::format("{}", o.loss_margin)},
                       {"metric_margin", fmt::format("{}", o.metric_margin)},
                       {"until", std::to_string(o.until)},
                       {"cure", o.cure ? "yes" : "no"},
                       {"explain_steps", std::to_string(o.explain_steps)},
                       {"resume", o.resume ? "yes" : "no"},
                       {"ranks_emulated", std::to_string(o.ranks_emulated)},
                       {"synchronized_batch_norm", o.synchronized_batch_norm ? "yes" : "no"},
                       {"the data", data.name}};
  const data::Split split = data.load(0);
  facts.emplace_back("the training samples", samples_of(split.train));
  facts.emplace_back("the test samples", samples_of(split.test));
  std::vector<std::string> names;
  for (const amp::Recipe& r : recipes) names.push_back(r.name);
  facts.emplace_back("the recipes", join(names));
  for (const amp::Recipe& r : recipes) facts.emplace_back("the recipe " + r.name, amp::to_json(r));
  dist::check_same(ranks, facts);
}

std::vector<Result> compare(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
                            const std::string& out, const Options& options) {
  if (options.ranks && options.ranks->size() > 1) check_same(*options.ranks, data, recipes, options);
  check(make_model, recipes, out, options);
  check_name("data", data.name);
  objective_of(data, options.loss, options.metric);
  std::optional<FolderLock> lock;
  if (!out.empty()) lock.emplace(out);
  Comparison comparison(make_model, data, recipes, out, options);
  if (options.started) options.started();
  return comparison.run();
}

}  // namespace gradual::lab
