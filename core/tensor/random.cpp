// Random numbers as tensors. Element i of a call is word i of its Philox stream (normals: words 2i, 2i+1).
#include <algorithm>
#include <cmath>

#include "../formats/convert.h"
#include "../support/parallel.h"
#include "../support/philox.h"
#include "../support/throwf.h"
#include "tensor.h"

namespace gradual {
namespace {

__extension__ using Wide = unsigned __int128;  // for the upper half of a 64 x 64 bit product

// Writes value(words of the element) to each element of t, in chunks that do not depend on the number of threads.
// Numbers for a GPU are drawn on the CPU too, because logarithms and cosines of the two may differ in the last bit.
template <class F> const Tensor& fill_random(const Tensor& t, int words_each, RandomKey key, F value) {
  if (!t.is_floating()) throwf("{}: rand, randn, uniform_ and normal_ fill floats; use randint", to_string(t.dtype()));
  constexpr std::int64_t kChunk = 4096;
  const DType dtype = t.dtype();
  const Tensor dense = t.is_contiguous() && t.device().is_cpu() ? t : empty(t.sizes(), {.dtype = dtype});
  auto* out = static_cast<char*>(dense.raw());
  parallel_for(t.numel(), kChunk, [&](std::int64_t begin, std::int64_t end) {
    const auto n = static_cast<std::size_t>(end - begin);
    std::vector<std::uint32_t> words(n * static_cast<std::size_t>(words_each));
    philox_fill(key.seed, key.stream, static_cast<std::uint64_t>(begin * words_each), words.data(),
                (end - begin) * words_each);
    std::vector<double> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = value(&words[i * static_cast<std::size_t>(words_each)]);
    cast_and_store(dtype, values.data(), out + static_cast<std::size_t>(begin) * size_of(dtype), 1, end - begin);
  });
  if (!dense.is_same(t)) t.detach().copy_(dense);
  t.unsafe_impl()->storage->version.fetch_add(1);
  return t;
}

// A number below `range` from two words: the upper 64 bits of their product with it, a bias below range / 2^64.
std::uint64_t draw_below(std::int64_t range, RandomKey key, std::uint64_t high_word, std::uint64_t low_word) {
  const std::uint64_t bits =
      std::uint64_t{philox_word(key.seed, key.stream, high_word)} << 32 | philox_word(key.seed, key.stream, low_word);
  return static_cast<std::uint64_t>(static_cast<Wide>(bits) * static_cast<std::uint64_t>(range) >> 64);
}

}  // namespace

const Tensor& Tensor::uniform_(double low, double high, Generator& g) const {
  if (!(low <= high && std::isfinite(high - low))) throwf("uniform_: from {} to {} is not a finite range", low, high);
  const auto value = [=](const std::uint32_t* w) { return low + (high - low) * static_cast<double>(uniform01(w[0])); };
  return fill_random(*this, 1, g.next(), value);
}

const Tensor& Tensor::normal_(double mean, double std, Generator& g) const {
  if (!(std >= 0 && std::isfinite(mean + std)))
    throwf("normal_: mean {} and deviation {} must be finite, the deviation at least 0", mean, std);
  const auto value = [=](const std::uint32_t* w) {
    return mean + std * static_cast<double>(box_muller(w[0], w[1])[0]);
  };
  return fill_random(*this, 2, g.next(), value);
}

Tensor rand(const Shape& s, TensorOptions o, Generator& g) {
  // A value that a narrow dtype would round to 1 becomes the largest number below 1.
  const double most = is_floating(o.dtype) ? 1 - float_info(o.dtype).epsilon / 2 : 1;
  const auto value = [=](const std::uint32_t* w) { return std::min<double>(uniform01(w[0]), most); };
  return fill_random(empty(s, o), 1, g.next(), value);
}
Tensor randn(const Shape& s, TensorOptions o, Generator& g) { return empty(s, o).normal_(0, 1, g); }

Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, TensorOptions o, Generator& g) {
  if (high <= low) throwf("randint: low {} must lie below high {}", low, high);
  for (const std::int64_t end : {low, high - 1}) check_holds(o.dtype, static_cast<double>(end), "randint");
  const Tensor t = empty(sizes, {.dtype = o.dtype});
  const Tensor exact = o.dtype == DType::i64 ? t : empty(sizes, {.dtype = DType::i64});
  auto* values = exact.data<std::int64_t>();
  const RandomKey key = g.next();
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(t.numel()); ++i)
    values[i] = low + static_cast<std::int64_t>(draw_below(high - low, key, 2 * i, 2 * i + 1));
  if (!exact.is_same(t)) cast_and_store(o.dtype, values, t.raw(), 1, t.numel());
  return t.to(o.device);
}

Tensor randperm(std::int64_t n, Generator& g) {
  if (n < 0) throwf("randperm: {} is not allowed; it must be at least 0", n);
  const RandomKey key = g.next();
  Tensor t = arange(0, static_cast<double>(n));
  auto* p = t.data<std::int64_t>();
  for (std::int64_t i = n - 1; i > 0; --i) {  // Fisher and Yates
    const auto word = static_cast<std::uint64_t>(2 * i);
    std::swap(p[i], p[draw_below(i + 1, key, word + 1, word)]);
  }
  return t;
}

}  // namespace gradual
