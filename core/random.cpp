// Random numbers as tensors. Element i of a call is word i of its Philox stream (normals: words 2i, 2i+1).
#include <string>
#include <vector>

#include "convert.h"
#include "generator.h"
#include "parallel.h"
#include "philox.h"
#include "tensor.h"

namespace gradual {
namespace {

__extension__ using Wide = unsigned __int128;  // for the upper half of a 64 x 64 bit product

thread_local Generator* current = nullptr;

thread_local DrawScope* draws = nullptr;

Generator& thread_generator() {
  thread_local Generator generator;
  return generator;
}

// Writes f(words of the chunk) into contiguous `t`, in chunks that do not depend on the number of threads.
template <class F> void fill_random(const Tensor& t, int words_each, RandomKey key, F value) {
  constexpr std::int64_t kChunk = 4096;
  auto* out = static_cast<char*>(t.raw());
  const std::size_t width = size_of(t.dtype());
  const DType dtype = t.dtype();
  parallel_for(t.numel(), kChunk, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t n = end - begin;
    std::vector<std::uint32_t> words(static_cast<std::size_t>(n * words_each));
    philox_fill(key.seed, key.stream, static_cast<std::uint64_t>(begin * words_each), words.data(), n * words_each);
    std::vector<double> values(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i)
      values[static_cast<std::size_t>(i)] = value(&words[static_cast<std::size_t>(i * words_each)]);
    store_from_double(dtype, values.data(), out + static_cast<std::size_t>(begin) * width, 1, n);
  });
}

template <class F> const Tensor& fill_any(const Tensor& t, int words_each, RandomKey key, F value) {
  if (t.is_contiguous()) {
    fill_random(t, words_each, key, value);
  } else {
    const Tensor dense = empty(t.sizes(), {.dtype = t.dtype(), .device = t.device()});
    fill_random(dense, words_each, key, value);
    t.copy_(dense);
  }
  t.unsafe_impl()->storage->version.fetch_add(1);
  return t;
}

double uniform(const std::uint32_t* w) { return static_cast<double>(uniform01(w[0])); }

}  // namespace

DrawScope::DrawScope(std::vector<RandomKey>& log, Mode mode) : log_(log), mode_(mode), outer_(draws) { draws = this; }
DrawScope::~DrawScope() { draws = outer_; }

RandomKey Generator::next() {
  // Out to the first scope that replays; those that record inside of it write down what it gives.
  DrawScope* source = draws;
  while (source && source->mode_ == DrawScope::Mode::record) source = source->outer_;
  if (source && source->used_ == source->log_.size())
    fail("random numbers: a computation that runs again draws more than it did the first time (" +
         std::to_string(source->used_) + " draws)");
  const RandomKey key = source ? source->log_[source->used_++] : RandomKey{seed_, stream_++};
  for (DrawScope* s = draws; s != source; s = s->outer_) s->log_.push_back(key);
  return key;
}

Generator& default_generator() { return current ? *current : thread_generator(); }
void manual_seed(std::uint64_t seed) { default_generator().manual_seed(seed); }
GeneratorScope::GeneratorScope(Generator& generator) : saved_(current) { current = &generator; }
GeneratorScope::~GeneratorScope() { current = saved_; }

const Tensor& Tensor::uniform_(double low, double high, Generator& g) const {
  return fill_any(*this, 1, g.next(), [=](const std::uint32_t* w) { return low + (high - low) * uniform(w); });
}

const Tensor& Tensor::normal_(double mean, double std, Generator& g) const {
  return fill_any(*this, 2, g.next(),
                  [=](const std::uint32_t* w) { return mean + std * static_cast<double>(box_muller(w[0], w[1])[0]); });
}

Tensor rand(const Shape& sizes, TensorOptions o, Generator& g) {
  const Tensor t = empty(sizes, {.dtype = o.dtype, .device = o.device}).uniform_(0, 1, g);
  return Tensor(t).set_requires_grad(o.requires_grad);
}

Tensor randn(const Shape& sizes, TensorOptions o, Generator& g) {
  const Tensor t = empty(sizes, {.dtype = o.dtype, .device = o.device}).normal_(0, 1, g);
  return Tensor(t).set_requires_grad(o.requires_grad);
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, TensorOptions o, Generator& g) {
  if (high <= low) fail("randint: low " + std::to_string(low) + " must lie below high " + std::to_string(high));
  const auto range = static_cast<std::uint64_t>(high - low);
  const RandomKey key = g.next();
  const Tensor t = empty(sizes, {.dtype = o.dtype, .device = o.device});
  // The upper 64 bits of word pair * range: a bias below range / 2^64.
  std::vector<std::int64_t> values(static_cast<std::size_t>(t.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits =
        std::uint64_t{philox_word(key.seed, key.stream, 2 * i)} << 32 | philox_word(key.seed, key.stream, 2 * i + 1);
    values[i] = low + static_cast<std::int64_t>(static_cast<Wide>(bits) * range >> 64);
  }
  store_from_i64(o.dtype, values.data(), t.raw(), 1, t.numel());
  return t;
}

Tensor randperm(std::int64_t n, Generator& g) {
  if (n < 0) fail("randperm: " + std::to_string(n) + " is not allowed; it must be at least 0");
  const RandomKey key = g.next();
  Tensor t = arange(0, static_cast<double>(n));
  auto* p = t.data<std::int64_t>();
  for (std::int64_t i = n - 1; i > 0; --i) {  // Fisher and Yates
    const std::uint64_t bits = philox_word(key.seed, key.stream, static_cast<std::uint64_t>(2 * i)) |
                               std::uint64_t{philox_word(key.seed, key.stream, static_cast<std::uint64_t>(2 * i + 1))}
                                   << 32;
    std::swap(p[i], p[static_cast<Wide>(bits) * static_cast<std::uint64_t>(i + 1) >> 64]);
  }
  return t;
}

}  // namespace gradual
