#include "weights.h"

#include <tuple>

#include "../core/ops/ops.h"
#include "../core/support/throwf.h"

namespace gradual::pt2 {
namespace {

// A stride of 0 repeats elements.
constexpr std::int64_t kMostRepeated = 1000;

// The elements that a tensor spans in its file; Error if a size or stride is negative or the sum overflows.
std::int64_t span_of(const StoredTensor& t) {
  if (t.sizes.size() != t.strides.size() || t.offset < 0) throw_error("its sizes and strides do not match");
  std::int64_t last = t.offset;
  for (std::size_t i = 0; i < t.sizes.size(); ++i) {
    if (t.sizes[i] < 0 || t.strides[i] < 0) throw_error("a size or a stride is negative");
    if (t.sizes[i] == 0) return 0;
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(t.sizes[i] - 1, t.strides[i], &reach) || __builtin_add_overflow(last, reach, &last))
      throw_error("its sizes and strides overflow");
  }
  return last + 1;
}

void check_bools(const Tensor& t) {
  const auto* const bytes = static_cast<const unsigned char*>(t.raw());
  for (std::size_t i = 0; i < t.nbytes(); ++i)
    if (bytes[i] > 1) throwf("byte {} is {}, and a bool is 0 or 1", i, bytes[i]);
}

Tensor read_tensor(const Archive& archive, const std::string& entry, const StoredTensor& t) {
  const std::size_t bytes = archive.size(entry);
  const std::int64_t spanned = span_of(t);
  const auto elements = static_cast<std::int64_t>(bytes / size_of(t.dtype));
  if (spanned > elements) throwf("{} has {} elements, the tensor spans {}", entry, elements, spanned);
  const Shape sizes(t.sizes);
  const Shape strides(t.strides);
  const bool whole = t.offset == 0 && numel(sizes) == elements && bytes % size_of(t.dtype) == 0 &&
                     (is_contiguous(sizes, strides) || numel(sizes) == 0);
  if (whole) {
    Tensor out = empty(sizes, {.dtype = t.dtype});
    if (bytes > 0) archive.read(entry, out.raw(), bytes);
    if (t.dtype == DType::bool_) check_bools(out);
    return out;
  }
  if (numel(sizes) == 0) return empty(sizes, {.dtype = t.dtype});
  if (numel(sizes) / kMostRepeated > elements)
    throwf("{} elements of a file of {}; an element may be repeated {} times", numel(sizes), elements, kMostRepeated);
  const Tensor all = empty({static_cast<std::int64_t>(bytes)}, {.dtype = DType::u8});
  archive.read(entry, all.raw(), bytes);
  const Tensor typed = from_blob(all.raw(), {elements}, t.dtype, [all] {});
  if (t.dtype == DType::bool_) check_bools(typed);
  const Tensor view = as_strided(typed, sizes, strides, t.offset);
  return gradual::clone(gradual::contiguous(view));
}

std::map<std::string, Weight> read_all(const Archive& archive, const std::string& folder, const std::string& config) {
  std::map<std::string, Weight> all;
  const std::string entry = folder + config;
  if (!archive.contains(entry)) return all;
  using Place = std::tuple<std::string, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>;
  std::map<Place, Tensor> read;
  for (const StoredTensor& t : parse_tensor_config(archive.text(entry), entry)) {
    in_context("tensor " + t.key, [&] {
      if (t.file.find('/') != std::string::npos || t.file.empty()) throwf("its file's name is '{}'", t.file);
      Tensor& tensor = read[{t.file, t.offset, t.sizes, t.strides}];
      if (!tensor.defined()) tensor = read_tensor(archive, folder + t.file, t);
      all[t.key] = {tensor, t.parameter, t.requires_grad};
    });
  }
  return all;
}

}  // namespace

std::map<std::string, Weight> read_weights(const Archive& archive) {
  return read_all(archive, "data/weights/", "model_weights_config.json");
}

std::map<std::string, Weight> read_constants(const Archive& archive) {
  return read_all(archive, "data/constants/", "model_constants_config.json");
}

}  // namespace gradual::pt2
