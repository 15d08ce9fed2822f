// Shared by the subcommands that study one step.
#pragma once

#include <gradual/lab/study.h>

#include <string>

#include "command_line.h"

namespace gradual::lab {

struct StudyArguments : TaskArguments {
  StudyOptions options;
  int threads = 0;

  void declare(OptionParser& app);
  void check(const OptionParser& app);
  MakeModel make_model() {
    const LabData chosen = task();
    return TaskArguments::make_model(chosen.load(options.seed).train, chosen.model);
  }
};

// The one recipe that the text names. Error for several.
amp::Recipe one_recipe(const char* option, const std::string& text);

}  // namespace gradual::lab
