// docs/precision.md: what autocast does with every public function, and where that differs from PyTorch's lists.
#include <doctest/doctest.h>
#include <gradual/amp/autocast.h>
#include <gradual/core/ops/derived_ops.h>
#include <gradual/core/ops/ops.h>
#include <gradual/nn/recurrent.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "page_part.h"

namespace gradual::test {
namespace {

// PyTorch's list of a function on CUDA (torch/csrc, autocast_mode.h). `promote`: also functions that promote mixed
// dtypes without autocast. `unlisted`: the inputs' dtype, or no floating result.
enum class List { unlisted, lower, fp32, promote, banned };
// The dtype of the result for f16 and f32 inputs under autocast to f16. `promote` is called with one more operand of
// f32. `other`: no floating result, or none that depends on an input's dtype.
enum class Gives { input, lower, fp32, promote, banned, other };

struct Entry {
  const char* name;
  List pytorch;
  Gives gives;
  Tensor (*call)(const Tensor& x);  // x [1, 2, 4, 4]: halves
  const char* reason = "";          // why it differs from PyTorch
};

// Operands of other shapes and dtypes with x's numbers or zeros.
Tensor matrix(const Tensor& x) { return x.detach().reshape({8, 4}); }
Tensor square_matrix(const Tensor& x) { return matrix(x).narrow(0, 0, 4); }
Tensor vector(const Tensor& x) { return matrix(x).select(0, 0); }
Tensor filters(const Tensor& x) { return x.detach().narrow(2, 0, 2); }  // [1, 2, 2, 4]
Tensor wider(const Tensor& x) { return x.detach().to(DType::f64).to(DType::f32); }
Tensor places(const Tensor& x, std::int64_t n) { return zeros({n}, {.dtype = DType::i64, .device = x.device()}); }
Tensor truth(const Tensor& x) { return ones(x.sizes(), {.dtype = DType::bool_, .device = x.device()}); }
ConvAttrs conv_attrs() {
  ConvAttrs attrs;
  attrs.size = {4, 4};
  return attrs;
}

constexpr const char* kExp2 = "it overflows as exp does";
constexpr const char* kPixels =
    "its results lie between the pixels; bilinear ones are computed in f32 and rounded once";

std::vector<Entry> elementwise() {
  using enum List;
  return {
      {"neg", unlisted, Gives::input, [](const Tensor& x) { return neg(x); }},
      {"abs", unlisted, Gives::input, [](const Tensor& x) { return abs(x); }},
      {"sign", unlisted, Gives::input, [](const Tensor& x) { return sign(x); }},
      {"floor", unlisted, Gives::input, [](const Tensor& x) { return floor(x); }},
      {"ceil", unlisted, Gives::input, [](const Tensor& x) { return ceil(x); }},
      {"round", unlisted, Gives::input, [](const Tensor& x) { return round(x); }},
      {"trunc", unlisted, Gives::input, [](const Tensor& x) { return trunc(x); }},
      {"exp", fp32, Gives::fp32, [](const Tensor& x) { return exp(x); }},
      {"exp2", unlisted, Gives::fp32, [](const Tensor& x) { return exp2(x); }, kExp2},
      {"expm1", fp32, Gives::fp32, [](const Tensor& x) { return expm1(x); }},
      {"log", fp32, Gives::fp32, [](const Tensor& x) { return log(x); }},
      {"log2", fp32, Gives::fp32, [](const Tensor& x) { return log2(x); }},
      {"log1p", fp32, Gives::fp32, [](const Tensor& x) { return log1p(x); }},
      {"log10", fp32, Gives::fp32, [](const Tensor& x) { return log10(x); }},
      {"sqrt", unlisted, Gives::input, [](const Tensor& x) { return sqrt(x); }},
      {"rsqrt", fp32, Gives::fp32, [](const Tensor& x) { return rsqrt(x); }},
      {"reciprocal", fp32, Gives::fp32, [](const Tensor& x) { return reciprocal(x); }},
      {"square", unlisted, Gives::input, [](const Tensor& x) { return square(x); }},
      {"sin", unlisted, Gives::input, [](const Tensor& x) { return sin(x); }},
      {"cos", unlisted, Gives::input, [](const Tensor& x) { return cos(x); }},
      {"asin", fp32, Gives::fp32, [](const Tensor& x) { return asin(x); }},
      {"acos", fp32, Gives::fp32, [](const Tensor& x) { return acos(x); }},
      {"atan", unlisted, Gives::input, [](const Tensor& x) { return atan(x); }},
      {"asinh", unlisted, Gives::input, [](const Tensor& x) { return asinh(x); }},
      {"acosh", unlisted, Gives::input, [](const Tensor& x) { return acosh(x); }},
      {"atanh", unlisted, Gives::input, [](const Tensor& x) { return atanh(x); }},
      {"tanh", unlisted, Gives::input, [](const Tensor& x) { return tanh(x); }},
      {"sigmoid", unlisted, Gives::input, [](const Tensor& x) { return sigmoid(x); }},
      {"erf", unlisted, Gives::input, [](const Tensor& x) { return erf(x); }},
      {"erfc", unlisted, Gives::input, [](const Tensor& x) { return erfc(x); }},
      {"relu", unlisted, Gives::input, [](const Tensor& x) { return relu(x); }},
      {"leaky_relu", unlisted, Gives::input, [](const Tensor& x) { return leaky_relu(x); }},
      {"gelu", unlisted, Gives::input, [](const Tensor& x) { return gelu(x); }},
      {"silu", unlisted, Gives::input, [](const Tensor& x) { return silu(x); }},
      {"softplus", fp32, Gives::fp32, [](const Tensor& x) { return softplus(x); }},
      {"clamp", unlisted, Gives::input, [](const Tensor& x) { return clamp(x, 0, 1); }},
      {"logical_not", unlisted, Gives::other, [](const Tensor& x) { return logical_not(x); }},
      {"cast", unlisted, Gives::other, [](const Tensor& x) { return cast(x, DType::i64); }},
      {"to_device", unlisted, Gives::input, [](const Tensor& x) { return to_device(x, Device::cpu()); }},
      {"clone", unlisted, Gives::input, [](const Tensor& x) { return clone(x); }},
      {"add", promote, Gives::promote, [](const Tensor& x) { return add(x, wider(x)); }},
      {"sub", promote, Gives::promote, [](const Tensor& x) { return sub(x, wider(x)); }},
      {"mul", promote, Gives::promote, [](const Tensor& x) { return mul(x, wider(x)); }},
      {"div", promote, Gives::promote, [](const Tensor& x) { return div(x, wider(x)); }},
      {"atan2", promote, Gives::promote, [](const Tensor& x) { return atan2(x, wider(x)); }},
      {"floor_divide", promote, Gives::promote, [](const Tensor& x) { return floor_divide(x, wider(x)); }},
      {"trunc_divide", promote, Gives::promote, [](const Tensor& x) { return trunc_divide(x, wider(x)); }},
      {"remainder", promote, Gives::promote, [](const Tensor& x) { return remainder(x, wider(x)); }},
      {"fmod", promote, Gives::promote, [](const Tensor& x) { return fmod(x, wider(x)); }},
      {"bitwise_and", unlisted, Gives::other, [](const Tensor& x) { return bitwise_and(places(x, 4), 3); }},
      {"bitwise_or", unlisted, Gives::other, [](const Tensor& x) { return bitwise_or(places(x, 4), 3); }},
      {"bitwise_xor", unlisted, Gives::other, [](const Tensor& x) { return bitwise_xor(places(x, 4), 3); }},
      {"shift_left", unlisted, Gives::other, [](const Tensor& x) { return shift_left(places(x, 4), 3); }},
      {"shift_right", unlisted, Gives::other, [](const Tensor& x) { return shift_right(places(x, 4), 3); }},
      {"pow", fp32, Gives::fp32, [](const Tensor& x) { return pow(x, 3); }},
      {"maximum", promote, Gives::promote, [](const Tensor& x) { return maximum(x, wider(x)); }},
      {"minimum", promote, Gives::promote, [](const Tensor& x) { return minimum(x, wider(x)); }},
      {"where", promote, Gives::promote, [](const Tensor& x) { return where(truth(x), x, wider(x)); }},
      {"eq", unlisted, Gives::other, [](const Tensor& x) { return eq(x, wider(x)); }},
      {"ne", unlisted, Gives::other, [](const Tensor& x) { return ne(x, wider(x)); }},
      {"lt", unlisted, Gives::other, [](const Tensor& x) { return lt(x, wider(x)); }},
      {"le", unlisted, Gives::other, [](const Tensor& x) { return le(x, wider(x)); }},
      {"gt", unlisted, Gives::other, [](const Tensor& x) { return gt(x, wider(x)); }},
      {"ge", unlisted, Gives::other, [](const Tensor& x) { return ge(x, wider(x)); }},
      {"logical_and", unlisted, Gives::other, [](const Tensor& x) { return logical_and(x, x); }},
      {"logical_or", unlisted, Gives::other, [](const Tensor& x) { return logical_or(x, x); }},
      {"logical_xor", unlisted, Gives::other, [](const Tensor& x) { return logical_xor(x, x); }},
      {"isnan", unlisted, Gives::other, [](const Tensor& x) { return isnan(x); }},
      {"isinf", unlisted, Gives::other, [](const Tensor& x) { return isinf(x); }},
      {"isfinite", unlisted, Gives::other, [](const Tensor& x) { return isfinite(x); }},
      {"masked_fill", unlisted, Gives::input, [](const Tensor& x) { return masked_fill(x, truth(x), 0); }},
      {"nan_to_num", unlisted, Gives::input, [](const Tensor& x) { return nan_to_num(x); }},
      {"dropout", unlisted, Gives::input, [](const Tensor& x) { return dropout(x, 0.5); }},
      {"dropout_add", promote, Gives::promote, [](const Tensor& x) { return dropout_add(x, wider(x), 0.5); }},
      {"bernoulli", unlisted, Gives::input, [](const Tensor& x) { return bernoulli(x); }},
      {"full_like", unlisted, Gives::input, [](const Tensor& x) { return full_like(x, 1); }},
      {"randn_like", unlisted, Gives::input, [](const Tensor& x) { return randn_like(x); }},
  };
}

std::vector<Entry> reductions_and_norms() {
  using enum List;
  return {
      {"sum", fp32, Gives::fp32, [](const Tensor& x) { return sum(x); }},
      {"sum_to", fp32, Gives::fp32,
       [](const Tensor& x) {
         return sum_to(x, {4, 4});
       }},
      {"mean", unlisted, Gives::input, [](const Tensor& x) { return mean(x); }},
      {"var", unlisted, Gives::input, [](const Tensor& x) { return var(x); }},
      {"stddev", unlisted, Gives::input, [](const Tensor& x) { return stddev(x); }},
      {"max", unlisted, Gives::input, [](const Tensor& x) { return max(x); }},
      {"amax", unlisted, Gives::input, [](const Tensor& x) { return amax(x); }},
      {"min", unlisted, Gives::input, [](const Tensor& x) { return min(x); }},
      {"max_with_indices", unlisted, Gives::input, [](const Tensor& x) { return max_with_indices(x, 3).values; }},
      {"argmax", unlisted, Gives::other, [](const Tensor& x) { return argmax(x); }},
      {"argmin", unlisted, Gives::other, [](const Tensor& x) { return argmin(x); }},
      {"any", unlisted, Gives::other, [](const Tensor& x) { return any(x); }},
      {"all", unlisted, Gives::other, [](const Tensor& x) { return all(x); }},
      {"allclose", unlisted, Gives::other, [](const Tensor& x) { return eq(x, allclose(x, x) ? 1 : 0); }},
      {"logsumexp", fp32, Gives::fp32, [](const Tensor& x) { return logsumexp(x); }},
      {"norm", fp32, Gives::fp32, [](const Tensor& x) { return norm(x); }},
      {"cumsum", fp32, Gives::fp32, [](const Tensor& x) { return cumsum(x, 3); }},
      {"prod", fp32, Gives::fp32, [](const Tensor& x) { return prod(x); }},
      {"cumprod", fp32, Gives::fp32, [](const Tensor& x) { return cumprod(x, 3); }},
      {"softmax", fp32, Gives::fp32, [](const Tensor& x) { return softmax(x, 3); }},
      {"log_softmax", fp32, Gives::fp32, [](const Tensor& x) { return log_softmax(x, 3); }},
      {"layer_norm", fp32, Gives::fp32, [](const Tensor& x) { return layer_norm(x, 1); }},
      {"rms_norm", fp32, Gives::fp32, [](const Tensor& x) { return rms_norm(x, 1); }},
      {"batch_norm", unlisted, Gives::input, [](const Tensor& x) { return batch_norm(x, {}, {}, {}, {}, true).y; }},
      {"batch_norm_update_", unlisted, Gives::other,
       [](const Tensor& x) {
         const Tensor statistic = zeros({2}, {.dtype = DType::f32, .device = x.device()});
         const Tensor batches = zeros({}, {.dtype = DType::i64, .device = x.device()});
         const Tensor invstd = ones({2}, {.dtype = DType::f32, .device = x.device()});
         batch_norm_update_(statistic.clone(), statistic.clone(), batches, statistic, invstd, {0.1, 1e-5, 16});
         return batches;
       }},
      {"cross_entropy", fp32, Gives::fp32, [](const Tensor& x) { return cross_entropy(matrix(x), places(x, 8)); }},
      {"nll_loss", fp32, Gives::fp32, [](const Tensor& x) { return nll_loss(matrix(x), places(x, 8)); }},
      {"weighted_cross_entropy", fp32, Gives::fp32,
       [](const Tensor& x) { return weighted_cross_entropy(matrix(x), places(x, 8), ones({matrix(x).size(1)})); }},
      {"soft_cross_entropy", fp32, Gives::fp32,
       [](const Tensor& x) { return soft_cross_entropy(matrix(x), matrix(x)); }},
      {"kl_div", fp32, Gives::fp32, [](const Tensor& x) { return kl_div(x, x); }},
      {"mse_loss", fp32, Gives::fp32, [](const Tensor& x) { return mse_loss(x, x); }},
      {"l1_loss", fp32, Gives::fp32, [](const Tensor& x) { return l1_loss(x, x); }},
      {"huber_loss", fp32, Gives::fp32, [](const Tensor& x) { return huber_loss(x, x); }},
      {"bce_with_logits_loss", fp32, Gives::fp32, [](const Tensor& x) { return bce_with_logits_loss(x, x); }},
      {"bce_loss", banned, Gives::banned, [](const Tensor& x) { return bce_loss(x, x); }},
      {"reduced_loss", unlisted, Gives::input, [](const Tensor& x) { return reduced_loss(x, Reduction::mean); }},
      {"multinomial", unlisted, Gives::other, [](const Tensor& x) { return multinomial(matrix(x), 2); }},
  };
}

std::vector<Entry> contractions_and_images() {
  using enum List;
  return {
      {"matmul", lower, Gives::lower, [](const Tensor& x) { return matmul(x, square_matrix(x)); }},
      {"linear", lower, Gives::lower, [](const Tensor& x) { return linear(x, square_matrix(x)); }},
      {"linear_relu", lower, Gives::lower, [](const Tensor& x) { return linear_relu(x, square_matrix(x)); }},
      {"linear_gelu", lower, Gives::lower, [](const Tensor& x) { return linear_gelu(x, square_matrix(x)); }},
      {"einsum", lower, Gives::lower,
       [](const Tensor& x) {
         return einsum("i,j->ij", {vector(x), vector(x)});
       }},
      {"conv1d", lower, Gives::lower,
       [](const Tensor& x) {
         return conv1d(x.reshape({1, 2, 16}), filters(x).reshape({1, 2, 8}));
       }},
      {"conv2d", lower, Gives::lower, [](const Tensor& x) { return conv2d(x, filters(x)); }},
      {"conv_transpose2d", lower, Gives::lower,
       [](const Tensor& x) {
         return conv_transpose2d(x, filters(x).reshape({2, 1, 2, 4}));
       }},
      {"conv2d_backward_input", lower, Gives::lower,
       [](const Tensor& x) {
         return conv2d_backward_input(x.narrow(2, 0, 3).narrow(1, 0, 1), x.narrow(2, 0, 2).narrow(3, 0, 1),
                                      conv_attrs());
       }},
      {"scaled_dot_product_attention", lower, Gives::lower,
       [](const Tensor& x) { return scaled_dot_product_attention(x, x, x); }},
      {"max_pool2d", unlisted, Gives::input, [](const Tensor& x) { return max_pool2d(x, {2}); }},
      {"max_pool2d_with_indices", unlisted, Gives::input,
       [](const Tensor& x) { return max_pool2d_with_indices(x, {2}).first; }},
      {"avg_pool2d", unlisted, Gives::input, [](const Tensor& x) { return avg_pool2d(x, {2}); }},
      {"adaptive_avg_pool2d", unlisted, Gives::input, [](const Tensor& x) { return adaptive_avg_pool2d(x, 2, 2); }},
      {"adaptive_max_pool2d", unlisted, Gives::input, [](const Tensor& x) { return adaptive_max_pool2d(x, 2, 2); }},
      {"interpolate", fp32, Gives::input, [](const Tensor& x) { return interpolate(x, 8, 8, Interpolation::bilinear); },
       kPixels},
      {"embedding", unlisted, Gives::input, [](const Tensor& x) { return embedding(matrix(x), places(x, 3)); }},
  };
}

std::vector<Entry> movement() {
  using enum List;
  return {
      {"view", unlisted, Gives::input, [](const Tensor& x) { return view(x, {32}); }},
      {"reshape", unlisted, Gives::input, [](const Tensor& x) { return reshape(x, {32}); }},
      {"permute", unlisted, Gives::input,
       [](const Tensor& x) {
         return permute(x, {3, 2, 1, 0});
       }},
      {"transpose", unlisted, Gives::input, [](const Tensor& x) { return transpose(x, 0, 1); }},
      {"expand", unlisted, Gives::input,
       [](const Tensor& x) {
         return expand(x, {2, -1, -1, -1});
       }},
      {"squeeze", unlisted, Gives::input, [](const Tensor& x) { return squeeze(x, 0); }},
      {"unsqueeze", unlisted, Gives::input, [](const Tensor& x) { return unsqueeze(x, 0); }},
      {"flatten", unlisted, Gives::input, [](const Tensor& x) { return flatten(x); }},
      {"slice", unlisted, Gives::input,
       [](const Tensor& x) {
         return slice(x, 3, {0, 2});
       }},
      {"narrow", unlisted, Gives::input, [](const Tensor& x) { return narrow(x, 3, 0, 2); }},
      {"select", unlisted, Gives::input, [](const Tensor& x) { return select(x, 3, 0); }},
      {"split", unlisted, Gives::input, [](const Tensor& x) { return split(x, 1, 1)[0]; }},
      {"chunk", unlisted, Gives::input, [](const Tensor& x) { return chunk(x, 2, 1)[0]; }},
      {"contiguous", unlisted, Gives::input, [](const Tensor& x) { return contiguous(x.transpose(1, 2)); }},
      {"channels_last", unlisted, Gives::input, [](const Tensor& x) { return channels_last(x); }},
      {"cat", promote, Gives::promote,
       [](const Tensor& x) {
         return cat({x, wider(x)});
       }},
      {"stack", promote, Gives::promote,
       [](const Tensor& x) {
         return stack({x, wider(x)});
       }},
      {"gather", unlisted, Gives::input, [](const Tensor& x) { return gather(vector(x), 0, places(x, 2)); }},
      {"scatter_add", promote, Gives::promote,
       [](const Tensor& x) { return scatter_add(vector(x), 0, places(x, 2), wider(vector(x)).narrow(0, 0, 2)); }},
      {"index_select", unlisted, Gives::input, [](const Tensor& x) { return index_select(x, 3, places(x, 2)); }},
      {"index_add", unlisted, Gives::input, [](const Tensor& x) { return index_add(x, 3, places(x, 4), 4); }},
      {"pad", unlisted, Gives::input, [](const Tensor& x) { return pad(vector(x), {1}, {1}); }},
      {"tril", unlisted, Gives::input, [](const Tensor& x) { return tril(x); }},
      {"triu", unlisted, Gives::input, [](const Tensor& x) { return triu(x); }},
      {"one_hot", unlisted, Gives::other, [](const Tensor& x) { return one_hot(places(x, 2), 3); }},
      {"flip", unlisted, Gives::input, [](const Tensor& x) { return flip(x, {1}); }},
      {"roll", unlisted, Gives::input, [](const Tensor& x) { return roll(x, 1, 3); }},
      {"repeat", unlisted, Gives::input,
       [](const Tensor& x) {
         return repeat(x, {2, 1, 1, 1});
       }},
      {"sort", unlisted, Gives::input, [](const Tensor& x) { return sort(x).values; }},
      {"topk", unlisted, Gives::input, [](const Tensor& x) { return topk(x, 2).values; }},
  };
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = [] {
    std::vector<Entry> joined = elementwise();
    for (const auto& more : {reductions_and_norms(), contractions_and_images(), movement()})
      joined.insert(joined.end(), more.begin(), more.end());
    return joined;
  }();
  return all;
}

// The functions that a header declares, and those that ops.h makes of the op table. Operators are functions of these.
std::set<std::string> declared(const std::string& header) {
  std::ostringstream read;
  read << std::ifstream(source_dir() + header).rdbuf();
  const std::string text = read.str();
  static const std::regex declaration(R"(\n(?:inline )?[A-Za-z:_]+(?:<[^>]*>)? ([a-z]\w*)\()");
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), declaration), end; it != end; ++it) names.insert((*it)[1]);
  return names;
}
std::set<std::string> made_of_table() {
  std::ostringstream read;
  read << std::ifstream(source_dir() + "/core/ops.def").rdbuf();
  const std::string text = read.str();
  static const std::regex row(R"(\nGRADUAL_(?:UNARY|UNARY_OPTION|BINARY|REDUCTION|LOSS)_OP\((\w+))");
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it) names.insert((*it)[1]);
  names.erase("name");
  return names;
}

