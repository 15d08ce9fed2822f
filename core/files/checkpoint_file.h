// A training checkpoint: the state dicts of all that a run consists of (model, optimizer with its masters, scaler,
// schedule, generator, position in the data, the user's own values) in one safetensors file, so that a run resumes to
// the same bits as one that was never stopped. Tensors are stored as "part.name" and can be read by other programs.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "state_dict.h"

namespace gradual {

inline constexpr int kCheckpointVersion = 1;

using CheckpointParts = std::vector<std::pair<std::string, StateDict>>;

struct Checkpoint {
  CheckpointParts parts;  // as they were saved, empty ones included

  bool contains(std::string_view part) const;
  const StateDict& part(std::string_view name) const;  // Error naming the parts there are
};

// save_checkpoint("run.safetensors", {{"model", model.state_dict()}, {"generator", state_dict(generator)}}).
// Atomic: a run that is killed here leaves the previous checkpoint whole. Error for a part without a name, with a '.'
// in it, or given twice.
void save_checkpoint(const std::string& path, const CheckpointParts& parts);

// All or nothing: a file that is truncated, changed in any bit (a CRC-32 covers every name, value and tensor) or
// written by a newer version of the library gives an Error that says so.
Checkpoint load_checkpoint(const std::string& path);
// The same from memory; `name` stands for the file in messages.
Checkpoint parse_checkpoint(std::string_view bytes, const std::string& name);

}  // namespace gradual
