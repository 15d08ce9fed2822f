// Shared by the subcommands that study one step.
#pragma once

#include <gradual/lab/result.h>
#include <gradual/lab/split.h>
#include <gradual/lab/study.h>

#include <optional>
#include <string>
#include <vector>

#include "command_line.h"

namespace gradual::lab {

struct StudyArguments : TaskArguments {
  StudyOptions options;
  int threads = 0;
  bool last_step = false;  // the step that the command line does not name is the last

  void declare(OptionParser& app);
  void check(const OptionParser& app);
  // Of --model, or of the data. A step that the command line does not name is one that the training has.
  MakeModel make_model(const OptionParser& app);
};

// --split and what belongs to it.
struct SplitArguments {
  void declare(OptionParser& app);
  // None without --split. Error for the other options without it.
  std::optional<Split> read(const OptionParser& app) const;

 private:
  std::string split_;
  std::string scales_ = "agreed";
  std::string exchange_ = "f32";
  std::string except_;
};

// The options and the recipes of a folder of results, for commands that look at a step of one of its runs.
class FolderRecipes {
 public:
  // "": none.
  explicit FolderRecipes(const std::string& folder);
  // Adds the options of these recipes' runs, of all runs if the folder has none of them, to those of the command line,
  // which win. Error if the folder does not say them, and if they differ, as in a folder of several comparisons.
  void give(const TaskArguments& task, OptionParser& app, const std::vector<std::string>& recipes) const;
  // The recipe as the folder's run had it; one that the folder lacks as one_recipe().
  amp::Recipe one(const char* option, const std::string& text) const;

 private:
  // The runs of these recipes that say how they began.
  std::vector<const Result*> begun(const std::vector<std::string>& recipes) const;

  std::string folder_;
  std::vector<Result> results_;
};

inline constexpr const char* kFolderHelp = "of results: the step is one of its runs, with all their options";

// The one recipe that the text names. Error for several.
amp::Recipe one_recipe(const char* option, const std::string& text);

}  // namespace gradual::lab
