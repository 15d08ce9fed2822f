// The attributes of op calls: one small trivially copyable struct per kind of op, passed by value.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../formats/dtype.h"
#include "../support/error.h"
#include "../support/generator.h"
#include "../tensor/device.h"
#include "../tensor/shape.h"

namespace gradual {

// Holds one attribute struct of up to kCapacity bytes and its type.
class Attrs {
 public:
  static constexpr std::size_t kCapacity = 160;
  Attrs() = default;
  template <class T>
    requires(!std::is_same_v<T, Attrs>)
  Attrs(const T& value) : tag_(&tag<T>), size_(sizeof(T)) {  // NOLINT(google-explicit-constructor)
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kCapacity && alignof(T) <= 8);
    std::memcpy(bytes_, &value, sizeof(T));
  }
  Attrs(const Attrs& o) : tag_(o.tag_), size_(o.size_) { std::memcpy(bytes_, o.bytes_, size_); }
  Attrs& operator=(const Attrs& o) {
    if (this == &o) return *this;
    tag_ = o.tag_;
    size_ = o.size_;
    if (size_ > 0) std::memcpy(bytes_, o.bytes_, size_);
    return *this;
  }
  template <class T> const T& get() const {
    if (tag_ != &tag<T>) throw_error("internal: an op was given the attributes of another");
    return *reinterpret_cast<const T*>(bytes_);
  }
  template <class T> bool is() const { return tag_ == &tag<T>; }

 private:
  template <class T> static constexpr char tag = 0;
  const char* tag_ = nullptr;
  std::uint32_t size_ = 0;
  alignas(8) std::byte bytes_[kCapacity];
};