TEST_CASE("every public function has an entry with its cast policy") {
  std::set<std::string> functions = declared("/core/ops/ops.h");
  CHECK(functions.size() > 40);
  for (const auto& more : {declared("/core/ops/derived_ops.h"), made_of_table()})
    functions.insert(more.begin(), more.end());
  functions.erase("conv2d_backward_weight");  // only backward rules call it, below amp
  CHECK(functions.size() > 120);
  std::set<std::string> listed;
  for (const Entry& e : entries()) CHECK_MESSAGE(listed.insert(e.name).second, "two entries for " << e.name);
  for (const std::string& name : functions)
    CHECK_MESSAGE(listed.count(name), name << " has no entry: is its policy right?");
  for (const std::string& name : listed) CHECK_MESSAGE(functions.count(name), name << " is no public function");
}

DType expected(const Entry& e, DType given) {
  switch (e.gives) {
    case Gives::lower: return DType::f16;
    case Gives::fp32:
    case Gives::promote: return DType::f32;
    default: return given;
  }
}

TEST_CASE("every public function gives the dtype of its cast policy") {
  const amp::Autocast scope({.dtype = DType::f16});
  for (const Entry& e : entries()) {
    CAPTURE(std::string(e.name));
    for (const DType given : {DType::f16, DType::f32}) {
      CAPTURE(to_string(given));
      const Tensor x = full({1, 2, 4, 4}, 0.5, {.dtype = given});
      if (e.gives == Gives::banned) {
        CHECK_THROWS_WITH_AS(e.call(x), doctest::Contains("banned under autocast"), Error);
        continue;
      }
      const DType got = e.call(x).dtype();
      if (e.gives == Gives::other) CHECK_MESSAGE(!is_floating(got), to_string(got));
      else CHECK_MESSAGE(got == expected(e, given), to_string(got) << ", expected " << to_string(expected(e, given)));
    }
  }
}

