// A training checkpoint: the state dicts of all parts of a run (model, optimizer with its masters, scaler, schedule,
// generator, position in the data, the user's own values) in one safetensors file. A resumed run has the same bits as
// an uninterrupted one. Tensors are stored as "part.name"; other programs can read them.
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
// Atomic: if the run is killed here, the previous checkpoint stays whole. Error for a part name that is empty, contains
// a '.', or is given twice.
void save_checkpoint(const std::string& path, const CheckpointParts& parts);

// Error for a file that is truncated, changed in any bit (a CRC-32 covers every name, value and tensor) or written by a
// newer version of the library; then nothing is loaded.
Checkpoint load_checkpoint(const std::string& path);
// The same from memory; `name` stands for the file in messages.
Checkpoint parse_checkpoint(std::string_view bytes, const std::string& name);

}  // namespace gradual
