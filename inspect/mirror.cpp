#include "mirror.h"

#include "../core/ops/ops.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

std::int64_t elements(const Tensor& t) {
  return static_cast<std::int64_t>(t.unsafe_impl()->storage->bytes / size_of(t.dtype()));
}

Tensor copied(const Tensor& flat) {
  const Tensor here = flat.to(Device::cpu());
  if (here.is_floating() && here.dtype() != DType::f64) return cast(here, DType::f64);
  return here.is_same(flat) ? here.clone() : here;
}

}  // namespace

Tensor f64_of(const Tensor& t) {
  const Unseen unseen;
  return t.defined() ? copied(contiguous(t.detach())) : Tensor();
}

Mirror::Entry& Mirror::entry_of(const Tensor& t, bool fresh) {
  const Storage& storage = *t.unsafe_impl()->storage;
  const auto* begin = static_cast<const char*>(storage.data);
  if (knows(t) && (fresh || storages_[begin].version == storage.version.load())) return storages_[begin];
  // Older storages at overlapping addresses no longer exist.
  const char* end = begin + storage.bytes;
  auto at = storages_.lower_bound(begin);
  if (at != storages_.begin() && std::prev(at)->second.end > begin) --at;
  while (at != storages_.end() && at->first < end) at = storages_.erase(at);
  Entry& entry = storages_[begin];
  entry = {.id = storage.id, .version = storage.version.load(), .end = end};
  if (!fresh) entry.numbers = copied(as_strided(t, {elements(t)}, {1}, 0));
  return entry;
}

void Mirror::own(const Tensor& t) {
  if (!t.defined() || t.numel() == 0) return;
  const Unseen unseen;
  Tensor& numbers = entry_of(t, false).numbers;
  if (numbers.unsafe_impl()->storage->refs.load() > 1) numbers = numbers.clone();
}

void Mirror::forget(const Tensor& t) {
  if (knows(t)) storages_.erase(static_cast<const char*>(t.unsafe_impl()->storage->data));
}

bool Mirror::knows(const Tensor& t) const {
  const auto found = storages_.find(static_cast<const char*>(t.unsafe_impl()->storage->data));
  return found != storages_.end() && found->second.id == t.unsafe_impl()->storage->id;
}

Tensor Mirror::of(const Tensor& t) {
  if (!t.defined()) return {};
  if (t.numel() == 0) return empty(t.sizes(), {.dtype = t.is_floating() ? DType::f64 : t.dtype()});
  const Unseen unseen;
  return as_strided(entry_of(t, false).numbers, t.sizes(), t.strides(), t.offset());
}

void Mirror::set(const Tensor& t, const Tensor& numbers) {
  if (!t.defined() || t.numel() == 0) return;
  const Unseen unseen;
  const std::int64_t n = elements(t);
  const bool whole = t.numel() == n && numbers.strides() == t.strides() && elements(numbers) == n;
  if (whole) {
    entry_of(t, true).numbers = as_strided(numbers, {n}, {1}, 0);
  } else {
    own(t);
    of(t).copy_(numbers);
  }
  written(t);
}

void Mirror::written(const Tensor& t) {
  if (!t.defined() || t.numel() == 0 || !knows(t)) return;
  const Storage& storage = *t.unsafe_impl()->storage;
  storages_[static_cast<const char*>(storage.data)].version = storage.version.load();
}

}  // namespace gradual::inspect
