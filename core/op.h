// Op identities, calls and their surroundings.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <string_view>

#include "attrs.h"
#include "tensor.h"

namespace gradual {

enum class OpId : std::uint16_t {
#define GRADUAL_OP(name, ...) name,
#include "ops.def"
#undef GRADUAL_OP
  count_
};
inline constexpr int kOpCount = static_cast<int>(OpId::count_);

enum class OpKind : std::uint8_t {
  Elementwise,
  Transcendental,
  Comparison,
  Reduction,
  Contraction,
  Pooling,
  Normalization,
  Loss,
  View,
  Movement,
  Random,
  InPlace,
  Composite,
  Custom
};
enum class DTypeRule : std::uint8_t { Same, Float, FloatOnly, Number, Promote, Compare, Logical, Explicit };

struct OpInfo {
  std::string_view name;
  int inputs;   // -1: variadic
  int outputs;  // at most kMaxOutputs
  OpKind kind;
  DTypeRule dtype_rule;
};
const OpInfo& info(OpId op);
inline std::string_view name(OpId op) { return info(op).name; }
std::string_view name(OpKind kind);
// Error naming the nearest op where there is none of that name.
OpId op_from_name(std::string_view name);

inline constexpr int kMaxOutputs = 3;

// Refers to the inputs of a call without touching their counts. An absent optional input is undefined.
class TensorRefs {
 public:
  TensorRefs() = default;
  TensorRefs(const Tensor* const* refs, int n) : refs_(refs), n_(n) {}
  int size() const { return n_; }
  const Tensor& operator[](int i) const { return *refs_[i]; }
  const Tensor* const* data() const { return refs_; }

 private:
  const Tensor* const* refs_ = nullptr;
  int n_ = 0;
};

struct Outputs {
  Tensor values[kMaxOutputs];
  Tensor& operator[](int i) { return values[i]; }
  const Tensor& operator[](int i) const { return values[i]; }
};

// What inference says of one output: its dtype and layout. A view also says where in input 0's storage it lies.
struct OutSpec {
  DType dtype = DType::f32;
  Shape sizes;
  Shape strides;  // empty with empty sizes, or row-major unless set (has_strides)
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

class CauseScope {
 public:
  explicit CauseScope(const char* cause) : saved_(context().cause) { context().cause = cause; }
  ~CauseScope() { context().cause = saved_; }
  CauseScope(const CauseScope&) = delete;
  CauseScope& operator=(const CauseScope&) = delete;

 private:
  const char* saved_;
};
class PhaseScope {
 public:
  explicit PhaseScope(Phase phase) : saved_(context().phase) { context().phase = phase; }
  ~PhaseScope() { context().phase = saved_; }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase saved_;
};
// Enters module `path` (Module::operator() does). `line` becomes the place of its ops; without one they have their own.
class ModuleScope {
 public:
  explicit ModuleScope(const char* path, SourceLocation line = {})
      : saved_(context().module), saved_line_(context().line) {
    context().module = path;
    context().line = line;
  }
  ~ModuleScope() {
    context().module = saved_;
    context().line = saved_line_;
  }
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  const char* saved_;
  SourceLocation saved_line_;
};

// "main.cpp:42"; "" where there is no line.
std::string place(const SourceLocation& where);
// "matmul: [32, 784] f32 x [512, 784] f32": the start of error messages.
std::string describe(const OpCall& call);

}  // namespace gradual
