// Tensor's methods that are ops: each calls the function of ops.h. The ops in place have no function.
#include "../support/throwf.h"
#include "dispatch.h"
#include "ops.h"

namespace gradual {

Tensor Tensor::to(DType d, Loc l) const { return cast(*this, d, l); }
Tensor Tensor::to(Device d, Loc l) const { return to_device(*this, d, l); }
Tensor Tensor::to(Device d, DType t, Loc l) const { return cast(to_device(*this, d, l), t, l); }
Tensor Tensor::contiguous(Loc l) const { return gradual::contiguous(*this, l); }
Tensor Tensor::reshape(const Shape& s, Loc l) const { return gradual::reshape(*this, s, l); }
Tensor Tensor::view(const Shape& s, Loc l) const { return gradual::view(*this, s, l); }
Tensor Tensor::flatten(int a, int b, Loc l) const { return gradual::flatten(*this, a, b, l); }
Tensor Tensor::permute(const Shape& d, Loc l) const { return gradual::permute(*this, d, l); }
Tensor Tensor::transpose(int a, int b, Loc l) const { return gradual::transpose(*this, a, b, l); }
Tensor Tensor::t(Loc l) const {
  if (dim() < 2) throw_error("t: needs at least two dims, the tensor has shape " + to_string(sizes()));
  return gradual::transpose(*this, -2, -1, l);
}
Tensor Tensor::expand(const Shape& s, Loc l) const { return gradual::expand(*this, s, l); }
Tensor Tensor::squeeze(int d, Loc l) const { return gradual::squeeze(*this, d, l); }
Tensor Tensor::unsqueeze(int d, Loc l) const { return gradual::unsqueeze(*this, d, l); }
Tensor Tensor::select(int d, std::int64_t i, Loc l) const { return gradual::select(*this, d, i, l); }
Tensor Tensor::narrow(int d, std::int64_t s, std::int64_t n, Loc l) const { return gradual::narrow(*this, d, s, n, l); }
Tensor Tensor::index(std::initializer_list<Index> indices, Loc l) const {
  if (static_cast<int>(indices.size()) > dim())
    throwf("index: {} indices for a tensor of shape {}", indices.size(), to_string(sizes()));
  Tensor t = *this;
  int dim = 0;
  for (const Index& i : indices)
    t = i.integer ? gradual::select(t, dim, *i.integer, l) : gradual::slice(t, dim++, i.slice, l);
  return t;
}
#define GRADUAL_UNARY_OP(name, ...) \
  Tensor Tensor::name(Loc l) const { return gradual::name(*this, l); }
#define GRADUAL_UNARY_OPTION_OP(name, kind, rule, infer, type, option, ...) \
  Tensor Tensor::name(type option, Loc l) const { return gradual::name(*this, option, l); }
#define GRADUAL_BINARY_OP(name, ...)                                                              \
  Tensor Tensor::name(const Tensor& o, Loc l) const { return gradual::name({*this, l}, {o, l}); } \
  Tensor Tensor::name(double v, Loc l) const { return gradual::name({*this, l}, {v, l}); }
#define GRADUAL_REDUCTION_OP(name, ...) \
  Tensor Tensor::name(const Shape& d, bool k, Loc l) const { return gradual::name(*this, d, k, l); }
#include "../ops.def"
Tensor Tensor::amax(const Shape& d, bool k, Loc l) const { return gradual::max(*this, d, k, l); }
Tensor Tensor::argmax(OptionalDim d, bool k, Loc l) const { return gradual::argmax(*this, d, k, l); }
Tensor Tensor::argmin(OptionalDim d, bool k, Loc l) const { return gradual::argmin(*this, d, k, l); }
Tensor Tensor::var(const Shape& d, bool k, double c, Loc l) const { return gradual::var(*this, d, k, c, l); }
Tensor Tensor::norm(double p, const Shape& d, bool k, Loc l) const { return gradual::norm(*this, p, d, k, l); }
Tensor Tensor::clamp(double a, double b, Loc l) const { return gradual::clamp(*this, a, b, l); }
Tensor Tensor::matmul(const Tensor& o, Loc l) const { return gradual::matmul(*this, o, l); }

static const Tensor kNone;  // in place of an operand: the number is in the attributes

static const Tensor& in_place(OpId op, TensorRefs inputs, const Attrs& attrs, Loc loc) {
  if (inputs.size() > 1 && &inputs[1] != &kNone && !inputs[1].defined())
    throwf("{}: the operand is an undefined tensor", to_string(op));
  dispatch(op, inputs, attrs, loc);
  return inputs[0];
}
const Tensor& Tensor::add_(const Tensor& y, double alpha, Loc l) const {
  return in_place(OpId::add_, {this, &y}, ScalarAttrs{alpha}, l);
}
const Tensor& Tensor::add_(double v, Loc l) const { return in_place(OpId::add_, {this, &kNone}, ScalarAttrs{v}, l); }
const Tensor& Tensor::mul_(const Tensor& y, Loc l) const { return in_place(OpId::mul_, {this, &y}, {}, l); }
const Tensor& Tensor::mul_(double v, Loc l) const { return in_place(OpId::mul_, {this, &kNone}, ScalarAttrs{v}, l); }
const Tensor& Tensor::copy_(const Tensor& y, Loc l) const { return in_place(OpId::copy_, {this, &y}, {}, l); }
const Tensor& Tensor::fill_(double v, Loc l) const { return in_place(OpId::fill_, {this}, ScalarAttrs{v}, l); }

// The dividend of /=. Error if it is not floating.
static const Tensor& dividend(const Tensor& x) {
  if (x.is_floating()) return x;
  throwf("/=: the quotient is floating and cannot be written into {}; write x = x / y", describe(x));
}
// The divisor's gradient reads the dividend, which the result overwrites: clones it.
const Tensor& Tensor::operator/=(const Tensor& o) const {
  return copy_(gradual::div(o.defined() && o.requires_grad() ? gradual::clone(dividend(*this)) : dividend(*this), o));
}
const Tensor& Tensor::operator/=(double v) const { return copy_(gradual::div(dividend(*this), v)); }

Tensor Tensor::operator[](const Tensor& mask) const {
  const int n = mask.dim();
  if (mask.dtype() != DType::bool_ || n == 0 || n > dim() || mask.sizes() != sizes().first(n))
    throwf("index: a mask must be bool and have the leading sizes of {}, given {}", to_string(sizes()), describe(mask));
  const std::vector<std::int64_t> flags = mask.to_vector<std::int64_t>();
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i < flags.size(); ++i)
    if (flags[i]) rows.push_back(static_cast<std::int64_t>(i));
  const auto count = static_cast<std::int64_t>(rows.size());
  return index_select(flatten(0, n - 1), 0, from_data(rows, count, {.dtype = DType::i64, .device = device()}));
}

}  // namespace gradual
