// The state of delayed scaling (as in Transformer Engine): the scale follows from the amaxes of earlier tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "../tensor/device_mirror.h"

namespace gradual {

struct Format;
struct DelayedScale;

// The state in a GPU's memory. Memory for DelayedScale::history amaxes follows it. It is copied as bytes.
struct DeviceAmaxHistory {
  float scale = 1;
  float used = 1;
  float staged = 0;
  float unused = 0;
  std::int64_t count = 0;  // amaxes so far; amax number k is at k % history
};
static_assert(sizeof(DeviceAmaxHistory) % 8 == 0);

// The state is where the tensors are: in these fields or in their GPU's memory. A GPU stages and advances its state,
// and the host does not wait. The fields, except is_staged, then have the values of the last read().
struct AmaxHistory {
  float scale = 1;
  std::vector<float> amax;  // newest first, at most `history`; empty before the first advance()
  float staged = 0;         // the largest amax since the last advance(), rounded up to f32
  bool is_staged = false;
  float used = 1;  // the scale of the first use (QuantizeFor), for later ones

  AmaxHistory() = default;
  // A copy has the values of the GPU's state, in its fields. An assigned value reaches the GPU at the next use there,
  // also at the next replay of a recorded step.
  AmaxHistory(const AmaxHistory& other) { *this = other; }
  AmaxHistory& operator=(const AmaxHistory& other);

  // Copies the GPU's state into the fields, if a GPU has it, and waits for the GPU.
  AmaxHistory& read() {
    there_.read();
    return *this;
  }
  // staged = max(staged, |value|), rounded up to f32, as far as f32 goes.
  void stage(double value);
  void forget_staged();  // as if nothing was staged since the last advance(); waits for the GPU
  // Adds `staged` to the amaxes and sets scale = format.max() * 2^-margin / amax, at most FLT_MAX. An amax of 0, Inf or
  // NaN keeps the scale.
  void advance(const DelayedScale& scaling, const Format& format);

  // For quantizers: moves the state to a GPU, with memory for `length` amaxes, or back.
  DeviceAmaxHistory* on_device(Device device, int length);
  void on_host() { there_.leave(); }

 private:
  void take(const void* bytes, int length);
  void upload(void* to, Device device) const;

  int length_ = 0;
  DeviceMirror there_{[this](void* to, Device device) { upload(to, device); },
                      [this](const void* bytes) { take(bytes, length_); }};  // a DeviceAmaxHistory and its amaxes
};

}  // namespace gradual
