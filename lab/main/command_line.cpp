#include "command_line.h"

#include <fmt/format.h>
#include <gradual/amp/learned_scales.h>
#include <gradual/core/files/safetensors.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>
#include <gradual/core/support/threads.h>
#include <gradual/lab/loss.h>
#include <gradual/lab/metric.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>

namespace gradual::lab {
namespace {

amp::Recipe recipe_named(const std::string& name) {
  try {
    return amp::recipe(name);
  } catch (const Error&) {
    std::error_code none;
    if (!std::filesystem::is_regular_file(name, none)) throw;
    throw_error("no recipe '" + name +
                "'; a file of this name exists, but the name of a recipe file must end in .json");
  }
}

// The recipes that `text` names: FILE.json, all of the file; FILE.json:NAME, one of them; or a recipe's name.
std::vector<amp::Recipe> recipes_named(const std::string& text) {
  constexpr std::string_view kEnd = ".json";
  if (text.ends_with(kEnd)) return amp::load_recipes(text);
  const std::size_t end = text.find(".json:");
  if (end == std::string::npos) return {recipe_named(text)};
  const std::string file = text.substr(0, end + kEnd.size());
  const std::string wanted = text.substr(end + kEnd.size() + 1);
  std::vector<std::string> names;
  for (amp::Recipe& r : amp::load_recipes(file)) {
    if (r.name == wanted) return {std::move(r)};
    names.push_back(r.name);
  }
  throw_error(file + " has no recipe '" + wanted + "'; it has " + join(names) + did_you_mean(wanted, names));
}

}  // namespace

std::vector<std::string> split_names(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream fields(text);
  for (std::string name; std::getline(fields, name, ',');) {
    const std::size_t from = name.find_first_not_of(' ');
    if (from != std::string::npos) names.push_back(name.substr(from, name.find_last_not_of(' ') - from + 1));
  }
  return names;
}

std::vector<amp::Recipe> recipes_for(const std::string& text) {
  std::vector<amp::Recipe> recipes;
  std::vector<std::string> asked;  // by which names: O0 is fp32
  const auto add = [&](const std::string& by, amp::Recipe recipe) {
    for (std::size_t i = 0; i < recipes.size(); ++i) {
      if (recipes[i].name != recipe.name) continue;
      if (asked[i] == by) throw_error("--recipes lists '" + by + "' twice");
      throw_error("--recipes lists the recipe " + recipe.name + " twice, as '" + asked[i] + "' and as '" + by + "'");
    }
    asked.push_back(by);
    recipes.push_back(std::move(recipe));
  };
  const std::vector<std::string> names = split_names(text == "story" ? kStory : text == "classic" ? kClassic : text);
  for (const std::string& name : text == "all" ? amp::recipe_names() : names) {
    if (name == "all" || name == "story" || name == "classic")
      throw_error(fmt::format("--recipes is '{}'; use {} alone, or names separated by commas", text, name));
    for (amp::Recipe& r : recipes_named(name)) add(name, std::move(r));
  }
  if (recipes.empty()) throw_error("--recipes is '" + text + "', which names none; see --list-recipes");
  return recipes;
}

std::map<std::string, std::string> recipe_sources(const std::string& text) {
  std::map<std::string, std::string> sources;
  for (const std::string& name : split_names(text)) {
    const std::size_t end = name.find(".json");
    if (end == std::string::npos) continue;
    const std::string file = name.substr(0, end + std::string_view(".json").size());
    for (const amp::Recipe& r : recipes_named(name)) sources[r.name] = file + ":" + r.name;
  }
  return sources;
}

void check_lr(double lr) {
  if (!(std::isfinite(lr) && lr > 0)) throw_error(fmt::format("--lr is {}; it must be positive and finite", lr));
}

void declare_threads(OptionParser& app, int& threads) {
  app.add_option("--threads", threads, "threads (default: all cores)");
}

void use_threads(const OptionParser& app, int threads) {
  if (app.count("--deterministic")) set_deterministic(true);
  if (!app.count("--threads")) return;
  if (threads < 1 || threads > kMostThreads)
    throw_error(fmt::format("--threads is {}; it must be 1 to {}", threads, kMostThreads));
  set_num_threads(threads);
}

void TaskArguments::declare(OptionParser& app) {
  const std::size_t others = app.names().size();
  app.add_option(
      "--model", model,
      join(model_names()) + " or FILE.pt2 of torch.export.save (default: gpt for tokens, cnn for images, else mlp)");
  app.add_option("--data", data, kDataNames).capture_default_str();
  app.add_option("--context", context, "characters in a window of text:FILE (default: 64)");
  app.add_option("--init", init, "start from the parameters in this .safetensors file, of PyTorch or of --save");
  app.add_option("--loss", loss, join(loss_names()) + " (default: that of the data)");
  app.add_option("--metric", metric, join(metric_names()) + ": what verdicts compare (default: that of the loss)");
  app.add_option("--optimizer", optimizer, join(optimizer_names())).capture_default_str();
  app.add_option("--weight-decay", weight_decay_, "(default: the optimizer's; adamw and soap 0.01, else 0)");
  app.add_option("--momentum", momentum_, "of sgd and muon (default: 0.9, 0.95)");
  app.add_option("--beta1", beta1_, "of adam, adamw, soap and lion");
  app.add_option("--beta2", beta2_, "of adam, adamw, soap and lion");
  app.add_option("--eps", eps_, "of adam, adamw, soap and rmsprop");
  app.add_option("--schedule", schedule_, "of the learning rate: " + join(schedule_names())).capture_default_str();
  app.add_option("--warmup", training.warmup, "first steps, in which the learning rate rises from 0");
  app.add_option("--clip", training.clip, "largest norm of all gradients together; 0: any").capture_default_str();
  app.add_option("--accumulate", training.accumulate, "parts of a batch whose gradients add up before an update")
      .capture_default_str();
  app.add_option("--average", training.average,
                 "evaluate the averaged parameters a = d a + (1 - d) w (EMA) with this d, such as 0.999; 0: do not")
      .capture_default_str();
  app.add_option("--epochs", epochs,
                 fmt::format("passes over the training data, which the learning rate follows (default: {})", epochs));
  app.add_option("--batch", batch, "samples per step").capture_default_str();
  app.add_option("--lr", lr, "learning rate (default: the optimizer's; 2e-3 for adamw and adam, 0.05 for sgd)");
  app.add_option("--device", device_, "cpu or cuda").capture_default_str();
  app.add_flag("--deterministic", "the same bits for any number of threads, with oneDNN too");
  const std::vector<std::string> all = app.names();
  names_.assign(all.begin() + static_cast<std::ptrdiff_t>(others), all.end());
}

Launch TaskArguments::launch(const OptionParser& app, const std::string& recipes) const {
  Launch launch{.program = program_called(), .options = app.words(names_), .recipes = recipe_sources(recipes)};
  if (app.count("--epochs") == 0) launch.options.insert(launch.options.end(), {"--epochs", std::to_string(epochs)});
  return launch;
}

void TaskArguments::take(OptionParser& app, const Origin& origin) const {
  std::vector<std::string> words;
  bool wanted = false;
  for (const std::string& word : origin.options) {
    if (std::ranges::find(names_, word) != names_.end()) wanted = app.count(word) == 0;
    if (wanted) words.push_back(word);
  }
  app.add_words(words);
}

void TaskArguments::read(const OptionParser& app) {
  at_least_one("--batch", batch);
  at_least_one("--epochs", epochs);
  if (app.count("--context")) at_least_one("--context", context);
  if (app.count("--lr")) check_lr(lr);
  device = device_from_name(device_);
  Rates& rates = training.rates;
  const auto given = [&](const char* option, double value, std::optional<double>& to) {
    if (app.count(option)) to = value;
  };
  given("--weight-decay", weight_decay_, rates.weight_decay);
  given("--momentum", momentum_, rates.momentum);
  given("--beta1", beta1_, rates.beta1);
  given("--beta2", beta2_, rates.beta2);
  given("--eps", eps_, rates.eps);
  training.schedule = schedule_from_name(schedule_);
  check(training);
  make_optimizer(optimizer, 0, rates);
  if (!loss.empty()) check_known(Loss(loss));
  if (!metric.empty()) info_of(Metric(metric));
}

// The model for a task that names none: for text, for images, for anything else.
static std::string model_for_inputs(const Tensor& inputs) {
  if (inputs.dtype() == DType::i64) return "gpt";
  return inputs.dim() == 4 ? "cnn" : "mlp";
}

MakeModel TaskArguments::make_model(const data::Dataset& sample, const std::string& usual) {
  if (model.empty()) model = usual.empty() ? model_for_inputs(sample.inputs) : usual;
  const MakeModel fresh = model_for(model, sample);
  if (init.empty()) return fresh;
  return [fresh, state = load_safetensors(init).tensors, file = init] {
    const auto made = fresh();
    try {
      made->load_state_dict(amp::without_foreign_steps(state, *made));
    } catch (const Error& e) { throw_error("--init " + file + ": " + e.what()); }
    return made;
  };
}

void at_least(std::int64_t least, const char* option, std::int64_t given) {
  if (given < least) throw_error(fmt::format("{} is {}; it must be at least {}", option, given, least));
}

}  // namespace gradual::lab
