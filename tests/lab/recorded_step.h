// The numbers of a studied step, as a checkpoint of another program would have them.
#pragma once

#include <gradual/gradual.h>
#include <gradual/lab/recorded_ops.h>
#include <gradual/lab/study.h>

namespace gradual::test {

inline StateDict recorded_step(lab::Study& study) {
  lab::RecordedOps ops(study.model());
  const UnfusedScope parts;
  const ObserverScope scope(ops);
  study.step();
  return lab::values_of(ops);
}

}  // namespace gradual::test
