// The runs of a comparison shared out over processes: ranks of mpirun, or several on one machine. They share the folder
// `out` and nothing else. Each process trains the next run that no other process trains, until none is left, and then
// explains the next one. Then compare() with resume finds their results and writes what one process would have written.
// A process that dies leaves the checkpoint of its last epoch, from which another one goes on, or else compare().
#pragma once

#include <string>
#include <vector>

#include "lab.h"

namespace gradual::lab {

// Makes the folder and, without options.resume, removes what earlier comparisons left in it. One process calls this
// before the others begin. Errors as in compare().
void begin_shared(const std::string& out, const Options& options);
// Trains runs until all are trained, and explains runs until all are explained or taken. Errors as in check(); also for
// options.trace and options.profile.
void train_shared(const MakeModel& make_model, const LabData& data, const std::vector<amp::Recipe>& recipes,
                  const std::string& out, const Options& options);
// For a process that has done its share: waits until no other one explains a run.
void await_shared(const std::string& out);
// Removes the files by which the processes agreed, once no other one is at work.
void remove_locks(const std::string& out);

}  // namespace gradual::lab
