// What gradual-lab and its subcommands share in reading their arguments.
#pragma once

#include <gradual/amp/recipe.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gradual::lab {

// Parses the arguments. Returns the exit status if help or an error ends the program; Error for an unknown argument,
// with the nearest option, and for a value that does not fit its option.
std::optional<int> parse(CLI::App& app, int argc, char** argv);

// The texts between commas, without surrounding spaces.
std::vector<std::string> split_names(const std::string& text);

// "fp32, e4m2, FILE.json" or "all": the recipes. Error for an unknown one, for one that is listed twice, and for none.
std::vector<amp::Recipe> recipes_for(const std::string& names);

void at_least_one(const char* option, std::int64_t given);

}  // namespace gradual::lab
