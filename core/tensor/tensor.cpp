#include "tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../formats/convert.h"
#include "../support/throwf.h"
#include "device_recording.h"

namespace gradual {

void TensorImpl::destroy(TensorImpl* t) {
  if (t->grad_meta && t->storage && t->storage->refs.load(std::memory_order_relaxed) > 1)
    add_to(t->storage->differentiable, -1);
  delete t;
}

void Tensor::fail_undefined() { throw_error("an undefined tensor was used; it has no dtype, shape or numbers"); }
void Tensor::fail_data(DType asked) const {
  if (!device().is_cpu())
    throwf("data: the tensor is on {}; copy it with to(Device::cpu()) to read its numbers", to_string(device()));
  throwf("data: the tensor is {}, asked for {}", to_string(dtype()), to_string(asked));
}

std::int64_t Tensor::size(int d) const {
  if (dim() == 0) throwf("size: a 0-d tensor has no dim {}", d);
  return sizes()[wrap_dim(d, dim(), "size")];
}

namespace {

template <class T> T read_one(const Tensor& t) {
  if (t.numel() != 1) throw_error("item: needs exactly one element, the tensor has shape " + to_string(t.sizes()));
  T v = 0;
  fetch_and_cast(t.dtype(), t.to(Device::cpu()).raw(), 1, &v, 1);
  return v;
}

template <class T> std::vector<T> read_all(const Tensor& t) {
  const Tensor c = t.detach().to(Device::cpu()).contiguous();
  std::vector<T> v(static_cast<std::size_t>(t.numel()));
  fetch_and_cast(t.dtype(), c.raw(), 1, v.data(), t.numel());
  return v;
}

// Moves a tensor made on the CPU to the options' device and sets requires_grad.
Tensor placed(const Tensor& t, const TensorOptions& o) { return t.to(o.device).set_requires_grad(o.requires_grad); }

template <class T> Tensor filled_from(const std::vector<T>& values, const Shape& sizes, const TensorOptions& o) {
  if (static_cast<std::int64_t>(values.size()) != numel(sizes))
    throwf("from_data: {} values do not fill {}", values.size(), to_string(sizes));
  if (o.dtype != dtype_of<T> && !is_floating(o.dtype))
    for (const T value : values) check_holds(o.dtype, static_cast<double>(value), "from_data");
  const Tensor t = empty(sizes, {.dtype = o.dtype});
  cast_and_store(o.dtype, values.data(), t.raw(), 1, t.numel());
  return placed(t, o);
}

// value(0) .. value(n-1), rounded to the options' dtype, in counted memory: Error if it does not fit. In a recorded
// step they are part of the recording.
template <class F> Tensor generated(const char* who, std::int64_t n, const TensorOptions& o, const F& value) {
  for (const std::int64_t i : {std::int64_t{0}, n - 1})
    if (n > 0) check_holds(o.dtype, value(static_cast<double>(i)), who);
  const Tensor t = empty({n}, {.dtype = o.dtype});
  const Tensor exact = o.dtype == DType::f64 ? t : empty({n}, {.dtype = DType::f64});
  auto* numbers = exact.data<double>();
  for (std::int64_t i = 0; i < n; ++i) numbers[i] = value(static_cast<double>(i));
  if (!exact.is_same(t)) cast_and_store(o.dtype, numbers, t.raw(), 1, n);
  if (!o.device.is_cuda() || !device::capturing()) return placed(t, o);
  Tensor there = empty({n}, o);
  device::upload(there.raw(), o.device, t.raw(), t.nbytes());
  return there;
}

// A row-major tensor without storage.
Ref<TensorImpl> laid_out(const Shape& sizes, DType dtype) {
  auto impl = Ref<TensorImpl>::adopt(new TensorImpl(dtype, sizes));
  // In place: a copy of elements that were just written would stall (store forwarding).
  impl->strides = sizes;
  std::int64_t step = 1;
  for (int i = sizes.size() - 1; i >= 0; --i)
    impl->strides[i] = std::exchange(step, step * std::max(sizes[i], std::int64_t{1}));
  return impl;
}

// The bytes of a new tensor.
std::size_t count_bytes(const TensorImpl& t) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(t.numel, static_cast<std::int64_t>(size_of(t.dtype)), &bytes))
    throwf("too many bytes: {} {}", to_string(t.sizes), to_string(t.dtype));
  return static_cast<std::size_t>(bytes);
}

}  // namespace

double Tensor::item() const { return read_one<double>(*this); }
template <> double Tensor::item<double>() const { return item(); }
template <> float Tensor::item<float>() const { return static_cast<float>(item()); }
template <> std::int64_t Tensor::item<std::int64_t>() const { return read_one<std::int64_t>(*this); }
template <> bool Tensor::item<bool>() const { return item() != 0; }
template <> std::vector<double> Tensor::to_vector() const { return read_all<double>(*this); }
template <> std::vector<float> Tensor::to_vector() const { return read_all<float>(*this); }
template <> std::vector<std::int64_t> Tensor::to_vector() const { return read_all<std::int64_t>(*this); }

void Tensor::swap_data(const Tensor& source) const {
  TensorImpl& t = impl();
  const TensorImpl& s = source.impl();
  if (t.grad_meta) {
    t.storage->differentiable.fetch_sub(1);
    s.storage->differentiable.fetch_add(1);
  }
  t.dtype = s.dtype;
  t.contiguous = s.contiguous;
  t.numel = s.numel;
  t.offset = s.offset;
  t.storage = s.storage;
  t.sizes = s.sizes;
  t.strides = s.strides;
}

