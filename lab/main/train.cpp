// gradual-lab without a subcommand: trains one network under many precision recipes and shows what each did to the
// numbers.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <gradual/amp/recipe.h>
#include <gradual/core/formats/format_table.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>
#include <gradual/core/support/throwf.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/live.h>
#include <gradual/version.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "progress.h"
#include "ranks.h"
#include "terminal.h"
#include "train.h"

namespace gradual::lab {
namespace {

std::string sums_text(const amp::Recipe& r) {
  using enum autograd::GradientSums;
  const autograd::GradientSums sums = gradient_sums(r);
  if (sums == f32) return "f32: 4 bytes per element once two are added";
  return fmt::format("{}{}", to_string(r.dtype), sums == stochastic ? ", rounded at random" : "");
}

std::string begin_text(const amp::Phase& p) {
  if (p.last > 0) return fmt::format("in the last {:g}% of the steps", 100 * p.last);
  if (!p.when) return fmt::format("from step {} on", p.from);
  const std::string often = p.when->steps > 1 ? fmt::format(" in {} steps in a row", p.when->steps) : "";
  return fmt::format("once {} is below {:g}{}", to_string(p.when->quantity), p.when->below, often);
}

std::string phase_text(const amp::Phase& p) {
  return fmt::format("{}: {} as {}", begin_text(p),
                     p.modules.empty() ? "operands" : fmt::format("{}", fmt::join(p.modules, ", ")), p.recipe);
}

void list_recipes(const std::vector<amp::Recipe>& recipes) {
  for (const amp::Recipe& r : recipes) {
    say(stdout, "{:<14} {}\n", r.name, r.description);
    if (!amp::is_recipe(r.name)) {  // from a file; its description may not say it
      if (r.scaling && !r.scaling->dynamic) say(stdout, "{:<16} loss scale: {}, fixed\n", "", r.scaling->init_scale);
      for (const auto& [op, policy] : r.policy) say(stdout, "{:<16} {}: {}\n", "", to_string(op), to_string(policy));
    }
    if (r.mode == amp::Mode::half || r.mode == amp::Mode::pure || r.gradients)
      say(stdout, "{:<16} gradients add in {}\n", "", sums_text(r));
    for (const amp::Phase& p : r.schedule) say(stdout, "{:<16} {}\n", "", phase_text(p));
    if (const auto& o = r.oscillation_reset)
      say(stdout,
          "{:<16} oscillating weights reset every {} updates, after {} in which they go {:g} times as far rounded\n",
          "", o->period, o->window, o->ratio);
    if (!r.quantization) continue;
    for (const amp::OperandGroup& g : describe(*r.quantization))
      say(stdout, "{:<16} {}: {}\n", "", fmt::join(g.operands, ", "), g.quantizer);
    if (r.quantization->accumulator) say(stdout, "{:<16} sums: {}\n", "", to_string(*r.quantization->accumulator));
    for (const auto& [module, other] : r.quantization->modules) say(stdout, "{:<16} {}: as {}\n", "", module, other);
  }
}

void list_formats() {
  for (const auto* list : {&named_formats(), &table_formats()})
    for (const NamedFormat& n : *list) say(stdout, "{:<10} {}\n", n.name, n.about);
}
void list_all_recipes() {
  list_recipes(recipes_for("all"));
  say(stdout,
      "eXmY           matmul operands rounded to that format, without scales: e4m2, posit8, q2.13 (--list-formats)\n"
      "eXmY:ROUNDING  the same with nearest-away, toward-zero, up, down, to-odd, stochastic or stochastic:BITS\n"
      "pure:FORMAT    parameters and the result of every op too; any format of --list-formats: pure:e5m7, pure:posit8\n"
      "mx:FORMAT      matmul operands in blocks of 32 with e8m0 scales, mx16:FORMAT in blocks of 16: mx16:e2m0\n"
      "fp16-static:S  fp16-master with the static loss scale S, for example fp16-static:1024\n"
      "O0, O1, O2, O3 Apex's names for fp32, amp-fp16, fp16-master and fp16-pure\n"
      "FILE.json      recipes of your own (docs/precision.md, Recipes in files); FILE.json:NAME is one of them\n"
      "story          {}\nclassic        {}\n\n"
      "A quantised step has three products per layer: forward x W, dgrad dy W and wgrad x dy. Each rounds\n"
      "its operands anew, along the axis that it contracts. Operands that are not listed stay in high\n"
      "precision. Sums are f32 unless a recipe names another accumulator.\n",
      fmt::join(split_names(kStory), ", "), fmt::join(split_names(kClassic), ", "));
}

namespace fs = std::filesystem;

// Where results go if --out is not given.
constexpr const char* kRoot = "gradual-lab-out";

// Makes a folder under gradual-lab-out/. Its name is the time (UTC), with a number where another process made that.
std::string new_folder() {
  const std::string name = fmt::format("{}/{:%Y-%m-%d-%H%M%S}", kRoot, fmt::gmtime(std::time(nullptr)));
  fs::create_directories(kRoot);
  std::string folder = name;
  for (int i = 2; !fs::create_directory(folder); ++i) folder = fmt::format("{}-{}", name, i);
  return folder;
}

// Removes the folder in its destructor if it is still empty: an option was wrong.
struct RemovedIfEmpty : Pinned {
  explicit RemovedIfEmpty(std::string folder) : path(std::move(folder)) {}
  ~RemovedIfEmpty() {
    std::error_code ignored;
    if (!path.empty()) fs::remove(path, ignored);
  }
  const std::string path;
};

// Points gradual-lab-out/latest to a folder under gradual-lab-out/. Systems without links have none.
void set_latest(const std::string& folder) {
  const fs::path link = fs::path(kRoot) / "latest";
  const fs::path made = fs::path(kRoot) / ".latest.new";
  std::error_code error;
  fs::remove(made, error);
  fs::create_directory_symlink(fs::path(folder).filename(), made, error);
  if (!error) fs::rename(made, link, error);  // at once: another program may be reading the old one
}

// What gradual-lab-out/latest points to. Error if there is none.
std::string latest_folder() {
  const fs::path link = fs::path(kRoot) / "latest";
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  if (error) throw_error(fmt::format("there is no {}; name the folder with --out", link.string()));
  return (fs::path(kRoot) / target).string();
}

template <class T> std::string count(T n, const char* what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

struct Arguments {
  Options options;
  TaskArguments task;
  std::string recipes = "story";
  std::string out;
  std::string tensorboard;
  std::string until;
  int threads = 0;
  RankOptions ranks;
  bool quiet = false;
  bool wide = false;
  bool list = false;
  bool formats = false;
  bool version = false;
};

// Digits train in seconds: three seeds of a short training say more than one of a long one.
constexpr int kDigitsEpochs = 4;
constexpr int kDigitsSeeds = 3;

// Of --until decided.
constexpr int kMostSeeds = 30;

// The most seeds that --until allows; Error for another text.
int most_seeds(const std::string& until) {
  constexpr std::string_view kDecided = "decided";
  if (until == kDecided) return kMostSeeds;
  const std::string_view text = until;
  const std::string_view number = text.starts_with("decided:") ? text.substr(kDecided.size() + 1) : "";
  int most = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), most);
  if (error != std::errc() || end != number.data() + number.size() || most < 1)
    throwf("--until is '{}'; allowed are decided and decided:MAX, with a number of seeds of at least 1", until);
  return most;
}

void declare_options(OptionParser& app, Arguments& a) {
  a.task.declare(app);
  app.add_option("--recipes", a.recipes,
                 "names separated by commas, FILE.json, FILE.json:NAME, story, classic or all (see --list-recipes)")
      .capture_default_str();
  app.add_flag("--list-recipes", a.list, "explain the recipes (those of --recipes, or all) and exit");
  app.add_flag("--list-formats", a.formats, "list the number formats that have names, and exit");
  app.option("--epochs")
      .description(
          fmt::format("passes over the training data (default: {} for digits, else {})", kDigitsEpochs, a.task.epochs));
  app.add_option("--seeds", a.options.seeds,
                 fmt::format("number N of seeds; runs seeds 0 to N-1 (default: {} for digits, else 1)", kDigitsSeeds));
  app.add_option("--margin", a.options.margin, "points of accuracy that a recipe may differ from fp32 and match it")
      .capture_default_str();
  app.add_option("--metric-margin", a.options.metric_margin,
                 "the same of a metric that is no share, such as rmse, in percent of fp32's value")
      .capture_default_str();
  app.add_option("--loss-margin", a.options.loss_margin, "the same of test loss, in percent of fp32's")
      .capture_default_str();
  app.add_option("--until", a.until,
                 fmt::format("decided or decided:MAX: more seeds for recipes of which one cannot tell yet, up to MAX "
                             "(default {})",
                             kMostSeeds));
  declare_threads(app, a.threads);
  app.add_option("--jobs", a.ranks.jobs, "processes that share out the runs, each with its share of the threads")
      .capture_default_str();
  app.add_option("--parallel", a.ranks.parallel,
                 "data: each run over all ranks of mpirun (default: they share out the runs)");
  app.add_option("--ranks-emulated", a.options.ranks_emulated,
                 "data-parallel training with so many ranks in one process, for recipes with an exchange");
  app.add_flag("--sync-batch-norm", a.options.synchronized_batch_norm,
               "statistics of the whole batch, with --parallel data or --ranks-emulated");
  app.add_option("--worker", a.ranks.worker, "threads of a process that --jobs starts, which passes this itself");
  app.add_option("--out", a.out,
                 "folder for results.json, runs.csv, curves.csv and report.html (default: a new one under "
                 "gradual-lab-out, which gradual-lab-out/latest points to)");
  app.add_option("--save", a.options.save, "folder for the parameters of each run in f32, RECIPE-seedN.safetensors");
  app.add_option(
      "--tensorboard", a.tensorboard,
      "folder for event files of TensorBoard, RECIPE-seedN/events.out.tfevents.*, written as the runs go on");
  app.add_flag("--cure", a.options.cure, "try the cure of each recipe's first finding, and say what it gives");
  app.add_option(
      "--explain-steps", a.options.explain_steps,
      "steps of trials that explain a run: it is replayed with one thing exact (default: as many as it has)");
  app.add_flag("--resume", a.options.resume, "continue an interrupted comparison in --out, or in the latest folder");
  app.add_flag("--overwrite", a.options.overwrite, "replace the results of an earlier comparison in --out");
  app.add_flag("--wide", a.wide, "all columns and all findings in the table");
  app.add_flag("--quiet", a.quiet, "no progress, only the table");
  app.add_flag("--version", a.version, "print the version and exit");
  app.add_option("--trace", a.options.trace,
                 "write every op of one step of each recipe to FILE (without FILE: to stdout)")
      .expected(0, 1);
  app.add_option("--profile", a.options.profile, "write a profile of each run to FILE (without FILE: to stdout)")
      .expected(0, 1);
}

void check(const OptionParser& app, Arguments& a) {
  a.task.read(app);
  at_least_one("--seeds", a.options.seeds);
  if (app.count("--explain-steps")) at_least(0, "--explain-steps", a.options.explain_steps);
  if (app.count("--until")) a.options.until = most_seeds(a.until);
  if (!(a.options.margin > 0)) throwf("--margin is {}; it must be positive", a.options.margin);
  if (!(a.options.metric_margin > 0)) throwf("--metric-margin is {}; it must be positive", a.options.metric_margin);
  if (!(a.options.loss_margin > 0)) throwf("--loss-margin is {}; it must be positive", a.options.loss_margin);
  a.options.epochs = a.task.epochs;
  a.options.batch = a.task.batch;
  a.options.lr = a.task.lr;
  a.options.device = a.task.device;
  a.options.optimizer = a.task.optimizer;
  a.options.loss = a.task.loss;
  a.options.metric = a.task.metric;
  a.options.training = a.task.training;
  if (app.count("--out") && a.out.empty()) throw_error("--out is empty; it must name a folder");
  if (a.options.resume && a.options.overwrite) throw_error("--resume and --overwrite exclude each other");
  at_least_one("--jobs", a.ranks.jobs);
  if (app.count("--ranks-emulated")) at_least_one("--ranks-emulated", a.options.ranks_emulated);
  if (!a.ranks.parallel.empty() && a.ranks.parallel != "data")
    throw_error("--parallel is '" + a.ranks.parallel + "'; the only one is data");
  if (a.options.synchronized_batch_norm && a.ranks.parallel.empty() && !a.options.ranks_emulated)
    throw_error("--sync-batch-norm is for --parallel data or --ranks-emulated; one process has the whole batch");
  if (a.ranks.jobs > 1 && !a.ranks.parallel.empty())
    throw_error("--jobs shares out runs; --parallel data trains one at a time");
  use_threads(app, a.threads);
}

// The options that decide what is trained, as they were given.
dist::Facts options_given(const OptionParser& app) {
  constexpr const char* kEachHasItsOwn[] = {"--help", "--out", "--threads", "--quiet", "--wide", "--worker"};
  dist::Facts facts;
  for (const auto& [name, value] : app.given())
    if (std::ranges::find(kEachHasItsOwn, name) == std::end(kEachHasItsOwn)) facts.emplace_back(name, value);
  return facts;
}

// The command line that goes on with this one's runs.
std::string resuming(const OptionParser& app, const Arguments& a) {
  std::vector<std::string> kept = app.names();
  std::erase_if(kept, [](const std::string& name) { return name == "--overwrite" || name == "--resume"; });
  std::string command = shell_word(program_called());
  for (const std::string& word : app.words(kept)) command += " " + shell_word(word);
  if (app.count("--out") == 0) command += " --out " + shell_word(a.out);
  return command + " --resume";
}

// What `bar` does, if there is one, and the progress in the folder of TensorBoard.
std::function<void(const Progress&)> with_tensorboard(const std::function<void(const Progress&)>& bar,
                                                      const std::string& folder) {
  return [bar, board = TensorBoard(folder)](const Progress& p) mutable {
    board(p);
    if (bar) bar(p);
  };
}

// Trains and writes the folder. None on a process that has done its share of another one's comparison.
std::optional<Comparison> compared(const OptionParser& app, Arguments& a, dist::Communicator& ranks, char** argv) {
  Options& options = a.options;
  if (a.task.data == "digits" && !app.count("--epochs")) a.task.epochs = kDigitsEpochs;
  options.epochs = a.task.epochs;
  if (a.task.data == "digits" && !app.count("--seeds")) options.seeds = kDigitsSeeds;
  if (ranks.size() > 1) dist::check_same(ranks, options_given(app));
  const bool own_folder = a.out.empty();
  const bool makes_folder = own_folder && !options.resume && ranks.rank() == 0;
  if (own_folder && options.resume) a.out = latest_folder();
  const RemovedIfEmpty made(makes_folder ? new_folder() : "");
  if (makes_folder) a.out = made.path;
  if (ranks.size() > 1) a.out = ranks.all_gather(a.out)[0];
  const std::vector<amp::Recipe> chosen = recipes_for(a.recipes);
  options.launch = a.task.launch(app, a.recipes);
  const LabData task = a.task.task();
  const data::Split sample = task.load(0);
  const MakeModel make = a.task.make_model(sample.train, task.model);
  options.model_name = a.task.model + (a.task.init.empty() ? "" : " from " + a.task.init);
  if (ranks.size() > 1) check_same(ranks, task, chosen, options);

  stop_on_signals();
  options.stop = [] { return stop_signal() != 0; };
  a.ranks.threads = a.threads;
  share_threads(ranks, a.ranks);
  options.progress = ProgressBar(a.quiet, chosen, ranks.size() > 1 || a.ranks.worker);
  if (!a.tensorboard.empty()) options.progress = with_tensorboard(options.progress, a.tensorboard);
  const fs::path saved = fs::path(a.out) / "checkpoints";
  std::error_code none;  // if the folder does not exist; check() reports other errors
  if (options.resume && !a.quiet && fs::directory_iterator(saved, none) == fs::directory_iterator())
    say(stderr, "--resume: nothing is saved in {}; every run starts from the beginning\n", a.out);
  options.note = [&](const std::string& text) {
    if (!a.quiet) say(stderr, "{}\n", text);
  };
  options.started = [&] {
    if (own_folder) set_latest(a.out);
    if (!a.quiet)
      say(stderr, "{} on {}: {}, {}, {} of {} samples\n", options.model_name, task.name, count(chosen.size(), "recipe"),
          count(options.seeds, "seed"), count(options.epochs, "epoch"), sample.train.size());
  };
  SharedComparison shared{make, task, chosen, a.out, options};
  if (!prepare(ranks, a.ranks, shared, argv)) return std::nullopt;
  Comparison all{.results = compare(make, task, chosen, shared.out, options)};
  if (ranks.rank() > 0) return std::nullopt;
  all.stopped =  // a signal in the last step of all stops nothing
      all.results.size() < chosen.size() * static_cast<std::size_t>(options.seeds) ||
      std::ranges::any_of(all.results, [](const Result& r) { return r.verdict.kind == VerdictKind::interrupted; }) ||
      (stop_signal() != 0 && options.until > options.seeds &&
       std::ranges::any_of(all.results, [](const Result& r) { return r.verdict.kind == VerdictKind::undecided; }));
  return all;
}

// Trains, writes the folder, prints the table; returns the exit status.
int train(const OptionParser& app, Arguments& a, dist::Communicator& ranks, char** argv) {
  const std::optional<Comparison> all = compared(app, a, ranks, argv);
  if (!all) return 0;
  say_styled(stdout,
             fmt::format("\n{}\nreport: {}/report.html, which explains the columns (also results.json, runs.csv, "
                         "curves.csv)\n",
                         table(all->results, table_options(a.wide)), printable(a.out)));
  if (!all->stopped) return 0;
  say(stdout, "interrupted; to continue:\n    {}\n", wrapped_command(resuming(app, a), 76, "        "));
  return 128 + stop_signal();
}

// The words as argv, ending with a null pointer. They must live as long.
std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  return argv;
}

