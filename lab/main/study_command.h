// Shared by the subcommands that study one step.
#pragma once

#include <gradual/lab/study.h>

#include <CLI/CLI.hpp>
#include <string>

namespace gradual::lab {

struct StudyArguments {
  StudyOptions options;
  std::string model, data = "digits";
  std::int64_t context = 0;
  int threads = 0;

  void declare(CLI::App& app);
  void check(const CLI::App& app) const;
  LabData task() const { return data_for(data, context); }
  // The model of --model; by default the one that fits the data.
  MakeModel make_model() const;
};

// The one recipe that the text names. Error for several.
amp::Recipe one_recipe(const char* option, const std::string& text);

}  // namespace gradual::lab
