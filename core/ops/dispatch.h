// The dispatch chain: Amp -> Autograd -> Results -> Observe -> Backend. Each stage is an interceptor or null (skipped).
// A stage passes a call on with the matching next_*(); calls that it makes there do not reach it again. Results rounds
// what ops give (amp/quantized_results.h); nothing that an observer computes reaches it.
// Dtype promotion (recorded casts), shape inference and checks run between Amp and Autograd.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "../tensor/modes.h"
#include "op.h"

namespace gradual {

struct Interceptor {
  virtual ~Interceptor() = default;
  virtual Outputs call(const OpCall& call) = 0;
  // Shared ownership, for a stage that may be used after its scope has ended (in backward, on another thread).
  virtual std::shared_ptr<Interceptor> share() { return {}; }
};

// One per thread. A new thread starts with autograd on and the others null.
struct Chain {
  Interceptor* amp;
  Interceptor* autograd;
  Interceptor* observe;
  Interceptor* results;
};
Chain& chain();

// The recording interceptor (autograd/record.cpp), the default of every thread.
Interceptor* default_autograd();

// Sets one stage of this thread's chain and restores it, on exceptions too.
using StageScope = Scoped<Interceptor*>;

// The state that a worker thread or a later backward needs to continue as this thread. Installing it does not change
// observe and results, which belong to the thread and the time in which they were installed.
struct ThreadState {
  Chain chain;
  Context context;
  Modes modes;
  RandomKey generator;
  std::shared_ptr<Interceptor> amp = {};  // keeps chain.amp alive
};
ThreadState snapshot();
// Installs a snapshot while it lives (generator: a copy that starts from the snapshot's state).
class ThreadStateScope {
 public:
  explicit ThreadStateScope(const ThreadState& state)
      : chain_(chain(), {state.chain.amp, state.chain.autograd, chain().observe, chain().results}),
        context_(context(), state.context),
        modes_(modes(), state.modes),
        generator_(state.generator),
        generator_scope_(generator_),
        amp_(state.amp) {}

 private:
  Scoped<Chain> chain_;
  Scoped<Context> context_;
  Scoped<Modes> modes_;
  Generator generator_;
  GeneratorScope generator_scope_;
  std::shared_ptr<Interceptor> amp_;
};

// Runs a call through the whole chain. `attrs` must outlive the call.
Outputs dispatch(OpId op, TensorRefs inputs, const Attrs& attrs, SourceLocation where);
// dispatch() for ops of one output: returns the first output.
Tensor dispatch1(OpId op, TensorRefs inputs, const Attrs& attrs, SourceLocation where);
// Calls a gradient op, which has no function of its own: call_row(OpId::softmax_backward, attrs, dy, y)[0].
template <class... T> Outputs call_row(OpId op, const Attrs& attrs, const T&... inputs) {
  return dispatch(op, {&inputs...}, attrs, SourceLocation::current());
}

// For the interceptors: continue below amp (promotion, inference, autograd), below autograd (results), below results
// (observe) and at the backend.
Outputs next_below_amp(const OpCall& call);
Outputs next_below_autograd(const OpCall& call);
Outputs next_below_results(const OpCall& call);
Outputs next_below_observe(const OpCall& call);

// Columns owned by core. Null: not implemented (a test lists the reason for each).
using InferFn = void (*)(const OpCall& call, OutSpec* specs);
using KernelFn = void (*)(const OpCall& call, Outputs& out);  // outputs are allocated
// Computes the outputs, or returns false and writes nothing; then the CPU kernel runs.
using OfferFn = bool (*)(const OpCall& call, Outputs& out);
using CompositeFn = Outputs (*)(const OpCall& call);  // runs above autograd

// What a backend's kernel for an op can do. Code above the backends asks here, never for a kind of device. Null: no.
struct Capability {
  // The fused op computes this call in fewer passes over memory than its parts; called with the fused op's own call.
  bool (*suits)(const OpCall& call) = nullptr;
  // The kernel reads these mixed dtypes itself, with the same bits as casts before it.
  bool (*reads_mixed)(const OpCall& call) = nullptr;
  // The attributes with which the kernel widens half inputs to f32 and rounds their gradients itself; none if it
  // cannot.
  std::optional<Attrs> (*widened)(const OpCall& call) = nullptr;
};
struct Columns {
  InferFn infer[kOpCount] = {};
  KernelFn cpu[kOpCount] = {};
  OfferFn fast[kOpCount] = {};    // asked before the next two, and onednn before cpu, where the backend
  OfferFn onednn[kOpCount] = {};  // is chosen (cpu_backend.h)
  KernelFn cuda[kOpCount] = {};
  CompositeFn composite[kOpCount] = {};
  Capability cpu_capability[kOpCount] = {};
  Capability cuda_capability[kOpCount] = {};
  DType half[2] = {DType::bf16, DType::f16};  // by DeviceType: what Autocast casts to by default
  // oneDNN's version and instruction set; null if it is not built.
  std::string_view (*onednn_description)() = nullptr;
};
Columns& columns();
const Capability& capability(OpId op, Device device);
// The capabilities of the call's backend, for this call (Capability).
bool suits(const OpCall& call);
bool reads_mixed(const OpCall& call);
// The device of the first defined input; the CPU if there is none.
Device device_of(const OpCall& call);

// A kernel calls this for each input that it writes, except the first input of an in-place op: dispatch bumps that one.
inline void bump_version(const Tensor& t) {
  if (t.defined()) add_to(t.unsafe_impl()->storage->version, 1);
}

// Defined in columns.cpp: calls every column's registration. Runs at the first dispatch.
void register_columns();
void ensure_registered();

// core's own registrations (called by register_columns).
void register_inference();
void register_composites();

}  // namespace gradual