Gives as_pytorch(List list) {
  static const std::map<List, Gives> all{{List::unlisted, Gives::input},
                                         {List::lower, Gives::lower},
                                         {List::fp32, Gives::fp32},
                                         {List::promote, Gives::promote},
                                         {List::banned, Gives::banned}};
  return all.at(list);
}
std::string text_of(Gives gives) {
  static const std::map<Gives, std::string> all{{Gives::input, "the input's dtype"},
                                                {Gives::lower, "the region's dtype"},
                                                {Gives::fp32, "f32"},
                                                {Gives::promote, "the widest"},
                                                {Gives::banned, "banned"},
                                                {Gives::other, ""}};
  return all.at(gives);
}

TEST_CASE("docs/precision.md: the functions whose policy is not PyTorch's, and why") {
  std::string table = table_head({"function", "PyTorch", "here", "because"});
  for (const Entry& e : entries()) {
    const bool differs = e.gives != Gives::other && e.gives != as_pytorch(e.pytorch);
    CAPTURE(std::string(e.name));
    CHECK_MESSAGE(differs == (*e.reason != '\0'), "a difference and its reason belong together");
    if (differs)
      table += table_row({"`" + std::string(e.name) + "`", text_of(as_pytorch(e.pytorch)), text_of(e.gives), e.reason});
  }
  check_part("precision.md", "autocast", table);
}

