// The dispatch chain: Amp -> Autograd -> Observe -> Backend. Each stage is an interceptor or null (skipped); a
// stage goes on *below itself* with the matching next_*(), and calls it makes there are masked from itself.
// Between Amp and Autograd stand dtype promotion (recorded casts), shape inference and checks.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "op.h"

namespace gradual {

class Interceptor {
 public:
  virtual ~Interceptor() = default;
  virtual Outputs call(const OpCall& call) = 0;
  // Ownership, from a stage that may be asked for again after its scope has ended (a backward, another thread).
  virtual std::shared_ptr<Interceptor> share() { return {}; }
};

// One per thread. A new thread starts with amp and observe null and autograd on.
struct Chain {
  Interceptor* amp;
  Interceptor* autograd;
  Interceptor* observe;
};
Chain& chain();

// The recording interceptor (autograd/record.cpp): what every thread starts with.
Interceptor* default_autograd();

// Sets one stage of this thread's chain and restores it, on exceptions too.
using StageScope = Scoped<Interceptor*>;

// The state a worker thread or a later backward needs to go on as here. Installing it leaves observe alone: observers
// belong to the thread and the time in which they were set.
struct ThreadState {
  Chain chain;
  Context context;
  RandomKey generator;
  std::shared_ptr<Interceptor> amp = {};  // keeps chain.amp alive
};
ThreadState snapshot();
// Installs a snapshot while it lives (generator: a copy that starts from the snapshot's state).
class ThreadStateScope {
 public:
  explicit ThreadStateScope(const ThreadState& state);

 private:
  Scoped<Chain> chain_;
  Scoped<Context> context_;
  Generator generator_;
  GeneratorScope generator_scope_;
  std::shared_ptr<Interceptor> amp_;
};

// Runs a call through the whole chain. `attrs` must outlive the call.
Outputs dispatch(OpId op, TensorRefs inputs, const Attrs& attrs, SourceLocation where);
// The first output of a call with the given inputs: what nearly every op function is.
Tensor dispatch1(OpId op, TensorRefs inputs, const Attrs& attrs, SourceLocation where);
// Gradient rows, which rules call, have no function of their own: call_row(OpId::softmax_backward, attrs, dy, y)[0].
template <class... T> Outputs call_row(OpId op, const Attrs& attrs, const T&... inputs) {
  return dispatch(op, {&inputs...}, attrs, SourceLocation::current());
}

// For the interceptors: on below amp (promotion, inference, autograd), below autograd (observe) and to the backend.
Outputs next_below_amp(const OpCall& call);
Outputs next_below_autograd(const OpCall& call);
Outputs next_below_observe(const OpCall& call);

// Columns owned by core. Null: a hole (a test lists the reasons for each).
using InferFn = void (*)(const OpCall& call, OutSpec* specs);
using KernelFn = void (*)(const OpCall& call, Outputs& out);  // outputs are allocated already
// Computes the outputs, or declines (false) and has written nothing: then the CPU kernel runs.
using OfferFn = bool (*)(const OpCall& call, Outputs& out);
using CompositeFn = Outputs (*)(const OpCall& call);  // runs above autograd

// What a backend's kernel for a row can do. Those above the backends ask here and never for a kind of device. Null: it cannot.
struct Capability {
  // The row computes this call in fewer passes over memory than the ops that it stands for; called with the row's own call.
  bool (*suits)(const OpCall& call) = nullptr;
  // The kernel reads inputs of these unlike dtypes as they are, with the bits that casts before it would give.
  bool (*reads_mixed)(const OpCall& call) = nullptr;
  // The attributes with which the kernel reads half inputs as f32 and rounds their gradients itself; none if it does not.
  std::optional<Attrs> (*widened)(const OpCall& call) = nullptr;
};
struct Columns {
  InferFn infer[kOpCount] = {};
  KernelFn cpu[kOpCount] = {};
  OfferFn fast[kOpCount] = {};    // asked before the next two, and onednn before cpu, where the backend
  OfferFn onednn[kOpCount] = {};  // is chosen (cpu_backend.h)
  KernelFn cuda[kOpCount] = {};
  CompositeFn composite[kOpCount] = {};
  Capability cpu_capability[kOpCount] = {}, cuda_capability[kOpCount] = {};
  // What oneDNN says of itself; null where it is not built.
  std::string_view (*onednn_description)() = nullptr;
};
Columns& columns();
const Capability& capability(OpId op, Device device);
// Whether the backend of the call's inputs suits it (Capability).
bool suits(const OpCall& call);
bool reads_mixed(const OpCall& call);
// The device of the first defined input; the CPU where there is none.
Device device_of(const OpCall& call);

// What a kernel calls for each tensor that it wrote besides the first input of an in-place row, whose version dispatch raises.
inline void bump_version(const Tensor& t) {
  if (t.defined()) add_to(t.unsafe_impl()->storage->version, 1);
}

// Defined once, at the top of the tree (columns.cpp): lists every column's registration. Runs at first dispatch.
void register_columns();
void ensure_registered();

// core's own registrations (called by register_columns).
void register_inference();
void register_composites();

}  // namespace gradual
