// Op identities, calls and their surroundings.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <string_view>
#include <vector>

#include "../support/scoped.h"
#include "../tensor/tensor.h"
#include "attrs.h"

namespace gradual {

enum class OpId : std::uint16_t {
#define GRADUAL_OP(name, ...) name,
#include "../ops.def"
  count_
};
inline constexpr int kOpCount = static_cast<int>(OpId::count_);

// Where kinds and rules are explained: ops.def.
// clang-format off
enum class OpKind : std::uint8_t {
  Elementwise, Transcendental, Comparison, Reduction, Contraction, Pooling, Normalization, Loss, View, Movement, Random,
  InPlace, Composite, Custom
};
// clang-format on
enum class DTypeRule : std::uint8_t { Same, Float, FloatOnly, Number, Promote, Compare, Logical, Explicit };

struct OpInfo {
  std::string_view name;
  int inputs;   // -1: variadic
  int outputs;  // at most kMaxOutputs
  OpKind kind;
  DTypeRule dtype_rule;
};
inline constexpr OpInfo kOpInfos[kOpCount] = {
#define GRADUAL_OP(name, inputs, outputs, kind, rule) {#name, inputs, outputs, OpKind::kind, DTypeRule::rule},
#include "../ops.def"
};
inline const OpInfo& info(OpId op) { return kOpInfos[static_cast<int>(op)]; }
inline std::string_view name(OpId op) { return info(op).name; }
// Error naming the nearest op where there is none of that name.
OpId op_from_name(std::string_view name);

inline constexpr int kMaxOutputs = 3;

// Refers to the inputs of a call without touching their counts. An absent optional input is undefined.
class TensorRefs {
 public:
  TensorRefs() = default;
  TensorRefs(const Tensor* const* refs, int n, std::uint32_t temporaries = 0)
      : refs_(refs), n_(n), temporaries_(temporaries) {}
  // Of a call's argument list: lives as long as the call's expression.
  TensorRefs(std::initializer_list<const Tensor*> refs)  // NOLINT(google-explicit-constructor)
      : TensorRefs(refs.begin(), static_cast<int>(refs.size())) {}
  int size() const { return n_; }
  const Tensor& operator[](int i) const { return *refs_[i]; }
  const Tensor* const* data() const { return refs_; }
  // Whether the caller is done with handle i: the result may lie in its memory where nobody else can see that.
  bool temporary(int i) const { return temporaries_ >> i & 1; }
  std::uint32_t temporaries() const { return temporaries_; }
  // Empties handle i, a temporary, as a move would.
  void drop(int i) const { const_cast<Tensor&>(*refs_[i]) = Tensor(); }

 private:
  const Tensor* const* refs_ = nullptr;
  int n_ = 0;
  std::uint32_t temporaries_ = 0;  // bits
};

// The pointers that TensorRefs takes; they point into `tensors`.
std::vector<const Tensor*> pointers_to(const std::vector<Tensor>& tensors);

struct Outputs {
  Tensor values[kMaxOutputs];
  Tensor& operator[](int i) { return values[i]; }
  const Tensor& operator[](int i) const { return values[i]; }
};

// What inference says of one output: its dtype and layout. A view also says where in input 0's storage it lies.
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

  const Tensor& operator[](int i) const { return inputs[i]; }
  template <class T> const T& get() const { return attrs->get<T>(); }
};

// Where in a training step a call stands.
enum class Phase : std::uint8_t { forward, backward, optimizer };
std::string_view name(Phase phase);

// What surrounds the calls of this thread. module and cause are interned: they outlive every call (intern()).
struct Context {
  const char* module = "";  // path of the module whose forward runs (or ran, in backward): "layers.0.attn"
  const char* cause = "";   // why an op the user did not write is there: "amp: matmul is lower", "promotion in add"
  Phase phase = Phase::forward;
  // Replaces each call's own place: the user's line inside a layer, the forward's in backward. Line 0: no change.
  SourceLocation line = {};
  // In backward: the name of the op whose gradient is being computed ("matmul"); interned as well.
  const char* backward_of = "";
};
Context& context();
// A copy of `text` that lives as long as the process; equal texts give equal pointers.
const char* intern(std::string_view text);

struct CauseScope : Scoped<const char*> {
  explicit CauseScope(const char* cause) : Scoped(context().cause, cause) {}
};
struct PhaseScope : Scoped<Phase> {
  explicit PhaseScope(Phase phase) : Scoped(context().phase, phase) {}
};
// Enters module `path` (Module::operator() does). `line` becomes the place of its ops; without one they have their own.
class ModuleScope {
 public:
  explicit ModuleScope(const char* path, SourceLocation line = {})
      : module_(context().module, path), line_(context().line, line) {}

 private:
  Scoped<const char*> module_;
  Scoped<SourceLocation> line_;
};

// "main.cpp:42"; "" where there is no line.
std::string place(const SourceLocation& where);
// "[32, 784] f32", or "none" where it is undefined.
std::string describe(const Tensor& t);
// "[32, 784] f32 x [512, 784] f32"; a number stands for an operand that is one.
std::string describe_inputs(const OpCall& call);
// "matmul: [32, 784] f32 x [512, 784] f32": the start of error messages.
std::string describe(const OpCall& call);
// Throws: the call, then why.
[[noreturn]] void fail(const OpCall& call, std::string_view why);

}  // namespace gradual
