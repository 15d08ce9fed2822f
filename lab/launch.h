// How a run was started, so that each command that a comparison prints repeats it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gradual::amp {
struct Recipe;
}

namespace gradual::lab {

struct Options;

// The start of a comparison by a command. The program fills it from the table that parses its options.
struct Launch {
  std::string program = {};                         // as it was called: "gradual-lab"; empty: compare() in C++
  std::vector<std::string> options = {};            // that step, diff, xray and search take too: "--data", "text:a.txt"
  std::map<std::string, std::string> recipes = {};  // by name, those that others name otherwise: "mine.json:b24"
};

// The start of one run, as results keep it. Both are empty where nothing can repeat it: files of earlier versions,
// data-parallel runs, and words with control characters.
struct Origin {
  std::string program = {};               // empty, with options: a call in C++
  std::vector<std::string> options = {};  // words of a command; of a call in C++ the fields, "batch", "64", ..
  std::string recipe = {};                // what names it on a command line; in C++ an expression
  bool operator==(const Origin&) const = default;
};
Origin origin_of(const amp::Recipe& recipe, const Options& options);

// The word, in quotes if a POSIX shell would part or change it.
std::string shell_word(const std::string& word);
// The step of a run that a command looks at.
struct StepOfRun {
  std::int64_t step = 0;
  std::int64_t seed = 0;
};
// "gradual-lab diff --epochs 4 e3m2 mxfp6 --step 50", or a call in C++ of `make_model` and `data`, the caller's
// arguments of compare(). Empty: nothing can repeat the run, or the two runs of a diff have different options.
std::string step_command(const Origin& origin, const StepOfRun& at);
std::string diff_command(const Origin& first, const Origin& second, const StepOfRun& at);
std::string search_command(const Origin& origin, const StepOfRun& at);
// A command in lines of at most `columns`, where it can be parted: those after the first begin with `indent`, the ones
// before it end with a backslash.
std::string wrapped_command(const std::string& command, std::size_t columns, const std::string& indent);

}  // namespace gradual::lab
