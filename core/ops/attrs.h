// The attributes of op calls: one small trivially copyable struct a kind of row, carried by value.
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

// Holds one attrs struct of up to kCapacity bytes and knows which.
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
    tag_ = o.tag_, size_ = o.size_;
    if (size_ > 0) std::memcpy(bytes_, o.bytes_, size_);
    return *this;
  }
  template <class T> const T& get() const {
    if (tag_ != &tag<T>) fail("internal: an op was given the attributes of another");
    return *reinterpret_cast<const T*>(bytes_);
  }
  template <class T> bool is() const { return tag_ == &tag<T>; }

 private:
  template <class T> static constexpr char tag = 0;
  const char* tag_ = nullptr;
  std::uint32_t size_ = 0;
  alignas(8) std::byte bytes_[kCapacity];
};

// A user's function (autograd/function.h). The name is its own, interned, where an observer is there to read it.
class Function;
struct CustomAttrs {
  Function* function = nullptr;
  const char* name = "";
};
// Rows with one attribute carry it as it is: cast a DType, to_device a Device, view and expand their sizes, permute its
// dims, gelu and linear_gelu its form, losses their Reduction, tril the diagonal and one_hot the number of classes as std::int64_t.
enum class Gelu { exact, tanh };
enum class Reduction { none, mean, sum };
// A binary op whose left or right operand is a number: that input's slot is undefined and the value stands here.
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
  bool causal = false;  // softmax over the last dim of [.., L, S]: row i sees columns 0 to i, the others become 0
};
struct SliceAttrs {
  int dim = 0;
  std::int64_t start = 0, stop = 0, step = 1;  // resolved: 0 <= start <= stop <= size
  std::int64_t size = 0;                       // of the dim that was sliced (for slice_backward)
};
struct PadAttrs {
  Shape before, after;  // one entry a dim, all >= 0
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
struct ConvAttrs {
  Size2 stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  Size2 size = 0;  // conv2d_backward_*: of the input or the kernel wanted
};
struct PoolAttrs {
  Size2 kernel = 2, stride = 0, padding = 0;  // stride 0: the kernel's
  Size2 size = 0;                             // *_backward: of the input; adaptive: of the output
  bool channels_last = false;                 // the images are; ops set it, for a gradient of one pixel does not tell
};
struct NormAttrs {
  double eps = 1e-5;
  int dims = 1;          // layer_norm, rms_norm: how many trailing dims are normalised
  bool training = true;  // batch_norm: statistics of the batch, or the running ones
  bool relu = false;     // batch_norm: y is max(0, ..); its backward then reads the bias
};
// batch_norm_update_: of a batch with `count` values a channel, whose invstd is 1/sqrt(var + eps).
struct RunningAttrs {
  double momentum = 0.1;
  double eps = 1e-5;
  std::int64_t count = 0;
};
struct CrossEntropyAttrs {
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;        // in [0, 1]
  std::int64_t ignore_index = -100;  // rows of this class count nothing, in the mean's denominator either
  // Autocast's, on a GPU. f16 or bf16: logits and their gradient have it, loss and log-probabilities are f32.
  DType narrow = DType::f32;
};
struct DropoutAttrs {
  double p = 0.5;
  RandomKey key;
};
// unscale_: see optim/optimizer.h for the inputs of these rows.
struct UnscaleAttrs {
  double inverse_scale = 1;
  std::int64_t slot = 1;  // where in `found` the first gradient is counted, the next behind it; slot 0 sums all
  const float* device_inverse = nullptr;  // CUDA: where it stands in the GPU's memory; null: inverse_scale holds
};
// The rates that an optimizer's formula may have.
struct Rates {
  double lr = 0, weight_decay = 0, momentum = 0, dampening = 0, beta1 = 0, beta2 = 0, eps = 0;
};
// What changes from step to step, where it stands in a GPU's memory, so that no step waits for the host. Null: the
// attributes' values hold.
struct DeviceStep {
  const float* inverse_scale = nullptr;
  const std::int64_t* found = nullptr;  // not 0: nothing of the step happens
  // Steps taken so far, of the call's first parameter and those behind it; counted up by the call. Parameter k is then
  // rounded stochastically by stream (steps[k] << 24) + key.stream + k.
  std::int64_t* steps = nullptr;
  const Rates* rates = nullptr;
};
// How a fused update multiplies its gradients, rounds and stores; what is said of rounding holds for f16 and bf16.
struct UpdateAttrs {
  double inverse_scale = 1;  // times the gradient, before all else
  bool pure = false;         // every operation rounds to the parameter's dtype, as composed ops would
  bool stochastic = false;   // parameter k of the call is rounded stochastically, by stream key.stream + k
  RandomKey key = {};
  DeviceStep device = {};
};
struct SgdAttrs {
  double lr = 0, weight_decay = 0, momentum = 0, dampening = 0;
  bool nesterov = false;
  UpdateAttrs update;
};
struct AdamAttrs {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double correction1 = 1;       // 1 - beta1^t
  double correction2_root = 1;  // sqrt(1 - beta2^t)
  bool decoupled = false;       // weight decay as in AdamW
  UpdateAttrs update;
};
struct AttentionAttrs {
  bool causal = false;
  double scale = 0;    // 0: 1/sqrt(head size)
  double dropout = 0;  // of the probabilities, drawn with `key`; flash_attention has none
  RandomKey key = {};
};
inline double attention_scale(const AttentionAttrs& a, std::int64_t head_size) {
  return a.scale != 0 ? a.scale : 1 / std::sqrt(static_cast<double>(head_size));
}

}  // namespace gradual
