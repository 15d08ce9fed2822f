// gradual-lab translate: an exported model as C++.
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/support/error.h>
#include <gradual/pt2/translate.h>

#include <optional>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "option_parser.h"
#include "terminal.h"

namespace gradual::lab {

int translate_command(int argc, char** argv) {
  std::string file;
  std::string out;
  pt2::TranslateOptions options;
  OptionParser app(
      "Writes a model that torch.export.save wrote as C++: a struct for each class of its modules, with PyTorch's "
      "names\n"
      "and lines. Compiled, it computes the same bits, and a debugger steps through it (docs/pt2.md).\n",
      "translate");
  app.add_option("model", file, "a .pt2 file").required();
  app.add_option("--out", out, "write to this file (default: stdout)");
  app.add_option("--any-size", options.any_size, "what stands for a size that may be any, in a run on zeros")
      .capture_default_str();
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  at_least_one("--any-size", options.any_size);
  const std::string text = pt2::translate(file, options);
  if (out.empty()) say(stdout, "{}", text);
  else write_file_atomically(out, text);
  return 0;
}

}  // namespace gradual::lab
