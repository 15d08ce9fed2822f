// Several processes for one comparison: ranks of mpirun or srun, or --jobs on this machine.
#pragma once

#include <gradual/dist/communicator.h>
#include <gradual/lab/folder_lock.h>
#include <gradual/lab/lab.h>

#include <optional>
#include <string>
#include <vector>

#include "temporary_folder.h"

namespace gradual::lab {

struct RankOptions {
  int jobs = 1;          // processes that share out the runs
  int worker = 0;        // this process is one of them, with so many threads
  std::string parallel;  // "data": each run over all ranks; empty: runs are shared out
  int threads = 0;       // --threads; 0: not given
};

// A comparison, of a process that may be one of several.
struct SharedComparison {
  const MakeModel& make;
  const LabData& data;
  const std::vector<amp::Recipe>& recipes;
  std::string out;
  Options& options;
  std::optional<FolderLock> lock = {};       // of `out`, for all processes that share the runs
  std::optional<TemporaryFolder> copy = {};  // of `out`, which a rank resumes from
};

// Sets the number of threads: this process's share of the cores, unless --threads names it.
void share_threads(const dist::Communicator& ranks, const RankOptions& how);
// Trains what this process has a share in, or prepares each run to be trained by all ranks. True if the caller calls
// compare() afterwards, for whose `out` and options it sets what is needed. argv: of the program, for the jobs.
bool prepare(dist::Communicator& ranks, const RankOptions& how, SharedComparison& all, char** argv);

}  // namespace gradual::lab
