// gradual-lab's subcommands: `gradual-lab NAME [OPTIONS]`. Each is a file of this folder.
#pragma once

#include <array>
#include <string_view>

namespace gradual::lab {

// run gets the subcommand's name as argv[0]. It returns the exit status, and throws Error for bad arguments.
struct Command {
  std::string_view name, summary;
  int (*run)(int argc, char** argv);
};
int compare_command(int argc, char** argv);
int diff_command(int argc, char** argv);
int exchange_command(int argc, char** argv);
int explain_command(int argc, char** argv);
int figure_command(int argc, char** argv);
int judge_command(int argc, char** argv);
int policy_command(int argc, char** argv);
int probe_command(int argc, char** argv);
int report_command(int argc, char** argv);
int search_command(int argc, char** argv);
int step_command(int argc, char** argv);
int sweep_command(int argc, char** argv);
int tolerance_command(int argc, char** argv);
// Trains and compares: what the program does without a subcommand.
int train_command(int argc, char** argv);
int translate_command(int argc, char** argv);
int twin_command(int argc, char** argv);
int xray_command(int argc, char** argv);

inline constexpr std::array kCommands = {
    Command{"step", "one step of a training: whose errors move the loss, who loses the bits, the updates",
            step_command},
    Command{"diff", "the same step under two recipes: where they part, and why their losses differ", diff_command},
    Command{"twin", "the same weights under two recipes, one that trains and one that samples: KL, changed choices",
            twin_command},
    Command{"tolerance", "how far two correct implementations of a step may differ, tensor by tensor",
            tolerance_command},
    Command{"xray", "what scales of blocks clip and lose, next to other rules and sizes", xray_command},
    Command{"explain", "the smallest set of things that must be exact so that a run does not fail", explain_command},
    Command{"exchange", "what gradients lose between ranks, by format, algorithm and number of ranks",
            exchange_command},
    Command{"probe", "how this machine adds up products: order, bits and rounding, against what is documented",
            probe_command},
    Command{"policy", "what autocast does with each op, and why with one", policy_command},
    Command{"search", "the cheapest format of each layer that trains as fp32 does", search_command},
    Command{"sweep", "all combinations of some choices, and which one matters given which", sweep_command},
    Command{"judge", "a recorded step of a PyTorch model: is a difference rounding, or a bug, and in which op",
            judge_command},
    Command{"translate", "an exported model of PyTorch (.pt2) as C++", translate_command},
    Command{"compare", "the results of several folders in one report", compare_command},
    Command{"figure", "one figure of a comparison as SVG or PDF", figure_command},
    Command{"report", "writes the report of a folder of results anew", report_command}};

}  // namespace gradual::lab
