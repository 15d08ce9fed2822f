// oneDNN's primitives (oneDNN Developer Guide, v2.6 and v3), created once per thread and shape and then reused.
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
// True if the processor has bf16 products; without them f32 is faster.
bool has_bf16();

// Identifies a primitive: an op and all shapes, strides and options that it was created for.
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

// A primitive and its memory objects. It runs on the threads of the innermost Team and uses Gradual's scratch memory.
class Primitive {
 public:
  struct Argument {
    int name;  // DNNL_ARG_SRC, ...
    dnnl::memory::desc layout;
    // If the caller's layout `given` differs, the data are reordered through scratch memory: before a run if they are
    // read, after it if they are written.
    enum class As : std::uint8_t { same, read, written } as = As::same;
    dnnl::memory::desc given = {};
  };
  Primitive(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad, std::vector<Argument> arguments);
  ~Primitive();
  // Runs on the data of each argument, in the order of the arguments. A bias may follow that the primitive does not
  // have; it is ignored. Data that are only read may be const.
  void run(std::initializer_list<const void*> data);
  // Runs once per part. From part to part, the data of argument i move by steps[i] bytes. 0: all parts read the same
  // data, which are reordered once. kAnew: the data are always in the same place; before(part) writes them, or
  // after(part) reads them.
  using Around = std::function<void(std::int64_t part)>;
  static constexpr std::int64_t kAnew = -1;
  void run(std::span<const void* const> data, std::span<const std::int64_t> steps, std::int64_t parts,
           const Around& before = {}, const Around& after = {});

 private:
  dnnl::primitive primitive_;
  std::vector<dnnl::memory> memories_;  // the last is the scratchpad
  std::vector<dnnl_exec_arg_t> arguments_;
  std::size_t scratch_;  // bytes of the scratchpad and of the reordered arguments

  struct Reorder;
  std::vector<Reorder> reorders_;
};

// Sets the number of threads for which primitives are created and on which they run, while this object lives. It is 1,
// and loops share the parts (core/support/parallel.h), except for convolutions of few images. A primitive's blocking
// depends on the number, so it is part of the keys of convolutions.
class Team : Pinned {
 public:
  explicit Team(int threads);
  ~Team();

 private:
  int saved_;
};

// This thread's primitive for `key`, created by `make` at first use. Null if `make` returns null or oneDNN has no
// implementation; the thread remembers that, too.
using Make = std::function<std::unique_ptr<Primitive>()>;
Primitive* find(const Key& key, const Make& make);

// bf16 for bf16, else f32: other dtypes are converted first.
dnnl::memory::data_type type_of(DType dtype);
dnnl::memory::desc layout_of(const Shape& sizes, const Shape& strides, DType dtype);
// The dtype in which operands are multiplied: bf16 for bf16 and f8 if has_bf16(), else f32.
DType product_dtype(DType dtype);
// False for oneDNN's reference implementations, which are slower than core/cpu.
bool is_fast(std::string_view implementation);
// The attributes of all primitives: Gradual allocates the scratch memory.
dnnl::primitive_attr attributes();

// The primitive_desc of `Kind` for these arguments. oneDNN 2 has a separate desc for them; oneDNN 3 takes them with the
// engine.
template <class Kind, class... What> auto describe(const What&... what) {
  if constexpr (requires { typename Kind::desc; }) {
    return typename Kind::primitive_desc(typename Kind::desc(what...), attributes(), engine());
  } else {
    return typename Kind::primitive_desc(engine(), what..., attributes());
  }
}
// The same for a gradient; the forward primitive_desc is a hint, so that both choose matching kernels.
template <class Kind, class Forward, class... What>
auto describe_gradient(const Forward& forward, const What&... what) {
  if constexpr (requires { typename Kind::desc; }) {
    return typename Kind::primitive_desc(typename Kind::desc(what...), attributes(), engine(), forward);
  } else {
    return typename Kind::primitive_desc(engine(), what..., forward, attributes());
  }
}

}  // namespace gradual::onednn