Tensor empty(const Shape& sizes, TensorOptions o) {
  auto impl = laid_out(sizes, o.dtype);
  impl->storage = Storage::allocate(count_bytes(*impl), o.device);
  Tensor t(std::move(impl));
  if (o.requires_grad) t.set_requires_grad();
  return t;
}

void check_holds(DType dtype, double value, const char* who) {
  if (is_floating(dtype) || dtype == DType::bool_) return;
  double held = 0;
  std::int64_t code = 0;
  cast_and_store(dtype, &value, &code, 1, 1);
  fetch_and_cast(dtype, &code, 1, &held, 1);
  if (held != std::trunc(value)) throwf("{}: {} does not fit into {}", who, value, to_string(dtype));
}

Tensor full(const Shape& sizes, double value, TensorOptions o) {
  check_holds(o.dtype, value, "full");
  Tensor t = empty(sizes, o);
  if (t.numel() == 0) return t;
  const std::size_t width = size_of(o.dtype);
  if (o.device.is_cuda()) {
    std::uint64_t pattern = 0;
    cast_and_store(o.dtype, &value, &pattern, 1, 1);
    device::fill(t.raw(), o.device, &pattern, width, t.numel());
  } else {
    auto* p = static_cast<char*>(t.raw());
    cast_and_store(o.dtype, &value, p, 1, 1);
    for (std::size_t done = width; done < t.nbytes(); done *= 2)
      std::memcpy(p + done, p, std::min(done, t.nbytes() - done));
  }
  return t;
}
Tensor zeros(const Shape& sizes, TensorOptions o) { return full(sizes, 0, o); }
Tensor ones(const Shape& sizes, TensorOptions o) { return full(sizes, 1, o); }
Tensor scalar(double value, TensorOptions o) { return full({}, value, o); }

Tensor from_data(const std::vector<double>& v, const Shape& s, TensorOptions o) { return filled_from(v, s, o); }
Tensor from_data(const std::vector<float>& v, const Shape& s, TensorOptions o) { return filled_from(v, s, o); }
Tensor from_data(const std::vector<std::int64_t>& v, const Shape& s, TensorOptions o) { return filled_from(v, s, o); }

Tensor arange(double start, double stop, double step, TensorOptions o) {
  if (step == 0 || !std::isfinite(start) || !std::isfinite(stop) || !std::isfinite(step))
    throw_error("arange: start, stop and step must be finite and step not 0");
  const double count = std::ceil((stop - start) / step);
  if (count > 9e15) throw_error("arange: too many elements");
  if (count < 0) throwf("arange: from {} by steps of {} never arrives at {}", start, step, stop);
  return generated("arange", static_cast<std::int64_t>(count), o, [&](double i) { return start + i * step; });
}
Tensor linspace(double start, double stop, std::int64_t count, TensorOptions o) {
  if (count < 0) throwf("linspace: count {} is not allowed; it must be at least 0", count);
  return generated("linspace", count, o, [&](double i) {
    return i > 0 ? std::lerp(start, stop, i / static_cast<double>(count - 1)) : start;
  });
}
Tensor eye(std::int64_t n, TensorOptions o) {
  Tensor t = zeros({n, n}, o);
  as_strided(t, {n}, {n + 1}, 0).fill_(1);
  return t;
}

Tensor empty_like(const Tensor& t) {
  const Tensor plain = empty(t.sizes(), options_of(t));
  return is_dense(t.sizes(), t.strides()) ? as_strided(plain, t.sizes(), t.strides(), 0) : plain;
}
Tensor zeros_like(const Tensor& t) { return zeros(t.sizes(), options_of(t)); }
Tensor ones_like(const Tensor& t) { return ones(t.sizes(), options_of(t)); }

Tensor from_blob(void* data, const Shape& sizes, DType dtype, std::function<void()> deleter) {
  auto impl = laid_out(sizes, dtype);
  if (!data && impl->numel > 0) throwf("from_blob: the memory for {} {} is null", to_string(sizes), to_string(dtype));
  impl->storage = Storage::wrap(data, count_bytes(*impl), std::move(deleter));
  return Tensor(std::move(impl));
}

Tensor as_strided(const Tensor& t, const Shape& sizes, const Shape& strides, std::int64_t offset) {
  auto impl = Ref<TensorImpl>::adopt(new TensorImpl(t.dtype(), sizes));
  impl->strides = strides;
  impl->offset = offset;
  impl->contiguous = is_contiguous(sizes, strides);
  impl->storage = t.unsafe_impl()->storage;
  std::int64_t last = offset;
  std::int64_t run = 0;
  bool fits = sizes.size() == strides.size() && offset >= 0;
  for (int i = 0; fits && i < sizes.size(); ++i)
    fits = strides[i] >= 0 && !__builtin_mul_overflow(sizes[i] - 1, strides[i], &run) &&
           !__builtin_add_overflow(last, run, &last);
  if (!fits || (impl->numel > 0 && static_cast<std::size_t>(last) >= impl->storage->bytes / size_of(t.dtype())))
    throwf("as_strided: sizes {}, strides {} (one for each size, at least 0) and offset {} leave a storage of {} bytes",
           to_string(sizes), to_string(strides), offset, impl->storage->bytes);
  return Tensor(std::move(impl));
}

}  // namespace gradual
