// State that lives on the host or in a GPU's memory, where kernels read and advance it and the host waits for nothing:
// the loss scale, amax histories, step counts. The owner keeps fields on the host and says how to upload and to fetch
// them.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "tensor.h"

namespace gradual {

class DeviceMirror : Pinned {
 public:
  using Upload = std::function<void(void* to, Device device)>;  // writes the owner's fields there with device::upload
  using Fetch = std::function<void(const void* bytes)>;         // sets the fields from a copy on the host
  // Both outlive the mirror: its owner is pinned, or copies make a mirror of their own.
  DeviceMirror(Upload upload, Fetch fetch) : upload_(std::move(upload)), fetch_(std::move(fetch)) {}

  bool in_use() const { return in_use_; }  // the state lives on the GPU, or does so from the next use there
  bool current() const { return in_use_ && current_; }  // the GPU has the state; the fields are what was fetched last
  const Tensor& memory() const { return memory_; }      // f32; undefined before the first move_to
  void* raw() const { return memory_.raw(); }

  // From now on the state lives in memory of `device`, of the category optimizer. While a step is recorded
  // (cuda::Graph), each replay uploads the fields first if the host has changed them, as upload_changes() does.
  void move_to(Device device, std::size_t bytes);
  void upload_changes() {
    if (!std::exchange(current_, true)) upload_(memory_.raw(), memory_.device());
  }
  // The host has assigned the fields: they win over what the GPU has.
  void host_changed() { current_ = false; }
  // Fetches what the GPU has, where it has the state; this waits for the GPU.
  void read() const { read(fetch_); }
  void read(const Fetch& fetch) const;
  // Fetches; then the state lives on the host again. The memory stays for the next move_to.
  void leave() {
    read();
    in_use_ = false;
    current_ = false;
  }

 private:
  Upload upload_;
  Fetch fetch_;
  Tensor memory_;
  std::size_t bytes_ = 0;
  bool in_use_ = false;
  bool current_ = false;
};

}  // namespace gradual
