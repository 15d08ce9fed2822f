// Trainings by words of gradual-lab's command line, for commands that train more than one comparison.
#pragma once

#include <gradual/dist/communicator.h>
#include <gradual/lab/result.h>

#include <optional>
#include <string>
#include <vector>

namespace gradual::lab {

struct Comparison {
  std::vector<Result> results = {};
  bool stopped = false;  // by a signal, before its end
};

// Error for words that gradual-lab would refuse before it loads data. words: the program, then options.
void check_training(std::vector<std::string> words);

// Trains and writes the folder of --out, over these ranks. None on a rank other than the first.
std::optional<Comparison> train_as(std::vector<std::string> words, dist::Communicator& ranks);

}  // namespace gradual::lab