// A user's function (autograd/function.h). `name` is its interned name; set only if an observer is installed.
class Function;
struct Replaced;
struct CustomAttrs {
  Function* function = nullptr;
  const char* name = "";
  const Replaced* replaces = nullptr;  // of a rewritten op (op.h); null: a user's function
};
// Ops with one attribute carry it without a struct: cast a DType, to_device a Device, view and expand their sizes,
// permute its dims, gelu and linear_gelu the form, losses their Reduction, tril the diagonal and one_hot the number of
// classes as std::int64_t.
enum class Gelu { exact, tanh };
enum class Reduction { none, mean, sum };
// For a binary op whose left or right operand is a number: that input is undefined and this is its value.
struct ScalarAttrs {
  double value = 0;  // clamp's low, leaky_relu's slope, pow's exponent, add_'s alpha, fill_'s value
  double high = std::numeric_limits<double>::infinity();  // clamp's high
};
// dims is a bit mask (bit i: dim i is reduced).
struct ReduceAttrs {
  std::uint32_t dims = 0;
  bool keepdim = false;
  double value = 0;  // var: the correction; norm: p
};
struct DimAttrs {
  int dim = 0;
  bool keepdim = false;
  bool causal = false;  // softmax over the last dim of [.., L, S]: row i takes columns 0 to i, the others become 0
};
struct SliceAttrs {
  int dim = 0;
  // resolved: 0 <= start <= stop <= size
  std::int64_t start = 0;
  std::int64_t stop = 0;
  std::int64_t step = 1;
  std::int64_t size = 0;  // of the sliced dim (for slice_backward)
};
struct PadAttrs {
  Shape before, after;  // one entry per dim, all >= 0
  double value = 0;
};
struct IndexAttrs {
  int dim = 0;
  std::int64_t size = 0;  // index_add: size of the result along dim
};
// Height and width; one number stands for both.
struct Size2 {
  constexpr Size2(std::int64_t both) : of{both, both} {}  // NOLINT(google-explicit-constructor)
  constexpr Size2(std::int64_t height, std::int64_t width) : of{height, width} {}
  constexpr std::int64_t operator[](int i) const { return of[i]; }
  constexpr std::int64_t& operator[](int i) { return of[i]; }
  std::int64_t of[2];
};
// Options are what a caller may say; the attributes add what the op function tells the kernel.
struct Conv2dOptions {
  Size2 stride = 1;
  Size2 padding = 0;
  Size2 dilation = 1;
  std::int64_t groups = 1;
};
struct ConvAttrs : Conv2dOptions {
  Size2 size = 0;  // conv2d_backward_*: of the input or the kernel, whichever is computed
};
struct Pool2dOptions {
  // stride 0: the kernel's
  Size2 kernel = 2;
  Size2 stride = 0;
  Size2 padding = 0;
};
struct PoolAttrs : Pool2dOptions {
  Size2 size = 0;              // *_backward: of the input; adaptive: of the output
  bool channels_last = false;  // of the images; ops set it, because strides of 1x1 images are ambiguous
};
struct NormAttrs {
  double eps = 1e-5;
  int dims = 1;          // layer_norm, rms_norm: how many trailing dims are normalised
  bool training = true;  // batch_norm: true uses the batch's statistics, false the running ones
  bool relu = false;     // batch_norm: y is max(0, ..); its backward then reads the bias
};
// batch_norm_update_: the batch has `count` values per channel; its invstd is 1/sqrt(var + eps).
struct RunningAttrs {
  double momentum = 0.1;
  double eps = 1e-5;
  std::int64_t count = 0;
};
struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;        // in [0, 1]
  std::int64_t ignore_index = -100;  // rows of this class are left out, also of the mean's denominator
};
struct CrossEntropyAttrs : CrossEntropyOptions {
  // Set by autocast on a GPU. f16 or bf16: the dtype of logits and their gradient; loss and log-probabilities are f32.
  DType narrow = DType::f32;
};
struct DropoutAttrs {
  double p = 0.5;
  RandomKey key;
};
// unscale_: see optim/optimizer.h for the inputs of these ops.
struct UnscaleAttrs {
  double inverse_scale = 1;
  std::int64_t slot = 1;  // index in `found` of the first gradient's count, the others follow; slot 0 is the sum
  const float* device_inverse = nullptr;  // CUDA: the inverse scale in GPU memory; null: use inverse_scale
};
// The rates that an optimizer's formula may use.
struct Rates {
  double lr = 0;
  double weight_decay = 0;
  double momentum = 0;
  double dampening = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
};
// Pointers into GPU memory to what changes from step to step, so that no step waits for the host. Null: use the
// attributes' values.
struct DeviceStep {
  const float* inverse_scale = nullptr;
  const std::int64_t* found = nullptr;  // not 0: the step is skipped
  // Step counts of the call's parameters, in order; the call increments them. Stochastic rounding of parameter k then
  // uses stream (steps[k] << 24) + key.stream + k.
  std::int64_t* steps = nullptr;
  const Rates* rates = nullptr;
};
// How a fused update scales its gradients, rounds and stores. `pure` and `stochastic` apply to f16 and bf16.
struct UpdateAttrs {
  double inverse_scale = 1;  // multiplies the gradient first
  bool pure = false;         // every operation rounds to the parameter's dtype, as composed ops would
  bool stochastic = false;   // stochastic rounding; parameter k of the call uses stream key.stream + k
  RandomKey key = {};
  DeviceStep device = {};
};
struct SgdAttrs : Rates {
  bool nesterov = false;
  UpdateAttrs update;
};
struct AdamAttrs : Rates {
  bool decoupled = false;  // weight decay as in AdamW
  UpdateAttrs update;
  double correction1 = 1;       // 1 - beta1^t
  double correction2_root = 1;  // sqrt(1 - beta2^t)
};
struct AttentionOptions {
  bool causal = false;
  double scale = 0;    // 0: 1/sqrt(head size)
  double dropout = 0;  // of the probabilities, drawn with `key`; 0 for flash_attention
};
struct AttentionAttrs : AttentionOptions {
  RandomKey key = {};  // of dropout
};
inline double attention_scale(const AttentionAttrs& a, std::int64_t head_size) {
  return a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(head_size));
}

}  // namespace gradual
