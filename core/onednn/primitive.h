// oneDNN's primitives (oneDNN Developer Guide, v2.6 and v3), made once for each thread and shape and then only run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <oneapi/dnnl/dnnl.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "../support/scoped.h"
#include "../tensor/memory.h"
#include "../tensor/tensor.h"

namespace gradual::onednn {

// The one engine of the CPU.
const dnnl::engine& engine();
std::string_view description();  // "oneDNN 2.6.3, avx512_core_bf16"
// Whether products of bf16 have instructions here; elsewhere f32 is faster.
bool has_bf16();

// What tells one primitive from another: an op and whatever shapes, strides and options it was made for.
class Key {
 public:
  explicit Key(std::int64_t op) { add(op); }
  Key& add(std::int64_t value);
  Key& add(const Shape& values);
  bool operator==(const Key& o) const;
  std::size_t hash() const;

 private:
  static constexpr int kCapacity = 64;
  std::int64_t values_[kCapacity];
  int n_ = 0;
};

// A primitive and the memories it was made for. It runs on the threads of the innermost Team, in Gradual's scratch
// memory.
class Primitive {
 public:
  struct Argument {
    int name;  // DNNL_ARG_SRC, ...
    dnnl::memory::desc layout;
    // Where the caller has another layout: his data are reordered through scratch memory, before or after.
    enum class As : std::uint8_t { same, read, written } as = As::same;
    dnnl::memory::desc given = {};
  };
  Primitive(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, std::vector<Argument> arguments);
  ~Primitive();
  // The data of each argument, in their order. What is only read may be const.
  void run(std::initializer_list<const void*> data);
  // Once for each of `parts`, whose data lie `steps` bytes apart: 0 where all parts read the same data, which are
  // reordered once, kAnew where data lie in one place and before(part) makes them or after(part) takes them away.
  using Around = std::function<void(std::int64_t part)>;
  static constexpr std::int64_t kAnew = -1;
  void run(std::span<const void* const> data, std::span<const std::int64_t> steps, std::int64_t parts,
           const Around& before = {}, const Around& after = {});

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;  // the last is the scratchpad
  std::vector<dnnl_exec_arg_t> arguments_;
  std::size_t scratch_;  // bytes of the scratchpad and of all that is reordered

  struct Reorder;
  std::vector<Reorder> reorders_;
};

// The threads that primitives are made for and run on while it lives: one, and loops share the parts
// (core/support/parallel.h), but for convolutions of fewer images than threads. A primitive's blocking depends on them,
// so there they are part of its key.
class Team : Pinned {
 public:
  explicit Team(int threads);
  ~Team();

 private:
  int saved_;
};

// This thread's primitive of that key, made by `make` where it is new; null where `make` gives none or oneDNN says it
// has no implementation, which is remembered too.
using Make = std::function<std::unique_ptr<Primitive>()>;
Primitive* find(const Key& key, const Make& make);

// f32 or bf16; others are converted first.
dnnl::memory::data_type type_of(DType dtype);
dnnl::memory::desc layout_of(const Shape& sizes, const Shape& strides, DType dtype);
// What operands of a dtype are multiplied in: bf16 for what is exact in it, where that is fast.
DType product_dtype(DType dtype);
// Whether an implementation is worth using: oneDNN's reference ones are slower than those of core/cpu.
bool is_fast(std::string_view implementation);
// Attributes of all primitives here: Gradual allocates the scratch memory.
dnnl::primitive_attr attributes();

// How oneDNN would do what these arguments describe: until version 2 apart from its engine, from 3 on with it.
template <class Kind, class... What> auto describe(const What&... what) {
  if constexpr (requires { typename Kind::desc; }) {
    return typename Kind::primitive_desc(typename Kind::desc(what...), attributes(), engine());
  } else {
    return typename Kind::primitive_desc(engine(), what..., attributes());
  }
}
// The same of a gradient, whose forward says which kernels go together.
template <class Kind, class Forward, class... What>
auto describe_gradient(const Forward& forward, const What&... what) {
  if constexpr (requires { typename Kind::desc; }) {
    return typename Kind::primitive_desc(typename Kind::desc(what...), attributes(), engine(), forward);
  } else {
    return typename Kind::primitive_desc(engine(), what..., forward, attributes());
  }
}

}  // namespace gradual::onednn
