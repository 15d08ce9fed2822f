// A training step that is recorded once and then run again and again by one call: nothing of the host's work is repeated.
//
//   for (int i = 0; i < 3; ++i) train_step();   // warm up: what the optimizer and the scaler keep must be there
//   cuda::Graph graph;
//   graph.capture([&] { train_step(); });       // records, does nothing
//   for (..) {
//     x.copy_(next_x);                          // new numbers where the recorded step reads them
//     graph.replay();
//     scheduler.step();                         // the next replay has the new rate
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "../../core/support/scoped.h"

namespace gradual::cuda {

// A replay does what the recorded calls would do again, on the same memory: it reads the tensors that the step read, which
// must outlive the graph as optimizers and scalers must, and writes those that it wrote. What may change from replay to
// replay: the numbers in these tensors, the optimizers' rates, steps and loss scales, which live on the GPU then, and the
// random numbers, which go on from where this thread's default generator stands: n replays draw and compute what n steps
// would. Everything that the host decides from numbers it reads would be wrong at the next replay and is an Error.
class Graph : Pinned {
 public:
  Graph();
  // Waits for the last replay where it keeps plans. Memory that tensors still use stays until they are gone.
  ~Graph();

  // Runs `step` once, on this thread; its GPU work is recorded and not done. Memory that it allocates is the graph's own.
  // Error, naming the op: a copy from or to the CPU, or any other wait for the GPU. After an error there is no graph.
  // Once for each Graph.
  void capture(const std::function<void()>& step);
  // Enqueues the recorded work behind that of this thread's stream, and does not wait for it. Error before capture().
  void replay();

  std::int64_t memory() const;  // bytes of its own

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace gradual::cuda
