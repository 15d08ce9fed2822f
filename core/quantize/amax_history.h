// The state of delayed scaling (Transformer Engine's): the scale in use comes from the amaxes of earlier tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "../tensor/device_mirror.h"

namespace gradual {

struct Format;
struct Scaling;

// In a GPU's memory, with room for Scaling::history amaxes behind it; copied as bytes.
struct DeviceAmaxHistory {
  float scale = 1, used = 1, staged = 0, unused = 0;
  std::int64_t count = 0;  // amaxes ever taken in: number k stands at k % history
};
static_assert(sizeof(DeviceAmaxHistory) % 8 == 0);

// It lives where the tensors are: in these fields, or in the memory of their GPU, which then stages and advances it and
// waits for nobody. The fields are what read() fetched last in that case, is_staged apart.
struct AmaxHistory {
  float scale = 1;
  std::vector<float> amax;  // newest first, `history` of them once advance() was called often enough; 0: none yet
  float staged = 0;         // the largest amax since the last advance()
  bool is_staged = false;
  float used = 1;  // the scale that QuantizeOptions::keep remembered: that of a recomputation

  AmaxHistory() = default;
  // Copies have fields alone, with what a GPU has. What is assigned to reaches the GPU when it is next used there, also by
  // the next replay of a recorded step.
  AmaxHistory(const AmaxHistory& other);
  AmaxHistory& operator=(const AmaxHistory& other);
  ~AmaxHistory() = default;

  AmaxHistory& read();  // waits for the GPU that has it
  void stage(float value);
  // Takes `staged` in: scale = max * 2^-margin / amax; an amax of 0, Inf or NaN keeps the scale, Inf becomes FLT_MAX.
  void advance(const Scaling& scaling, const Format& format);

  // For quantizers: moves it to a GPU, with room for so many amaxes, or back.
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
