// Printing tensors by PyTorch's rules: four digits, one format for all numbers of a tensor, columns aligned, scientific
// where the numbers span more than three decades, and the edges only past 1000 elements.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "convert.h"
#include "tensor.h"

namespace gradual {
namespace {

constexpr std::int64_t kThreshold = 1000;
constexpr std::int64_t kEdge = 3;
constexpr std::size_t kLineWidth = 80;
constexpr std::size_t kIndent = 7;  // of what follows "tensor("

std::string print_number(const char* format, double v) {
  char text[400];
  std::snprintf(text, sizeof text, format, v);
  return text;
}

// Reads single elements, wherever they lie.
struct Reader {
  DType dtype;
  const char* data;
  double floating(std::int64_t offset) const {
    double v = 0;
    load_to_double(dtype, at(offset), 1, &v, 1);
    return v;
  }
  std::int64_t integer(std::int64_t offset) const {
    std::int64_t v = 0;
    load_to_i64(dtype, at(offset), 1, &v, 1);
    return v;
  }

 private:
  const char* at(std::int64_t offset) const { return data + offset * static_cast<std::int64_t>(size_of(dtype)); }
};

enum class Style { integer, boolean, whole, fixed, scientific };

struct Format {
  Style style = Style::integer;
  std::size_t width = 1;
  std::string operator()(const Reader& r, std::int64_t offset) const;
};

std::string plain(Style style, const Reader& r, std::int64_t offset) {
  if (style == Style::integer) return std::to_string(r.integer(offset));
  if (style == Style::boolean) return r.integer(offset) ? "True" : "False";
  const double v = r.floating(offset);
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  if (style == Style::whole) return print_number("%.0f.", v);
  return print_number(style == Style::fixed ? "%.4f" : "%.4e", v);
}

std::string Format::operator()(const Reader& r, std::int64_t offset) const {
  const std::string text = plain(style, r, offset);
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

// Calls f(index along `dim`) for what is printed of it; gap() where entries are left out.
template <class F, class G> void for_shown(std::int64_t n, bool summarize, const F& f, const G& gap) {
  if (!summarize || n <= 2 * kEdge) {
    for (std::int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  for (std::int64_t i = 0; i < kEdge; ++i) f(i);
  gap();
  for (std::int64_t i = n - kEdge; i < n; ++i) f(i);
}

void collect(const Tensor& t, bool summarize, int dim, std::int64_t offset, std::vector<std::int64_t>& shown) {
  if (dim == t.ndim()) {
    shown.push_back(offset);
    return;
  }
  for_shown(
      t.sizes()[dim], summarize,
      [&](std::int64_t i) { collect(t, summarize, dim + 1, offset + i * t.strides()[dim], shown); }, [] {});
}

Style floating_style(const Reader& r, const std::vector<std::int64_t>& shown) {
  double low = INFINITY;
  double high = 0;
  bool whole = true;
  for (const std::int64_t offset : shown) {
    const double v = std::fabs(r.floating(offset));
    if (v == 0 || !std::isfinite(v)) continue;
    low = std::min(low, v);
    high = std::max(high, v);
    whole = whole && v == std::ceil(v);
  }
  if (high == 0) return Style::whole;
  if (high / low > 1000 || high > 1e8 || (!whole && low < 1e-4)) return Style::scientific;
  return whole ? Style::whole : Style::fixed;
}

Format choose(const Tensor& t, const Reader& r, bool summarize) {
  std::vector<std::int64_t> shown;
  collect(t, summarize, 0, 0, shown);
  Format f;
  if (t.dtype() == DType::bool_) f.style = Style::boolean;
  if (t.is_floating()) f.style = floating_style(r, shown);
  for (const std::int64_t offset : shown) f.width = std::max(f.width, plain(f.style, r, offset).size());
  return f;
}

struct Printer {
  const Tensor& t;
  Reader reader;
  bool summarize;
  Format format;

  std::string row(std::int64_t offset, std::size_t indent) const {
    std::vector<std::string> cells;
    for_shown(
        t.sizes().back(), summarize,
        [&](std::int64_t i) { cells.push_back(format(reader, offset + i * t.strides().back())); },
        [&] { cells.emplace_back(" ..."); });
    const std::size_t room = kLineWidth > indent ? kLineWidth - indent : 0;
    const std::size_t per_line = std::max<std::size_t>(1, room / (format.width + 2));
    std::string text = "[";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) text += i % per_line == 0 ? ",\n" + std::string(indent + 1, ' ') : ", ";
      text += cells[i];
    }
    return text + "]";
  }

  std::string block(int dim, std::int64_t offset, std::size_t indent) const {
    if (t.ndim() == 0) return format(reader, 0);
    if (dim == t.ndim() - 1) return row(offset, indent);
    std::string separator(",");
    separator.append(static_cast<std::size_t>(t.ndim() - dim - 1), '\n').append(indent + 1, ' ');
    std::string text = "[";
    const auto append = [&](const std::string& part) { text += (text.size() > 1 ? separator : "") + part; };
    for_shown(
        t.sizes()[dim], summarize,
        [&](std::int64_t i) { append(block(dim + 1, offset + i * t.strides()[dim], indent + 1)); },
        [&] { append("..."); });
    return text + "]";
  }
};

}  // namespace

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "tensor(undefined)";
  const Tensor t = tensor.device().is_cpu() ? tensor : tensor.detach().to(Device::cpu());
  std::string text = "tensor(";
  if (t.numel() == 0) {
    text += "[]";
  } else {
    const Reader reader{t.dtype(), static_cast<const char*>(t.raw())};
    const bool summarize = t.numel() > kThreshold;
    text += Printer{t, reader, summarize, choose(t, reader, summarize)}.block(0, 0, kIndent);
  }
  std::string suffix = "shape=" + to_string(t.sizes()) + ", dtype=" + std::string(name(t.dtype()));
  if (!tensor.device().is_cpu()) suffix += ", device=" + to_string(tensor.device());
  if (tensor.requires_grad()) suffix += ", requires_grad=True";
  const std::size_t line = text.size() - (text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
  return text + (line + 2 + suffix.size() + 1 > kLineWidth ? ",\n" + std::string(kIndent, ' ') : ", ") + suffix + ")";
}

}  // namespace gradual
