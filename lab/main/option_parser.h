// The options of a command line. It hides CLI11, whose headers take seconds to compile, from all files but one.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace gradual::lab {

// An option that was declared, to say more about it. Each call returns the option itself.
class DeclaredOption {
 public:
  explicit DeclaredOption(CLI::Option* option) : option_(option) {}
  DeclaredOption capture_default_str();  // help shows the variable's value as the default
  DeclaredOption expected(int values);   // -1: one or more
  DeclaredOption expected(int least, int most);
  DeclaredOption one_of(const std::vector<std::string>& allowed);  // another value is an error that lists these
  DeclaredOption required();
  DeclaredOption description(const std::string& text);

 private:
  CLI::Option* option_;
};

// The program as it was called, argv[0], and the name of its file.
void set_program(const char* called);
const std::string& program_called();
std::string program_name();

class OptionParser {
 public:
  // `description` heads the help; `command` is the subcommand, such as "step"; empty: the program alone.
  OptionParser(const std::string& description, const std::string& command);
  ~OptionParser();

  // "--name" or, without dashes, a positional argument. The value goes to the variable, which must live as long as the
  // parser. T: std::string, std::vector<std::string>, double, int, std::int64_t or std::uint64_t.
  template <class T> DeclaredOption add_option(const std::string& name, T& variable, const std::string& description);
  DeclaredOption add_flag(const std::string& name, bool& variable, const std::string& description);
  DeclaredOption add_flag(const std::string& name, const std::string& description);
  DeclaredOption option(const std::string& name);  // one that was added before
  void footer(const std::string& text);            // ends the help

  // How often the option was given.
  std::size_t count(const std::string& name) const;
  std::vector<std::string> names() const;  // of all options, in the order of their declarations
  // The words of those of these options that were given, as a command line has them.
  std::vector<std::string> words(const std::vector<std::string>& names) const;
  // The name of each option, with its values as they were given; "" if it was not.
  std::vector<std::pair<std::string, std::string>> given() const;

  // Returns the exit status if help or an error ends the program; Error for an unknown argument, with the nearest
  // option, and for a value that does not fit its option.
  std::optional<int> parse(int argc, char** argv);
  // Parses the words that were parsed last, and these. What was set before is set again.
  void add_words(const std::vector<std::string>& words);

 private:
  std::unique_ptr<CLI::App> app_;
  std::vector<std::string> parsed_;  // words
};

}  // namespace gradual::lab