// Each of these results overflows f16.
TEST_CASE("functions without a row follow the policy of the op that they resemble") {
  const Tensor x = full({4}, 60000, {.dtype = DType::f16});
  const Tensor y = full({2}, 300, {.dtype = DType::f16});
  CHECK(std::isinf(cumsum(x, 0)[3].item()));
  {
    const amp::Autocast scope({.dtype = DType::f16});
    CHECK(cumsum(x, 0).to_vector<double>() == std::vector<double>{60000, 120000, 180000, 240000});
    CHECK(prod(y).item() == 90000);
    CHECK(prod(y, 0).item() == 90000);
    CHECK(cumsum(x.to(DType::f64), 0).dtype() == DType::f64);
    const amp::Autocast off({.enabled = false});
    CHECK(cumsum(x, 0).dtype() == DType::f16);
  }
  amp::PolicyTable table;
  table.set("sum", amp::CastPolicy::lower());
  const amp::Autocast scope({.dtype = DType::bf16, .table = table});
  CHECK(cumsum(x, 0).dtype() == DType::bf16);
  CHECK(prod(y.to(DType::f32)).dtype() == DType::bf16);
}

TEST_CASE("the gradient of cumsum and prod under autocast has the operand's dtype") {
  const Tensor x = full({4}, 60000, {.dtype = DType::f16}).set_requires_grad();
  {
    const amp::Autocast scope({.dtype = DType::f16});
    add(cumsum(x, 0).sum() * 1e-3, prod(x.narrow(0, 0, 2)) * 1e-6).backward();
  }
  CHECK(x.grad().dtype() == DType::f16);
  CHECK(x.grad()[3].item() == doctest::Approx(1e-3).epsilon(1e-3));
  CHECK(x.grad()[0].item() == doctest::Approx(4e-3 + 0.06).epsilon(1e-3));
}

TEST_CASE("recurrent layers run low") {
  const Tensor x = full({2, 3, 4}, 0.5);
  nn::GRU gru(4, 4);
  nn::LSTM lstm(4, 4);
  const Tensor plain = gru(x);
  const amp::Autocast scope({.dtype = DType::f16});
  CHECK(plain.dtype() == DType::f32);
  CHECK(gru(x.to(DType::f16)).dtype() == DType::f16);
  CHECK(lstm(x.to(DType::f16)).dtype() == DType::f16);
}

}  // namespace
}  // namespace gradual::test
