// Random numbers: one counter-based generator (Philox4x32-10), keyed by seed, stream and element, so that the
// same call gives the same numbers on any device, for any launch shape or thread count, and after a resume.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scoped.h"

namespace gradual {

// Names one call's worth of random numbers: element i of the call is philox(seed, stream, i).
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  bool operator==(const RandomKey&) const = default;
};

// A seed and the number of the next stream; its state is these two numbers.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) : state_{seed} {}
  explicit Generator(RandomKey state) : state_(state) {}
  RandomKey next();  // a fresh stream
  void manual_seed(std::uint64_t seed) { state_ = {seed}; }
  std::uint64_t seed() const { return state_.seed; }
  std::uint64_t stream() const { return state_.stream; }
  void set_state(RandomKey state) { state_ = state; }
  RandomKey state() const { return state_; }

 private:
  RandomKey state_;
};

// This thread's default generator (seed 0 until manual_seed is called, or the one a GeneratorScope put in place).
Generator& default_generator();
inline void manual_seed(std::uint64_t seed) { default_generator().manual_seed(seed); }

// Makes `generator` this thread's default while the scope lives; the generator must outlive it.
struct GeneratorScope : Scoped<Generator*> {
  explicit GeneratorScope(Generator& generator);
};

// record: appends every key that next() returns on this thread, for any generator, to `log`. replay: next() returns the
// keys of `log` in the same order and no generator advances. For recomputation (activation checkpointing). Scopes nest.
class DrawScope {
 public:
  enum class Mode { record, replay };
  DrawScope(std::vector<RandomKey>& log, Mode mode);

 private:
  friend class Generator;
  std::vector<RandomKey>& log_;
  Mode mode_;
  std::size_t used_ = 0;
  DrawScope* outer_;
  Scoped<DrawScope*> current_;
};

}  // namespace gradual
