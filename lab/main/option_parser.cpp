#include "option_parser.h"

#include <fmt/ranges.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <filesystem>

namespace gradual::lab {
namespace {

std::string& called_storage() {
  static std::string called = "gradual-lab";
  return called;
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
    if (message.find(o->get_name()) != std::string::npos) {
      if (o->get_items_expected_max() == 0) return "it takes no value";
      if (o->get_type_name() == "FLOAT") return "a number is expected";
      return "a whole number, not too large, is expected";
    }
  return "it is not what the option takes";
}

}  // namespace

DeclaredOption DeclaredOption::capture_default_str() {
  option_->capture_default_str();
  return *this;
}

DeclaredOption DeclaredOption::expected(int values) {
  option_->expected(values);
  return *this;
}

DeclaredOption DeclaredOption::expected(int least, int most) {
  option_->expected(least, most);
  return *this;
}

DeclaredOption DeclaredOption::one_of(const std::vector<std::string>& allowed) {
  option_->check(CLI::IsMember(allowed));
  return *this;
}

DeclaredOption DeclaredOption::required() {
  option_->required();
  return *this;
}

DeclaredOption DeclaredOption::description(const std::string& text) {
  option_->description(text);
  return *this;
}

void set_program(const char* called) { called_storage() = called; }
const std::string& program_called() { return called_storage(); }
std::string program_name() { return std::filesystem::path(program_called()).filename().string(); }

OptionParser::OptionParser(const std::string& description, const std::string& command)
    : app_(std::make_unique<CLI::App>(description, program_name() + (command.empty() ? "" : " " + command))) {}
OptionParser::~OptionParser() = default;

template <class T>
DeclaredOption OptionParser::add_option(const std::string& name, T& variable, const std::string& description) {
  return DeclaredOption(app_->add_option(name, variable, description));
}
template DeclaredOption OptionParser::add_option(const std::string&, std::string&, const std::string&);
template DeclaredOption OptionParser::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template DeclaredOption OptionParser::add_option(const std::string&, double&, const std::string&);
template DeclaredOption OptionParser::add_option(const std::string&, int&, const std::string&);
template DeclaredOption OptionParser::add_option(const std::string&, std::int64_t&, const std::string&);
template DeclaredOption OptionParser::add_option(const std::string&, std::uint64_t&, const std::string&);

DeclaredOption OptionParser::add_flag(const std::string& name, bool& variable, const std::string& description) {
  return DeclaredOption(app_->add_flag(name, variable, description));
}

DeclaredOption OptionParser::add_flag(const std::string& name, const std::string& description) {
  return DeclaredOption(app_->add_flag(name)->description(description));
}

DeclaredOption OptionParser::option(const std::string& name) { return DeclaredOption(app_->get_option(name)); }
void OptionParser::footer(const std::string& text) { app_->footer(text); }
std::size_t OptionParser::count(const std::string& name) const { return app_->count(name); }

std::vector<std::string> OptionParser::names() const {
  std::vector<std::string> all;
  for (const CLI::Option* option : app_->get_options()) all.push_back(option->get_name());
  return all;
}

std::vector<std::string> OptionParser::words(const std::vector<std::string>& names) const {
  std::vector<std::string> words;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->count() == 0 || std::ranges::find(names, option->get_name()) == names.end()) continue;
    words.push_back(option->get_name());
    if (option->get_items_expected_max() == 0) continue;
    for (const std::string& value : option->results()) words.push_back(value);
  }
  return words;
}

std::vector<std::pair<std::string, std::string>> OptionParser::given() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const CLI::Option* option : app_->get_options())
    all.emplace_back(option->get_name(), fmt::format("{}", fmt::join(option->results(), " ")));
  return all;
}

void OptionParser::add_words(const std::vector<std::string>& words) {
  std::vector<std::string> all = parsed_;
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> pointers;
  for (std::string& word : all) pointers.push_back(word.data());
  parse(static_cast<int>(pointers.size()), pointers.data());
}

std::optional<int> OptionParser::parse(int argc, char** argv) {
  CLI::App& app = *app_;
  parsed_.assign(argv, argv + argc);
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

}  // namespace gradual::lab
