// What gradual-lab and its subcommands share in reading their arguments.
#pragma once

#include <gradual/amp/recipe.h>
#include <gradual/core/tensor/device.h>
#include <gradual/lab/launch.h>
#include <gradual/lab/models.h>
#include <gradual/lab/tasks.h>
#include <gradual/lab/training.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "option_parser.h"

namespace gradual::lab {

// The texts between commas, without surrounding spaces.
std::vector<std::string> split_names(const std::string& text);

// Sets of recipes by name. story: recipes that differ, each for a reason. classic: those of the texts on mixed
// precision.
inline constexpr const char* kStory = "fp32,amp-fp16,bf16-pure,fp16-pure,fp8-current,e5m2,e4m3,mxfp6,e3m2,mxfp4";
inline constexpr const char* kClassic = "fp32,tf32,fp16-pure,bf16-pure,fp16-master,bf16-master,amp-fp16,amp-bf16";

// What names each recipe on a command line where its own name does not: "FILE.json:NAME".
std::map<std::string, std::string> recipe_sources(const std::string& names);

// "fp32, e4m2, FILE.json", "story", "classic" or "all": the recipes. Error for an unknown one, for one that is listed
// twice, and for none.
std::vector<amp::Recipe> recipes_for(const std::string& names);

void at_least(std::int64_t least, const char* option, std::int64_t given);
inline void at_least_one(const char* option, std::int64_t given) { at_least(1, option, given); }
void check_lr(double lr);
// The data, the model that is trained on them, and how: all that decides a training but its recipe and seed. Commands
// that repeat a run are written from the same table that parses these options.
struct TaskArguments {
  std::string model, data = "digits", init;
  std::int64_t context = 0;
  std::string loss, metric;  // empty: those of the data
  std::string optimizer = "adamw";
  std::int64_t batch = 64;
  int epochs = 10;
  double lr = 0;  // 0: the optimizer's own
  Device device = Device::cpu();
  Training training;

  void declare(OptionParser& app);
  // Sets `training`. Error for an option out of range or an unknown name.
  void read(const OptionParser& app);
  LabData task() const { return data_for(data, context); }
  // The model of --model, with the parameters of --init. The default is `usual`; if that is empty, the model that fits
  // these data. Sets `model`.
  MakeModel make_model(const data::Dataset& sample, const std::string& usual);
  // How this command line began, for results. --epochs is always named: its default differs between commands.
  Launch launch(const OptionParser& app, const std::string& recipes) const;
  // Takes those options over that this command line does not give. Call read() afterwards.
  void take(OptionParser& app, const Origin& origin) const;

 private:
  std::vector<std::string> names_;  // of the declared options
  std::string device_ = "cpu";
  double weight_decay_ = 0;
  double momentum_ = 0;
  double beta1_ = 0;
  double beta2_ = 0;
  double eps_ = 0;
  std::string schedule_ = "cosine";
};
// --threads.
void declare_threads(OptionParser& app, int& threads);
// Sets the number of threads if --threads is given, and deterministic mode if that is asked for (declare() of a task).
// Error for a number out of range.
void use_threads(const OptionParser& app, int threads);

}  // namespace gradual::lab
