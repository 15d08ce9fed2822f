#include <fmt/format.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>
#include <gradual/lab/program.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

int run(int argc, char** argv) {
  for (const Command& command : kCommands)
    if (argc > 1 && argv[1] == command.name) return command.run(argc - 1, argv + 1);
  if (argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> names;
    for (const Command& command : kCommands) names.emplace_back(command.name);
    throw_error(
        fmt::format("no command '{}'{}; allowed are {}, or options alone, which train and compare (see {} --help)",
                    argv[1], did_you_mean(argv[1], names), join(names), program_name()));
  }
  return train_command(argc, argv);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 0) set_program(argv[0]);
  int status = 2;
  open_standard_streams();
  on_large_stack([&] {
    try {
      status = run(argc, argv);
    } catch (const std::exception& e) {
      std::fflush(stdout);
      say(stderr, "\n{}: {}\n", program_name(), e.what());
    }
  });
  return status_of_output(status);
}

}  // namespace gradual::lab
