#include "command_line.h"

#include <fmt/format.h>
#include <gradual/core/files/safetensors.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>
#include <gradual/core/support/threads.h>

#include <cmath>
#include <filesystem>
#include <sstream>

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

std::string see_help(const CLI::App& app) { return " (see " + app.get_name() + " --help)"; }

std::string unknown(const std::string& argument, const CLI::App& app) {
  if (!argument.starts_with('-')) return "unknown argument '" + argument + "'" + see_help(app);
  const std::string option = argument.substr(0, argument.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* o : app.get_options()) names.push_back(o->get_name());
  return "no option '" + option + "'" + did_you_mean(option, names) + see_help(app);
}

// What the option expects that CLI11's message is about.
std::string expected(const std::string& message, const CLI::App& app) {
  for (const CLI::Option* o : app.get_options())
    if (message.find(o->get_name()) != std::string::npos)
      return o->get_items_expected_max() == 0 ? "it takes no value"
             : o->get_type_name() == "FLOAT"  ? "a number is expected"
                                              : "a whole number, not too large, is expected";
  return "it is not what the option takes";
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

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  app.allow_extras();  // unknown() reports the first, with the nearest option
  try {
    app.parse(argc, argv);
  } catch (const CLI::ConversionError& e) {
    throw_error(fmt::format("{}; {}{}", e.what(), expected(e.what(), app), see_help(app)));
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string what = e.what();
    const std::size_t twice = what.find(": At Most 1 ");
    throw_error((twice == std::string::npos ? what : what.substr(0, twice) + " is given more than once") +
                see_help(app));
  } catch (const CLI::ParseError& e) { return app.exit(e) == 0 ? 0 : 2; }
  if (const std::vector<std::string> extras = app.remaining(); !extras.empty())
    throw_error(unknown(extras.front(), app));
  return std::nullopt;
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
    asked.push_back(by), recipes.push_back(std::move(recipe));
  };
  const std::vector<std::string> names = split_names(text == "story" ? kStory : text == "classic" ? kClassic : text);
  for (const std::string& name : text == "all" ? amp::recipe_names() : names) {
    if (name == "all" || name == "story" || name == "classic")
      throw_error(fmt::format("--recipes is '{}'; use {} alone, or names separated by commas", text, name));
    if (!name.ends_with(".json")) add(name, recipe_named(name));
    else
      for (amp::Recipe& r : amp::load_recipes(name)) add(name, std::move(r));
  }
  if (recipes.empty()) throw_error("--recipes is '" + text + "', which names none; see --list-recipes");
  return recipes;
}

void check_lr(double lr) {
  if (!(std::isfinite(lr) && lr > 0)) throw_error(fmt::format("--lr is {}; it must be positive and finite", lr));
}

void declare_threads(CLI::App& app, int& threads) {
  app.add_option("--threads", threads, "threads (default: all cores)");
  app.add_flag("--deterministic")->description("the same bits for any number of threads, with oneDNN too");
}

void use_threads(const CLI::App& app, int threads) {
  if (app.count("--deterministic")) set_deterministic(true);
  if (!app.count("--threads")) return;
  if (threads < 1 || threads > kMostThreads)
    throw_error(fmt::format("--threads is {}; it must be 1 to {}", threads, kMostThreads));
  set_num_threads(threads);
}

void TaskArguments::declare(CLI::App& app) {
  app.add_option(
      "--model", model,
      join(model_names()) + " or FILE.pt2 of torch.export.save (default: gpt for text, cnn for images, else mlp)");
  app.add_option("--data", data,
                 "digits, addition, mnist:DIR, cifar10:DIR, text:FILE, npy:INPUTS,TARGETS or safetensors:FILE")
      ->capture_default_str();
  app.add_option("--context", context, "characters in a window of text:FILE (default: 64)");
  app.add_option("--init", init, "start from the parameters in this .safetensors file, of PyTorch or of --save");
}

MakeModel TaskArguments::make_model(const data::Dataset& sample) {
  const bool text = sample.inputs.dtype() == DType::i64;
  if (model.empty()) model = text ? "gpt" : sample.inputs.dim() == 4 ? "cnn" : "mlp";
  const MakeModel fresh = model_for(model, sample);
  if (init.empty()) return fresh;
  return [fresh, state = load_safetensors(init).tensors, file = init] {
    const auto made = fresh();
    try {
      made->load_state_dict(state);
    } catch (const Error& e) { throw_error("--init " + file + ": " + e.what()); }
    return made;
  };
}

void at_least(std::int64_t least, const char* option, std::int64_t given) {
  if (given < least) throw_error(fmt::format("{} is {}; it must be at least {}", option, given, least));
}

}  // namespace gradual::lab
