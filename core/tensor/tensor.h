// Tensor: a value-semantic handle to a strided view of counted storage. Copying a handle copies no numbers;
// views share storage and version. Ops are free functions in ops.h; the most common are methods here too.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "../formats/dtype.h"
#include "../support/error.h"
#include "../support/generator.h"
#include "device.h"
#include "shape.h"
#include "storage.h"

namespace gradual {

using SourceLocation = std::source_location;
using Loc = SourceLocation;
using OptionalDim = std::optional<int>;  // none: all dims, as one
enum class Gelu;                         // core/ops/attrs.h

// Autograd's data of a tensor. core owns it as an opaque object; autograd/node.h defines it.
struct GradMetaBase {
  virtual ~GradMetaBase() = default;
  static constexpr std::size_t kBytes = 40;  // the space that a tensor reserves
};

struct TensorImpl : Pooled<TensorImpl>, Pinned {
  TensorImpl(DType type, const Shape& shape) : dtype(type), numel(gradual::numel(shape)), sizes(shape) {}
  ~TensorImpl() {
    if (grad_meta) grad_meta->~GradMetaBase();
  }
  static void destroy(TensorImpl* t);

  std::atomic<std::uint32_t> refs{1};
  DType dtype;
  bool contiguous = true;  // row-major without gaps
  std::int64_t numel;
  std::int64_t offset = 0;  // elements from the storage's start
  Ref<Storage> storage;
  Shape sizes;
  Shape strides;                      // elements; 0 for a broadcast dim
  GradMetaBase* grad_meta = nullptr;  // null, or an object in grad_space
  alignas(8) std::byte grad_space[GradMetaBase::kBytes];
};

struct TensorOptions {
  DType dtype = DType::f32;
  Device device = Device::cpu();
  bool requires_grad = false;
};

// A half-open range for slicing; negative indices count from the end, out-of-range ends are clamped.
struct Slice {
  std::optional<std::int64_t> start, stop;
  std::int64_t step = 1;  // at least 1
};

// One position of an index: an integer drops the dim, a Slice keeps it.
struct Index {
  Index(std::int64_t i) : integer(i) {}  // NOLINT(google-explicit-constructor)
  Index(int i) : integer(i) {}           // NOLINT(google-explicit-constructor)
  Index(Slice s) : slice(s) {}           // NOLINT(google-explicit-constructor)
  std::optional<std::int64_t> integer;
  Slice slice;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: no dtype, no shape
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const = delete;  // ask defined() or item()

  // Properties.
  DType dtype() const { return impl().dtype; }
  Device device() const { return impl().storage->device; }
  const Shape& sizes() const { return impl().sizes; }
  const Shape& strides() const { return impl().strides; }
  std::int64_t size(int dim) const;  // negative dims count from the end
  std::int64_t numel() const { return impl().numel; }
  int dim() const { return impl().sizes.size(); }
  std::int64_t offset() const { return impl().offset; }
  bool is_contiguous() const { return impl().contiguous; }
  bool is_floating() const { return gradual::is_floating(dtype()); }
  std::size_t nbytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype()); }

  // The numbers. data<T>() checks that T is the dtype and that they are on the CPU; raw() is the address of element
  // [0, ..., 0] on any device.
  void* raw() const {
    return static_cast<char*>(impl_->storage->data) + static_cast<std::size_t>(impl_->offset) * size_of(impl_->dtype);
  }
  template <class T> T* data() const {
    if (dtype_of<T> != dtype() || !device().is_cpu()) fail_data(dtype_of<T>);
    return static_cast<T*>(raw());
  }
  double item() const;  // the value of a one-element tensor (integers beyond 2^53: use item<int64_t>)
  template <class T> T item() const;
  template <class T> std::vector<T> to_vector() const;  // row-major, converted to T (T: double, float, int64_t)

  // Gradients (defined in autograd/).
  bool requires_grad() const;
  Tensor& set_requires_grad(bool value = true);  // leaves of floating dtype only
  bool is_leaf() const;
  Tensor grad() const;                      // undefined until backward has reached this leaf
  void set_grad(const Tensor& grad) const;  // undefined, or floating (any dtype), of this shape and device
  void zero_grad() const;                   // drops the gradient
  // Runs backward from this tensor. `gradient` defaults to one for a one-element tensor.
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;
  Tensor detach() const;  // the same numbers, outside the graph
  // `hook` receives the gradient of this tensor in backward. It returns a replacement, or an undefined tensor to
  // keep the gradient. Returns an id for remove_hook.
  std::uint64_t register_hook(std::function<Tensor(const Tensor&)> hook) const;
  void remove_hook(std::uint64_t id) const;

  // Conversion and copies.
  Tensor to(DType dtype, SourceLocation loc = SourceLocation::current()) const;
  Tensor to(Device device, SourceLocation loc = SourceLocation::current()) const;
  Tensor to(Device device, DType dtype, SourceLocation loc = SourceLocation::current()) const;
  Tensor contiguous(SourceLocation loc = SourceLocation::current()) const;

  // Views and movement (see ops.h for what each does).
  Tensor reshape(const Shape& sizes, SourceLocation loc = SourceLocation::current()) const;
  Tensor view(const Shape& sizes, SourceLocation loc = SourceLocation::current()) const;
  Tensor flatten(int start = 0, int end = -1, SourceLocation loc = SourceLocation::current()) const;
  Tensor permute(const Shape& dims, SourceLocation loc = SourceLocation::current()) const;
  Tensor transpose(int a, int b, SourceLocation loc = SourceLocation::current()) const;
  Tensor t(SourceLocation loc = SourceLocation::current()) const;  // the last two dims swapped
  Tensor expand(const Shape& sizes, SourceLocation loc = SourceLocation::current()) const;
  Tensor squeeze(int dim, SourceLocation loc = SourceLocation::current()) const;
  Tensor unsqueeze(int dim, SourceLocation loc = SourceLocation::current()) const;
  Tensor select(int dim, std::int64_t index, SourceLocation loc = SourceLocation::current()) const;
  Tensor narrow(int dim, std::int64_t start, std::int64_t length, SourceLocation loc = SourceLocation::current()) const;
  Tensor index(std::initializer_list<Index> indices, SourceLocation loc = SourceLocation::current()) const;
  Tensor operator[](std::int64_t i) const { return select(0, i); }
  // The elements where a bool mask of the leading sizes is true, in row-major order: [n, ..]. Waits for a GPU.
  Tensor operator[](const Tensor& mask) const;

  // The unary and binary ops and the reductions of ops.h. No dims means all of them.
