// The runs of a comparison shared out over processes: ranks of mpirun, or several on one machine. They share the folder
// `out` and nothing else. Each process trains the next run that no other process trains, until none is left, and then
// explains the next one. Then compare() with resume finds their results and writes what one process would have written.
// A process that dies leaves the checkpoint of its last epoch, from which another one goes on, or else compare().
#pragma once

#include <string>
#include <vector>

#include "../core/support/scoped.h"
#include "lab.h"

namespace gradual::lab {

// Makes the folder and, without options.resume, removes what earlier comparisons left in it. One process calls this
// before the others begin. Errors as in compare().
void begin_shared(const std::string& out, const Options& options);
// Trains runs until all are trained, and explains runs until all are explained or taken. Errors as in check(); also for
// options.trace and options.profile.
void train_shared(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
                  const std::string& out, const Options& options);
// A process takes part while this lives. Where the processes do not end with their share, each makes one before any of
// them can be done.
class TakesPart : Pinned {
 public:
  explicit TakesPart(const std::string& out);  // of begin_shared()
  ~TakesPart();

 private:
  int file_;
};
// For one process that has done its share: waits until none takes part, and removes the files by which they agreed.
void await_shared(const std::string& out);
// The removal alone, where all others have ended.
void remove_locks(const std::string& out);

}  // namespace gradual::lab
