// Sizes, strides and dimension lists: up to eight int64 values without heap allocation.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace gradual {

inline constexpr int kMaxDims = 8;

class Shape {
 public:
  Shape() {}  // NOLINT(modernize-use-equals-default): leaves the unused entries alone, shapes are made often
  Shape(std::initializer_list<std::int64_t> dims)  // NOLINT(google-explicit-constructor)
      : Shape(dims.begin(), dims.end()) {}
  // One size or one dim: zeros(3), x.sum(1).
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  Shape(T size) : n_(1) {  // NOLINT(google-explicit-constructor)
    d_[0] = static_cast<std::int64_t>(size);
  }
  Shape(const std::vector<std::int64_t>& dims)  // NOLINT(google-explicit-constructor)
      : Shape(dims.data(), dims.data() + dims.size()) {}
  Shape(const std::int64_t* begin, const std::int64_t* end);  // Error past kMaxDims
  static Shape filled(int n, std::int64_t value);

  constexpr int size() const { return n_; }
  constexpr bool empty() const { return n_ == 0; }
  constexpr std::int64_t operator[](int i) const { return d_[i]; }
  constexpr std::int64_t& operator[](int i) { return d_[i]; }
  constexpr const std::int64_t* begin() const { return d_; }
  constexpr const std::int64_t* end() const { return d_ + n_; }
  constexpr std::int64_t* begin() { return d_; }
  constexpr std::int64_t* end() { return d_ + n_; }
  std::int64_t back() const { return d_[n_ - 1]; }
  Shape first(int n) const { return {begin(), begin() + n}; }
  Shape last(int n) const { return {end() - n, end()}; }

  void push_back(std::int64_t value);  // Error past kMaxDims
  void insert(int at, std::int64_t value);
  void erase(int at);

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    if (a.n_ != b.n_) return false;
    for (int i = 0; i < a.n_; ++i)
      if (a.d_[i] != b.d_[i]) return false;
    return true;
  }

 private:
  std::int64_t d_[kMaxDims];
  int n_ = 0;
};

// Product of the sizes; Error if it overflows int64 or a size is negative.
std::int64_t numel(const Shape& sizes);
// Row-major strides, in elements.
Shape contiguous_strides(const Shape& sizes);
bool is_contiguous(const Shape& sizes, const Shape& strides);
bool is_dense(const Shape& sizes, const Shape& strides);  // without gaps or overlaps, in any order of dims
// True for images [N, C, H, W] with contiguous channels and no gaps; false if they are row-major too.
bool is_channels_last(const Shape& sizes, const Shape& strides);
// Wraps a negative dim; Error naming `op` if it is out of range. A 0-d tensor counts as having one dim.
int wrap_dim(std::int64_t dim, int ndim, const char* op);
// The common shape of two operands by NumPy's rules; Error naming `op` and both shapes if there is none.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);
// Strides that view a tensor of the given sizes and strides with new sizes, without a copy; false if that is not
// possible. infer_size has resolved a size of -1 before.
bool view_strides(const Shape& sizes, const Shape& strides, const Shape& new_sizes, Shape& new_strides);
// Replaces one -1 by the size that keeps numel; Error if none fits.
Shape infer_size(const Shape& new_sizes, std::int64_t numel, const char* op);
// "[2, 3]"
std::string to_string(const Shape& shape);

}  // namespace gradual