#define GRADUAL_UNARY_OP(name, ...) Tensor name(SourceLocation loc = SourceLocation::current()) const;
#define GRADUAL_UNARY_OPTION_OP(name, kind, rule, infer, type, option, ...) \
  Tensor name(type option __VA_OPT__(= __VA_ARGS__), SourceLocation loc = SourceLocation::current()) const;
#define GRADUAL_BINARY_OP(name, ...)                                                      \
  Tensor name(const Tensor& other, SourceLocation loc = SourceLocation::current()) const; \
  Tensor name(double value, SourceLocation loc = SourceLocation::current()) const;
#define GRADUAL_REDUCTION_OP(name, ...) \
  Tensor name(const Shape& dims = {}, bool keepdim = false, SourceLocation loc = SourceLocation::current()) const;
#include "../ops.def"
  Tensor amax(const Shape& dims = {}, bool keepdim = false, SourceLocation loc = SourceLocation::current()) const;
  Tensor argmax(OptionalDim dim = {}, bool keepdim = false, SourceLocation loc = SourceLocation::current()) const;
  Tensor argmin(OptionalDim dim = {}, bool keepdim = false, SourceLocation loc = SourceLocation::current()) const;
  Tensor var(const Shape& dims = {}, bool keepdim = false, double correction = 1, Loc loc = Loc::current()) const;
  Tensor norm(double p = 2, const Shape& dims = {}, bool keepdim = false, Loc loc = Loc::current()) const;
  Tensor clamp(double low, double high, SourceLocation loc = SourceLocation::current()) const;
  Tensor matmul(const Tensor& other, SourceLocation loc = SourceLocation::current()) const;

  // In place. With gradients on, only for a non-leaf that shares storage with no other differentiable tensor.
  const Tensor& add_(const Tensor& other, double alpha = 1, SourceLocation loc = SourceLocation::current()) const;
  const Tensor& add_(double value, SourceLocation loc = SourceLocation::current()) const;
  const Tensor& mul_(const Tensor& other, SourceLocation loc = SourceLocation::current()) const;
  const Tensor& mul_(double value, SourceLocation loc = SourceLocation::current()) const;
  const Tensor& copy_(const Tensor& source, SourceLocation loc = SourceLocation::current()) const;
  const Tensor& fill_(double value, SourceLocation loc = SourceLocation::current()) const;
  const Tensor& operator+=(const Tensor& other) const { return add_(other); }
  const Tensor& operator+=(double value) const { return add_(value); }
  const Tensor& operator-=(const Tensor& other) const { return add_(other, -1.0); }
  const Tensor& operator-=(double value) const { return add_(-value); }
  const Tensor& operator*=(const Tensor& other) const { return mul_(other); }
  const Tensor& operator*=(double value) const { return mul_(value); }
  const Tensor& operator/=(const Tensor& other) const;
  const Tensor& operator/=(double value) const;
  const Tensor& zero_(SourceLocation loc = SourceLocation::current()) const { return fill_(0, loc); }
  // Random fills of floating tensors, outside the graph and the dispatch chain (initialisation).
  // uniform_: low + (high - low) u with u in [0, 1), rounded once; rounding may give high. Error for low above high.
  const Tensor& uniform_(double low, double high, Generator& g = default_generator()) const;
  const Tensor& normal_(double mean, double std, Generator& g = default_generator()) const;

  // Identity and internals.
  bool is_same(const Tensor& o) const { return impl_ == o.impl_; }  // the same handle, not equal numbers
  bool shares_storage(const Tensor& o) const { return impl().storage == o.impl().storage; }
  std::uint32_t version() const { return impl().storage->version.load(std::memory_order_relaxed); }
  // Replaces storage, dtype and shape by those of another tensor; handles to this tensor see the change (Module::to,
  // masters).
  void swap_data(const Tensor& source) const;
  void set_category(Category category) const { impl().storage->set_category(category); }
  TensorImpl* unsafe_impl() const { return impl_.get(); }

 private:
  TensorImpl& impl() const {
    if (!impl_) fail_undefined();
    return *impl_;
  }
  [[noreturn]] static void fail_undefined();
  [[noreturn]] void fail_data(DType asked) const;

  Ref<TensorImpl> impl_;
};

