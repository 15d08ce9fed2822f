#include "mirror.h"

#include "../core/ops/ops.h"
#include "numbers.h"

namespace gradual::inspect {
namespace {

std::int64_t elements(const Tensor& t) {
  return static_cast<std::int64_t>(t.unsafe_impl()->storage->bytes / size_of(t.dtype()));
}

// The number of elements from the first of `t` in memory to the last.
std::int64_t span(const Tensor& t) {
  std::int64_t n = 1;
  for (int d = 0; d < t.dim(); ++d) n += (t.sizes()[d] - 1) * t.strides()[d];
  return n;
}

Tensor copied(const Tensor& flat) {
  const Tensor here = flat.to(Device::cpu());
  if (here.is_floating() && here.dtype() != DType::f64) return cast(here, DType::f64);
  return here.is_same(flat) ? here.clone() : here;
}

}  // namespace

Tensor widened(const Tensor& t) {
  const Unseen unseen;
  if (t.numel() > 0 && span(t) == t.numel())
    return as_strided(copied(as_strided(t, {t.numel()}, {1}, t.offset())), t.sizes(), t.strides(), 0);
  return copied(contiguous(t.detach()));
}

Mirror::Entry& Mirror::entry_of(const Tensor& t, bool fresh) {
  const Storage& storage = *t.unsafe_impl()->storage;
  const auto* begin = static_cast<const char*>(storage.data);
  const auto found = storages_.find(begin);
  if (found != storages_.end() && found->second.id == storage.id) {
    Entry& entry = found->second;
    if (fresh || entry.version == storage.version.load()) return entry;
  }
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

Mirror Mirror::clone() const {
  const Unseen unseen;
  Mirror copy = *this;
  for (auto& [begin, entry] : copy.storages_) entry.numbers = entry.numbers.clone();
  return copy;
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
  Entry& entry = entry_of(t, whole);
  if (whole) entry.numbers = as_strided(numbers, {n}, {1}, 0);
  else as_strided(entry.numbers, t.sizes(), t.strides(), t.offset()).copy_(numbers);
  written(t);
}

void Mirror::written(const Tensor& t) {
  if (!t.defined() || t.numel() == 0 || !knows(t)) return;
  const Storage& storage = *t.unsafe_impl()->storage;
  storages_[static_cast<const char*>(storage.data)].version = storage.version.load();
}

}  // namespace gradual::inspect
