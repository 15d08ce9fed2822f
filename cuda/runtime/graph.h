// Records a training step once and replays it with one call, without the host's work.
//
//   for (int i = 0; i < 3; ++i) train_step();   // warm up: creates the state of optimizer and scaler
//   cuda::Graph graph;
//   graph.capture([&] { train_step(); });       // records, does nothing
//   for (..) {
//     x.copy_(next_x);                          // new numbers in the tensor that the recorded step reads
//     graph.replay();
//     scheduler.step();                         // the next replay has the new rate
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "../../core/support/scoped.h"

namespace gradual::cuda {

// A replay repeats the recorded calls on the same memory: it reads and writes the tensors of the recorded step. These
// tensors, the optimizers and the scalers must outlive the graph. Between replays may change: the numbers in these
// tensors; rates, step counts and loss scales, which are then on the GPU; and the random numbers, which continue from
// the state of this thread's default generator. n replays draw and compute what n steps would. A recorded step in which
// the host reads numbers is an Error, because its decisions would be wrong at the next replay.
class Graph : Pinned {
 public:
  Graph();
  // Waits for the last replay if the graph keeps plans. Memory that tensors still use is freed with them.
  ~Graph();

  // Runs `step` once, on this thread; its GPU work is recorded and not executed. Memory that it allocates belongs to
  // the graph. Error naming the op for a copy from or to the CPU, or any other wait for the GPU; then there is no
  // graph. Call it once per Graph.
  void capture(const std::function<void()>& step);
  // Enqueues the recorded work on this thread's stream and does not wait for it. Error before capture().
  void replay();

  std::int64_t memory() const;  // bytes of the graph's memory

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradual::cuda
