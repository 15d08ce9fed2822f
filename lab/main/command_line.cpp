#include "command_line.h"

#include <fmt/format.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>
#include <gradual/core/support/threads.h>

#include <cmath>
#include <filesystem>
#include <sstream>

namespace gradual::lab {
namespace {

// A recipe may be requested by another name than its own: O0 is fp32.
struct Asked {
  std::string by;
  amp::Recipe recipe;
};

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

void add(std::vector<Asked>& all, const std::string& by, amp::Recipe recipe) {
  for (const Asked& other : all) {
    if (other.by == by && other.recipe.name == recipe.name) throw_error("--recipes lists '" + by + "' twice");
    if (other.recipe.name == recipe.name)
      throw_error("--recipes lists the recipe " + recipe.name + " twice, as '" + other.by + "' and as '" + by + "'");
  }
  all.push_back({by, std::move(recipe)});
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
  std::vector<Asked> asked;
  const std::vector<std::string> names = split_names(text == "story" ? kStory : text == "classic" ? kClassic : text);
  for (const std::string& name : text == "all" ? amp::recipe_names() : names) {
    if (name == "all" || name == "story" || name == "classic")
      throw_error(fmt::format("--recipes is '{}'; use {} alone, or names separated by commas", text, name));
    if (name.ends_with(".json")) {
      for (amp::Recipe& r : amp::load_recipes(name)) add(asked, name, std::move(r));
    } else {
      add(asked, name, recipe_named(name));
    }
  }
  if (asked.empty()) throw_error("--recipes is '" + text + "', which names none; see --list-recipes");
  std::vector<amp::Recipe> recipes;
  recipes.reserve(asked.size());
  for (Asked& a : asked) recipes.push_back(std::move(a.recipe));
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

void at_least(std::int64_t least, const char* option, std::int64_t given) {
  if (given < least) throw_error(fmt::format("{} is {}; it must be at least {}", option, given, least));
}

}  // namespace gradual::lab
