// gradual-lab policy: what autocast does with each op, and why with one.
#include <gradual/amp/policy.h>
#include <gradual/amp/recipe.h>
#include <gradual/core/formats/dtype.h>
#include <gradual/core/ops/op.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "option_parser.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

// The dtypes between commas; one stands for all inputs of the op.
std::vector<DType> dtypes_of(const std::string& text, OpId op) {
  std::vector<DType> dtypes;
  for (const std::string& name : split_names(text)) dtypes.push_back(dtype_from_name(name));
  if (dtypes.empty()) throw_error("--inputs is '" + text + "', which names no dtype; f32 or f16,f32");
  const int inputs = op_info(op).inputs;
  if (dtypes.size() == 1 && inputs > 1) dtypes.resize(static_cast<std::size_t>(inputs), dtypes[0]);
  return dtypes;
}

}  // namespace

int policy_command(int argc, char** argv) {
  std::string op;
  std::string recipe = "amp-fp16";
  std::string inputs = "f32";
  bool wide = false;
  OptionParser app(
      "Prints what autocast does with each op: runs it in the lower dtype, in f32, in the widest of its inputs, or as\n"
      "it is. With an op: what becomes of its inputs, and why.\n",
      "policy");
  app.add_option("op", op, "an op, such as softmax");
  app.add_option("--recipe", recipe, "a recipe with autocast, whose own policies count").capture_default_str();
  app.add_option("--inputs", inputs, "dtypes of the op's inputs: f32, or one each as f16,f32").capture_default_str();
  app.add_flag("--wide", wide, kWideHelp);
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  const std::vector<amp::Recipe> chosen = recipes_for(recipe);
  if (chosen.size() != 1 || chosen[0].mode != amp::Mode::autocast)
    throw_error("--recipe is '" + recipe +
                "'; policy takes one recipe with autocast: amp-fp16, amp-bf16 or one of a file");
  const amp::PolicyTable table = amp::policy_table(chosen[0]);
  if (op.empty()) {
    say_text(to_string(table), wide);
    return 0;
  }
  const OpId id = op_from_name(op);
  say_text(table.why(id, dtypes_of(inputs, id), chosen[0].dtype) + "\n", wide);
  return 0;
}

}  // namespace gradual::lab