// Reads a command line that asks for no help and no list.
void read_words(OptionParser& app, Arguments& a, std::vector<char*>& argv) {
  declare_options(app, a);
  if (app.parse(static_cast<int>(argv.size()) - 1, argv.data()) || a.version || a.formats || a.list)
    throw_error("options that print and exit train nothing");
  check(app, a);
}

}  // namespace

void check_training(std::vector<std::string> words) {
  Arguments a;
  OptionParser app("", "");
  std::vector<char*> argv = pointers(words);
  read_words(app, a, argv);
}

std::optional<Comparison> train_as(std::vector<std::string> words, dist::Communicator& ranks) {
  Arguments a;
  OptionParser app("", "");
  std::vector<char*> argv = pointers(words);
  read_words(app, a, argv);
  return compared(app, a, ranks, argv.data());
}

int train_command(int argc, char** argv) {
  Arguments a;
  OptionParser app(
      "Trains the same network on the same data under many precision recipes, and reports what each did to "
      "the numbers: accuracy or another metric, loss scale, memory, and which gradients were lost.\n",
      "");
  declare_options(app, a);
  std::string commands = fmt::format("Other commands ({} NAME --help):", program_name());
  for (const Command& command : kCommands) commands += fmt::format("\n  {:<9} {}", command.name, command.summary);
  app.footer(commands);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  if (app.count("--trace") && a.options.trace.empty()) a.options.trace = "-";
  if (app.count("--profile") && a.options.profile.empty()) a.options.profile = "-";
  if (a.version) {
    say(stdout, "gradual-lab {}\n", GRADUAL_VERSION);
    return 0;
  }
  if (a.formats) {
    list_formats();
    return 0;
  }
  if (a.list) {
    if (app.count("--recipes")) list_recipes(recipes_for(a.recipes));
    else list_all_recipes();
    return 0;
  }
  check(app, a);
  return dist::run([&](dist::Communicator& ranks) { return train(app, a, ranks, argv); });
}

}  // namespace gradual::lab
