// Prints tensors by PyTorch's rules: four digits, one format for all numbers of a tensor, columns aligned, scientific
// notation if the numbers span more than three decades, and only the edges of more than 1000 elements.
#include <fmt/format.h>
#include <ostream>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tensor.h"

namespace gradual {
namespace {

constexpr std::int64_t kThreshold = 1000;
constexpr std::int64_t kEdge = 3;
constexpr std::size_t kLineWidth = 80;
constexpr std::size_t kIndent = 7;  // width of "tensor("

struct Printer {
  const Tensor& t;
  const char* format = "{:.0f}.";  // for finite floats
  std::size_t width = 1;

  // The printed indices along a dim of n entries; -1 stands for the omitted ones.
  std::vector<std::int64_t> shown(std::int64_t n) const {
    const bool cut = t.numel() > kThreshold && n > 2 * kEdge;
    std::vector<std::int64_t> indices(static_cast<std::size_t>(cut ? 2 * kEdge + 1 : n));
    std::iota(indices.begin(), indices.end(), 0);
    if (cut) std::iota(indices.begin() + kEdge, indices.end(), n - kEdge - 1);
    if (cut) indices[kEdge] = -1;
    return indices;
  }

  template <class T> T value(std::int64_t offset) const {
    return as_strided(t, {}, {}, t.offset() + offset).template item<T>();
  }

  std::string number(std::int64_t offset) const {
    if (t.dtype() == DType::bool_) return value<bool>(offset) ? "True" : "False";
    if (!t.is_floating()) return std::to_string(value<std::int64_t>(offset));
    const double v = value<double>(offset);
    if (!std::isfinite(v)) return std::isnan(v) ? "nan" : v < 0 ? "-inf" : "inf";
    return fmt::format(fmt::runtime(format), v);
  }

  void collect(int dim, std::int64_t offset, std::vector<std::int64_t>& offsets) const {
    if (dim == t.dim()) return offsets.push_back(offset);
    for (std::int64_t i : shown(t.sizes()[dim]))
      if (i >= 0) collect(dim + 1, offset + i * t.strides()[dim], offsets);
  }

  // Format and width, from the numbers that are printed.
  void choose() {
    std::vector<std::int64_t> offsets;
    collect(0, 0, offsets);
    double low = INFINITY;
    double high = 0;
    bool whole = true;
    for (std::int64_t offset : offsets) {
      const double v = std::fabs(value<double>(offset));
      if (v == 0 || !std::isfinite(v)) continue;
      low = std::min(low, v);
      high = std::max(high, v);
      whole = whole && v == std::ceil(v);
    }
    if (!whole) format = "{:.4f}";
    if (high > 0 && (high / low > 1000 || high > 1e8 || (!whole && low < 1e-4))) format = "{:.4e}";
    for (std::int64_t offset : offsets) width = std::max(width, number(offset).size());
  }

  std::string block(int dim, std::int64_t offset, std::size_t indent) const {
    if (dim == t.dim()) return fmt::format("{:>{}}", number(offset), width);
    const bool row = dim == t.dim() - 1;
    const std::size_t room = kLineWidth > indent ? kLineWidth - indent : 0;
    const std::size_t per_line = row ? std::max<std::size_t>(1, room / (width + 2)) : 1;
    const auto lines = static_cast<std::size_t>(row ? 1 : t.dim() - dim - 1);
    const std::string line_break = "," + std::string(lines, '\n') + std::string(indent + 1, ' ');
    std::string text = "[";
    std::size_t n = 0;
    for (std::int64_t i : shown(t.sizes()[dim])) {
      if (n > 0) text += n % per_line == 0 ? line_break : ", ";
      if (i < 0) text += row ? " ..." : "...";
      else text += block(dim + 1, offset + i * t.strides()[dim], indent + 1);
      ++n;
    }
    return text + "]";
  }
};

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "tensor(undefined)";
  const Tensor t = tensor.detach().to(Device::cpu());
  Printer printer{t};
  if (t.numel() > 0) printer.choose();
  std::string text = "tensor(" + (t.numel() > 0 ? printer.block(0, 0, kIndent) : "[]");
  std::string suffix = fmt::format("shape={}, dtype={}", to_string(t.sizes()), to_string(t.dtype()));
  if (!tensor.device().is_cpu()) suffix += ", device=" + to_string(tensor.device());
  if (tensor.requires_grad()) suffix += ", requires_grad=True";
  const std::size_t line = text.size() - (text.rfind('\n') + 1);  // of the last line; npos + 1 is 0
  return text + (line + 2 + suffix.size() + 1 > kLineWidth ? ",\n" + std::string(kIndent, ' ') : ", ") + suffix + ")";
}

std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << to_string(t); }

}  // namespace gradual
