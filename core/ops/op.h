// Op identities, calls and their surroundings.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "../support/scoped.h"
#include "../tensor/tensor.h"
#include "attrs.h"
#include "call_cause.h"

namespace gradual {

enum class OpId : std::uint16_t {
#define GRADUAL_OP(name, ...) name,
#include "../ops.def"
  count_
};
inline constexpr int kOpCount = static_cast<int>(OpId::count_);

// ops.def explains kinds and rules.
// clang-format off
enum class OpKind : std::uint8_t {
  Elementwise, Transcendental, Comparison, Reduction, Contraction, Pooling, Normalization, Loss, View, Movement, Random,
  InPlace, Composite, Custom
};
// clang-format on
enum class DTypeRule : std::uint8_t { Same, Float, FloatOnly, Number, Promote, Integer, Compare, Logical, Explicit };

struct OpInfo {
  std::string_view name;
  int inputs;   // -1: variadic
  int outputs;  // at most kMaxOutputs
  OpKind kind;
  DTypeRule dtype_rule;
};
inline constexpr OpInfo kOpInfos[kOpCount] = {
#define GRADUAL_OP(name, inputs, outputs, kind, rule, ...) {#name, inputs, outputs, OpKind::kind, DTypeRule::rule},
#include "../ops.def"
};
inline const OpInfo& op_info(OpId op) { return kOpInfos[static_cast<int>(op)]; }
inline std::string_view to_string(OpId op) { return op_info(op).name; }
// Error naming the nearest op if there is none of that name.
OpId op_from_name(std::string_view name);

inline constexpr int kMaxOutputs = 3;

// References to the inputs of a call, without changing reference counts. An absent optional input is undefined.
class TensorRefs {
 public:
  TensorRefs() = default;
  TensorRefs(const Tensor* const* refs, int n, std::uint32_t temporaries = 0)
      : refs_(refs), n_(n), temporaries_(temporaries) {}
  // From a call's argument list: valid until the end of the call's expression.
  TensorRefs(std::initializer_list<const Tensor*> refs)  // NOLINT(google-explicit-constructor)
      : TensorRefs(refs.begin(), static_cast<int>(refs.size())) {}
  int size() const { return n_; }
  const Tensor& operator[](int i) const { return *refs_[i]; }
  const Tensor* const* data() const { return refs_; }
  // True if the caller gives up handle i: the result may reuse its memory if no other handle shares it.
  bool temporary(int i) const { return temporaries_ >> i & 1; }
  std::uint32_t temporaries() const { return temporaries_; }
  // Makes handle i, a temporary, undefined, as a move would.
  void drop(int i) const { const_cast<Tensor&>(*refs_[i]) = Tensor(); }

 private:
  const Tensor* const* refs_ = nullptr;
  int n_ = 0;
  std::uint32_t temporaries_ = 0;  // bits
};

// The pointers that TensorRefs takes; they point into `tensors`.
inline std::vector<const Tensor*> pointers_to(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> refs;
  refs.reserve(tensors.size());
  for (const Tensor& t : tensors) refs.push_back(&t);
  return refs;
}

struct Outputs {
  Tensor values[kMaxOutputs];
  Tensor& operator[](int i) { return values[i]; }
  const Tensor& operator[](int i) const { return values[i]; }
};

// The dtype and layout of one output, set by inference. For a view also its offset in input 0's storage.
struct OutSpec {
  DType dtype = DType::f32;
  Shape sizes;
  Shape strides = {};  // empty with empty sizes, or row-major unless set (has_strides)
  bool has_strides = false;
  std::int64_t offset = 0;  // views only
};

struct OpCall {
  OpId op;
  TensorRefs inputs;
  const Attrs* attrs;
  SourceLocation where;
  const OutSpec* specs = nullptr;  // set below amp
  // For observers: the number of the call on the tape (Node::sequence). The Autograd stage sets it; 0: not recorded.
  mutable std::uint64_t node = 0;

  const Tensor& operator[](int i) const { return inputs[i]; }
  template <class T> const T& get() const { return attrs->get<T>(); }
};

// The role of an operand in a product of a layer and in the products of its gradient: the op's first input, another
// input, or the gradient of its output (error). weight_gradient: the result of wgrad.
enum class OperandRole : std::uint8_t { activation, weight, error, weight_gradient };
std::string_view to_string(OperandRole role);

// What a rewritten op (amp/rewrite.h) stands for. The roles are those of its first two operands.
struct Replaced {
  OpId op;
  OperandRole operands[2] = {OperandRole::activation, OperandRole::weight};
};

// The part of a training step that a call belongs to.
enum class Phase : std::uint8_t { forward, backward, optimizer };
std::string_view to_string(Phase phase);

// The context of this thread's calls. module and cause outlive every call (intern(), intern_cause()).
struct Context {
  const char* module = "";  // path of the module whose forward runs (or ran, in backward): "layers.0.attn"
  const CallCause* cause = &causes::program;
  Phase phase = Phase::forward;
  // Replaces each call's own line: inside a layer by the user's line, in backward by forward's. Line 0: no change.
  SourceLocation line = {};
  // In backward: the name of the op whose gradient is being computed ("matmul"); interned as well.
  const char* backward_of = "";
};
Context& context();
// A copy of `text` that lives as long as the process; equal texts give equal pointers.
const char* intern(std::string_view text);

struct CauseScope : Scoped<const CallCause*> {
  explicit CauseScope(const CallCause& cause) : Scoped(context().cause, &cause) {}
  CauseScope(CauseKind kind, std::string_view text) : CauseScope(intern_cause(kind, text)) {}
};
struct PhaseScope : Scoped<Phase> {
  explicit PhaseScope(Phase phase) : Scoped(context().phase, phase) {}
};
// Enters module `path` (Module::operator() does). `line` becomes the line of its ops; without one they keep their own.
class ModuleScope {
 public:
  explicit ModuleScope(const char* path, SourceLocation line = {})
      : module_(context().module, path), line_(context().line, line) {}

 private:
  Scoped<const char*> module_;
  Scoped<SourceLocation> line_;
};

// "main.cpp:42"; "" if there is no line.
std::string file_line(const SourceLocation& where);
// "[32, 784] f32", or "none" if it is undefined.
std::string describe(const Tensor& t);
// "[32, 784] f32 x [512, 784] f32"; an operand that is a number is printed as a number.
std::string describe_inputs(const OpCall& call);
// "matmul: [32, 784] f32 x [512, 784] f32": the start of error messages.
std::string describe(const OpCall& call);
// Throws an Error: the call, then why.
[[noreturn]] void throw_error(const OpCall& call, std::string_view why);

}  // namespace gradual