template <class T>
concept DTypeOrDevice = std::same_as<T, DType> || std::same_as<T, Device>;
inline TensorOptions options_of(DType dtype) { return {.dtype = dtype}; }
inline TensorOptions options_of(Device device) { return {.device = device}; }
inline TensorOptions options_of(const Tensor& like) { return {.dtype = like.dtype(), .device = like.device()}; }

// Creation. empty, zeros, ones, full, rand, randn and tensor also take a dtype or a device alone: zeros(2, DType::f16).
// Integers take numbers in their range: the fraction is cut off, and NaN and larger numbers are an Error here and in
// fill_. (A cast of a tensor saturates them, and NaN gives 0.)
Tensor empty(const Shape& sizes, TensorOptions options = {});  // uninitialised
Tensor zeros(const Shape& sizes, TensorOptions options = {});
Tensor ones(const Shape& sizes, TensorOptions options = {});
Tensor full(const Shape& sizes, double value, TensorOptions options = {});
template <DTypeOrDevice T> Tensor empty(const Shape& sizes, T on) { return empty(sizes, options_of(on)); }
template <DTypeOrDevice T> Tensor zeros(const Shape& sizes, T on) { return zeros(sizes, options_of(on)); }
template <DTypeOrDevice T> Tensor ones(const Shape& sizes, T on) { return ones(sizes, options_of(on)); }
template <DTypeOrDevice T> Tensor full(const Shape& s, double value, T on) { return full(s, value, options_of(on)); }
Tensor scalar(double value, TensorOptions options = {});  // 0-d
// start, start + step, .., without stop. Error for a step of 0 or away from stop.
Tensor arange(double start, double stop, double step = 1, TensorOptions options = {.dtype = DType::i64});
Tensor linspace(double start, double stop, std::int64_t count, TensorOptions options = {});
Tensor eye(std::int64_t n, TensorOptions options = {});
Tensor rand(const Shape& sizes, TensorOptions options = {}, Generator& g = default_generator());   // [0, 1)
Tensor randn(const Shape& sizes, TensorOptions options = {}, Generator& g = default_generator());  // N(0, 1)
template <DTypeOrDevice T> Tensor rand(const Shape& sizes, T on) { return rand(sizes, options_of(on)); }
template <DTypeOrDevice T> Tensor randn(const Shape& sizes, T on) { return randn(sizes, options_of(on)); }
Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, TensorOptions options = {.dtype = DType::i64},
               Generator& g = default_generator());
Tensor randperm(std::int64_t n, Generator& g = default_generator());  // i64
Tensor empty_like(const Tensor& t);  // same dtype, device and, where t is dense, stride order
Tensor zeros_like(const Tensor& t);
Tensor ones_like(const Tensor& t);
// Copies `values` (row-major) and rounds them to options.dtype.
Tensor from_data(const std::vector<double>& values, const Shape& sizes, TensorOptions options = {});
Tensor from_data(const std::vector<float>& values, const Shape& sizes, TensorOptions options = {});
Tensor from_data(const std::vector<std::int64_t>& values, const Shape& sizes,
                 TensorOptions options = {.dtype = DType::i64});
// Wraps the caller's memory, not copied and not counted; `deleter` runs after the last view is destroyed. Error for
// null with elements.
Tensor from_blob(void* data, const Shape& sizes, DType dtype, std::function<void()> deleter = {});
// A view of t's storage with these sizes, strides (at least 0) and offset; it must lie in the storage.
Tensor as_strided(const Tensor& t, const Shape& sizes, const Shape& strides, std::int64_t offset);
// Error naming `who` for a number that an integer dtype does not hold.
void check_holds(DType dtype, double value, const char* who);

// Numbers as PyTorch prints them, then shape and dtype.
std::string to_string(const Tensor& t);
std::ostream& operator<<(std::ostream& out, const Tensor& t);

}  // namespace gradual
