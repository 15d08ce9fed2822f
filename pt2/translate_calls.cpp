#include "translate_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "../core/support/message_text.h"
#include "arguments.h"

namespace gradual::pt2 {
namespace {

// When a pattern may stand for its row.
enum class Need : std::uint8_t {
  nothing,
  floating,    // argument 0 is a floating tensor
  arithmetic,  // tensors of one dtype, and numbers that do not promote it
  comparison,  // the same; gives bool
  division,    // as arithmetic, of floating tensors
  dims,        // argument 0 is a tensor with dims
  matrices,    // tensors of two or more dims
  images,      // argument 0 is [N, C, H, W]
  integers,    // all arguments are integers
  classes,     // argument 1 is i64, argument 0 has two dims or more
};

// A row as an expression. {name} is an argument, {name:form} in a form of its own (form_of). What stands behind | is
// not printed. Arguments that a pattern does not name must be at their defaults. Of several patterns of one row the
// first that fits is taken.
struct Pattern {
  const char* target;
  const char* text;
  Need need = Need::nothing;
};

constexpr Pattern kPatterns[] = {
    // arithmetic
    {"aten.add.Tensor", "{self} + {other}", Need::arithmetic},
    {"aten.add.Scalar", "{self} + {other}", Need::arithmetic},
    {"aten.sub.Tensor", "{self} - {other}", Need::arithmetic},
    {"aten.sub.Scalar", "{self} - {other}", Need::arithmetic},
    {"aten.mul.Tensor", "{self} * {other}", Need::arithmetic},
    {"aten.mul.Scalar", "{self} * {other}", Need::arithmetic},
    {"aten.div.Tensor", "{self} / {other}", Need::division},
    {"aten.div.Scalar", "{self} / {other}", Need::division},
    {"aten.maximum.default", "maximum({self}, {other})", Need::arithmetic},
    {"aten.minimum.default", "minimum({self}, {other})", Need::arithmetic},
    {"aten.pow.Tensor_Scalar", "square({self})|{exponent:two}", Need::floating},
    {"aten.pow.Tensor_Scalar", "pow({self}, {exponent:power})", Need::floating},
    {"aten.pow.Tensor_Tensor", "pow({self}, {exponent})", Need::division},
    {"aten.neg.default", "-{self}"},
    {"aten.abs.default", "abs({self})"},
    {"aten.exp.default", "exp({self})", Need::floating},
    {"aten.expm1.default", "expm1({self})", Need::floating},
    {"aten.log.default", "log({self})", Need::floating},
    {"aten.log1p.default", "log1p({self})", Need::floating},
    {"aten.sqrt.default", "sqrt({self})", Need::floating},
    {"aten.rsqrt.default", "rsqrt({self})", Need::floating},
    {"aten.reciprocal.default", "reciprocal({self})", Need::floating},
    {"aten.sin.default", "sin({self})", Need::floating},
    {"aten.cos.default", "cos({self})", Need::floating},
    {"aten.erf.default", "erf({self})", Need::floating},
    {"aten.eq.Tensor", "{self} == {other}", Need::comparison},
    {"aten.eq.Scalar", "{self} == {other}", Need::comparison},
    {"aten.ne.Tensor", "{self} != {other}", Need::comparison},
    {"aten.ne.Scalar", "{self} != {other}", Need::comparison},
    {"aten.lt.Tensor", "{self} < {other}", Need::comparison},
    {"aten.lt.Scalar", "{self} < {other}", Need::comparison},
    {"aten.le.Tensor", "{self} <= {other}", Need::comparison},
    {"aten.le.Scalar", "{self} <= {other}", Need::comparison},
    {"aten.gt.Tensor", "{self} > {other}", Need::comparison},
    {"aten.gt.Scalar", "{self} > {other}", Need::comparison},
    {"aten.ge.Tensor", "{self} >= {other}", Need::comparison},
    {"aten.ge.Scalar", "{self} >= {other}", Need::comparison},
    {"aten.logical_not.default", "logical_not({self})"},
    {"aten.where.self", "where({condition:mask}, {self}, {other})", Need::arithmetic},
    {"aten.masked_fill.Scalar", "masked_fill({self}, {mask}, {value:real})"},
    // activations
    {"aten.relu.default", "relu({self})"},
    {"aten.silu.default", "silu({self})"},
    {"aten.tanh.default", "tanh({self})"},
    {"aten.sigmoid.default", "sigmoid({self})"},
    {"aten.gelu.default", "gelu({self})"},
    {"aten.gelu.default", "gelu({self}, {approximate:gelu})"},
    {"aten.leaky_relu.default", "leaky_relu({self}, {negative_slope})"},
    {"aten.softmax.int", "softmax({self}, {dim})"},
    {"aten.log_softmax.int", "log_softmax({self}, {dim})"},
    // products and layers
    {"aten.matmul.default", "matmul({self}, {other})", Need::matrices},
    {"aten.mm.default", "matmul({self}, {mat2})"},
    {"aten.bmm.default", "matmul({self}, {mat2})"},
    {"aten.linear.default", "linear({input}, {weight})"},
    {"aten.linear.default", "linear({input}, {weight}, {bias})"},
    {"aten.conv2d.default",
     "conv2d({input}, {weight}, {bias}, {stride:.stride}{padding:.padding}{dilation:.dilation}{groups:.groups})",
     Need::images},
    {"aten.layer_norm.default", "layer_norm({input}, {normalized_shape:count}, {weight}, {bias}, {eps})"},
    {"aten.rms_norm.default", "rms_norm({input}, {normalized_shape:count}, {weight}, {eps:real})"},
    {"aten.embedding.default", "embedding({weight}, {indices:i64})"},
    {"aten.scaled_dot_product_attention.default",
     "scaled_dot_product_attention({query}, {key}, {value}, {attn_mask}, {is_causal:.causal}{scale:.scale})"},
    {"aten.cross_entropy_loss.default", "cross_entropy({self}, {target})", Need::classes},
    {"aten.cross_entropy_loss.default",
     "cross_entropy({self}, {target}, {label_smoothing:.label_smoothing}{ignore_index:.ignore_index})", Need::classes},
    // pools
    {"aten.max_pool2d.default", "max_pool2d({self}, {kernel_size:.kernel}{stride:.stride}{padding:.padding})",
     Need::images},
    {"aten.avg_pool2d.default", "avg_pool2d({self}, {kernel_size:.kernel}{stride:.stride})", Need::images},
    {"aten.adaptive_avg_pool2d.default", "adaptive_avg_pool2d({self}, {output_size:both})", Need::images},
    // views and arrangements
    {"aten.view.default", "reshape({self}, {size:list})"},
    {"aten._unsafe_view.default", "reshape({self}, {size:list})"},
    {"aten.reshape.default", "reshape({self}, {shape:list})"},
    {"aten.flatten.using_ints", "flatten({self}, {start_dim})", Need::dims},
    {"aten.flatten.using_ints", "flatten({self}, {start_dim}, {end_dim})", Need::dims},
    {"aten.transpose.int", "transpose({self}, {dim0}, {dim1})", Need::dims},
    {"aten.t.default", "transpose({self}, -2, -1)", Need::matrices},
    {"aten.permute.default", "permute({self}, {dims:list})"},
    {"aten.expand.default", "expand({self}, {size:list})"},
    {"aten.squeeze.dim", "squeeze({self}, {dim})", Need::dims},
    {"aten.unsqueeze.default", "unsqueeze({self}, {dim})"},
    {"aten.slice.Tensor", "slice({self}, {dim}, {start:range})|{end}{step}", Need::dims},
    {"aten.select.int", "select({self}, {dim}, {index})", Need::dims},
    {"aten.chunk.default", "chunk({self}, {chunks}, {dim})"},
    {"aten.split.Tensor", "split({self}, {split_size:int}, {dim})"},
    {"aten.contiguous.default", "contiguous({self})"},
    {"aten.clone.default", "clone({self})"},
    {"aten.detach.default", "{self:object}.detach()"},
    {"aten.cat.default", "cat({tensors:list}, {dim})", Need::matrices},
    {"aten.stack.default", "stack({tensors:list}, {dim})"},
    {"aten.tril.default", "tril({self}, {diagonal})"},
    {"aten.triu.default", "triu({self}, {diagonal})"},
    {"aten.to.dtype", "cast({self}, {dtype})"},
    {"aten.to.dtype_layout", "cast({self}, {dtype:given})"},
    {"aten.to.dtype_layout", "{self}"},
    {"aten._to_copy.default", "cast({self}, {dtype:given})"},
    // reductions
    {"aten.sum.default", "sum({self})"},
    {"aten.sum.dim_IntList", "sum({self}, {dim:list})"},
    {"aten.sum.dim_IntList", "sum({self}, {dim:list}, {keepdim})"},
    {"aten.mean.default", "mean({self})"},
    {"aten.mean.dim", "mean({self}, {dim:list})"},
    {"aten.mean.dim", "mean({self}, {dim:list}, {keepdim})"},
    {"aten.amax.default", "amax({self}, {dim:list}, {keepdim})"},
    {"aten.cumsum.default", "cumsum({self}, {dim})", Need::floating},
    // new tensors, and Python's arithmetic on sizes
    {"aten.zeros.default", "zeros({size:list}, {dtype:options})"},
    {"aten.ones.default", "ones({size:list}, {dtype:options})"},
    {"aten.full.default", "full({size:list}, {fill_value:real}, {dtype:options})"},
    {"aten.arange.default", "arange(0, {end:int}, 1, {dtype:options})"},
    {"aten.sym_size.int", "{self:object}.size({dim})"},
    {"aten.sym_numel.default", "{self:object}.numel()"},
    {"_operator.add", "{a} + {b}", Need::integers},
    {"_operator.sub", "{a} - {b}", Need::integers},
    {"_operator.mul", "{a} * {b}", Need::integers},
};

// Arguments that change no number here: a pattern need not name them.
constexpr std::string_view kWithoutEffect[] = {"layout",        "device",       "pin_memory",
                                               "memory_format", "non_blocking", "cudnn_enabled",
                                               "cudnn_enable",  "implicit",     "sparse"};

constexpr std::int64_t kChannelsLast = 2;  // of the schema's MemoryFormat

bool is_int_literal(const Value& v) { return v.get<std::int64_t>() != nullptr; }

bool same(const Value& a, const Value& b) {
  if (a.of.index() != b.of.index()) {
    const auto number = [](const Value& v) -> std::optional<double> {
      if (const double* const x = v.get<double>()) return *x;
      if (const std::int64_t* const n = v.get<std::int64_t>()) return static_cast<double>(*n);
      return std::nullopt;
    };
    const std::optional<double> x = number(a);
    return x && x == number(b);
  }
  if (const bool* const x = a.get<bool>()) return *x == *b.get<bool>();
  if (const std::int64_t* const x = a.get<std::int64_t>()) return *x == *b.get<std::int64_t>();
  if (const double* const x = a.get<double>()) return *x == *b.get<double>();
  if (const std::string* const x = a.get<std::string>()) return *x == *b.get<std::string>();
  if (const DType* const x = a.get<DType>()) return *x == *b.get<DType>();
  if (const Value::List* const x = a.get<Value::List>()) return x->empty() && b.get<Value::List>()->empty();
  return a.none();
}

std::string dtype_text(DType d) { return d == DType::bool_ ? "DType::bool_" : "DType::" + std::string(to_string(d)); }

std::string value_text(const CallToPrint& call, const Value& v) {
  if (const Ref* const r = v.get<Ref>()) return call.name(r->id);
  if (const bool* const b = v.get<bool>()) return *b ? "true" : "false";
  if (const std::int64_t* const n = v.get<std::int64_t>()) return fmt::to_string(*n);
  if (const double* const x = v.get<double>()) return number_text(*x);
  if (const std::string* const s = v.get<std::string>()) return quoted(*s);
  if (const DType* const d = v.get<DType>()) return dtype_text(*d);
  if (const Value::List* const list = v.get<Value::List>()) {
    std::vector<std::string> texts;
    for (const Value& item : *list) texts.push_back(value_text(call, item));
    return "{" + join(texts) + "}";
  }
  return "{}";
}

const Fact* tensor_fact(const CallToPrint& call, const Value& v) {
  const Ref* const r = v.get<Ref>();
  if (!r) return nullptr;
  const Fact& fact = call.program.fact(r->id);
  return fact.kind == Fact::Kind::tensor ? &fact : nullptr;
}

// The kind of a number as kind_rank(), or -1.
int number_kind(const CallToPrint& call, const Value& v) {
  if (v.get<double>()) return 2;
  if (v.get<std::int64_t>()) return 1;
  if (v.get<bool>()) return 0;
  const Ref* const r = v.get<Ref>();
  if (!r) return -1;
  const Fact::Kind kind = call.program.fact(r->id).kind;
  if (kind == Fact::Kind::number) return 2;
  if (kind == Fact::Kind::integer) return 1;
  return kind == Fact::Kind::flag ? 0 : -1;
}

// Tensors of one dtype, and numbers of no higher kind. A mask (bool) beside them is the `condition`.
bool plain_arithmetic(const CallToPrint& call, bool floating) {
  std::optional<DType> dtype;
  int highest = 0;
  for (std::size_t i = 0; i < call.step.arguments.size(); ++i) {
    if (call.step.op->names[i] == "condition") continue;
    const Value& v = call.step.arguments[i];
    if (const Fact* const t = tensor_fact(call, v)) {
      if (dtype && *dtype != t->dtype) return false;
      dtype = t->dtype;
      continue;
    }
    highest = std::max(highest, number_kind(call, v));
  }
  if (!dtype || (floating && !is_floating(*dtype))) return false;
  return highest <= kind_rank(*dtype);
}

bool holds(const CallToPrint& call, Need need) {
  const std::vector<Value>& arguments = call.step.arguments;
  const Fact* const first = arguments.empty() ? nullptr : tensor_fact(call, arguments[0]);
  switch (need) {
    case Need::nothing: return true;
    case Need::floating: return first && is_floating(first->dtype);
    case Need::arithmetic:
    case Need::comparison: return plain_arithmetic(call, false);
    case Need::division: return plain_arithmetic(call, true);
    case Need::dims: return first && first->dims > 0;
    case Need::images: return first && first->dims == 4;
    case Need::integers:
      return std::ranges::all_of(arguments, [&](const Value& v) { return number_kind(call, v) == 1; });
    case Need::classes: {
      const Fact* const target = tensor_fact(call, arguments[1]);
      return first && target && first->dims > 1 && target->dtype == DType::i64;
    }
    case Need::matrices: {
      std::vector<int> ids;
      for (const Value& v : arguments) add_refs(v, ids);
      return std::ranges::all_of(ids, [&](int id) { return call.program.fact(id).dims > 1; });
    }
  }
  return false;
}

// Height and width: "3" where they are equal, "{3, 5}" where not; none for anything but one or two integers.
std::optional<std::string> pair_text(const Value& v) {
  if (const std::int64_t* const n = v.get<std::int64_t>()) return fmt::to_string(*n);
  const Value::List* const list = v.get<Value::List>();
  if (!list || list->empty() || list->size() > 2) return std::nullopt;
  if (!std::ranges::all_of(*list, is_int_literal)) return std::nullopt;
  const std::int64_t a = *list->front().get<std::int64_t>();
  const std::int64_t b = *list->back().get<std::int64_t>();
  return a == b ? fmt::to_string(a) : fmt::format("{{{}, {}}}", a, b);
}

constexpr std::int64_t kEnd = INT64_MAX;  // of a slice without an end

std::optional<std::string> range_text(const CallToPrint& call) {
  const std::vector<Value>& a = call.step.arguments;  // self dim start end step
  const std::int64_t* const step = a[4].get<std::int64_t>();
  if (!step) return std::nullopt;
  const std::int64_t* const start = a[2].get<std::int64_t>();
  const std::int64_t* const end = a[3].get<std::int64_t>();
  const std::string from = start && *start == 0 ? "{}" : value_text(call, a[2]);
  const std::string to = end && *end == kEnd ? "{}" : value_text(call, a[3]);
  if (*step != 1) return fmt::format("{{{}, {}, {}}}", from, to, *step);
  return fmt::format("{{{}, {}}}", from == "{}" ? "0" : from, to);
}

std::string options_text(const CallToPrint& call) {
  const Fact& made = call.program.fact(call.step.outputs.at(0).values.at(0));
  const std::string device = call.like.empty() ? "" : fmt::format(", .device = {}.device()", call.like);
  return fmt::format("{{.dtype = {}{}}}", dtype_text(made.dtype), device);
}

bool is_name(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
}

// The argument in the form that a pattern asks for; none if it has no such form.
std::optional<std::string> form_of(const CallToPrint& call, const Value& v, std::string_view form) {
  const std::string text = value_text(call, v);
  const bool number = number_kind(call, v) >= 1;
  if (form.empty()) return text;
  if (form == "list") {
    if (v.none()) return "{}";
    return v.get<Value::List>() ? text : "{" + text + "}";
  }
  if (form == "int") return number_kind(call, v) == 1 ? std::optional(text) : std::nullopt;
  if (form == "real") return number ? std::optional(text) : std::nullopt;
  if (form == "object") return is_name(text) ? text : "(" + text + ")";
  if (form == "given") return v.get<DType>() ? std::optional(text) : std::nullopt;
  if (form == "options") return options_text(call);
  if (form == "range") return range_text(call);
  if (form == "gelu") return text == "\"tanh\"" ? std::optional<std::string>("Gelu::tanh") : std::nullopt;
  if (form == "two") return same(v, 2.0) ? std::optional<std::string>("") : std::nullopt;
  if (form == "power") return number && !same(v, 1.0) && !same(v, 2.0) ? std::optional(text) : std::nullopt;
  if (form == "mask" || form == "i64") {
    const Fact* const fact = tensor_fact(call, v);
    return fact && fact->dtype == (form == "mask" ? DType::bool_ : DType::i64) ? std::optional(text) : std::nullopt;
  }
  if (form == "count") {
    const Value::List* const list = v.get<Value::List>();
    return list ? std::optional(fmt::to_string(list->size())) : std::nullopt;
  }
  if (form == "both") {
    const Value::List* const list = v.get<Value::List>();
    if (!list || list->size() != 2 || !std::ranges::all_of(*list, is_int_literal)) return std::nullopt;
    return value_text(call, list->front()) + ", " + value_text(call, list->back());
  }
  return std::nullopt;
}

// ".stride = 2" for a field of the options; empty where it is at its default, none if it cannot be written so.
std::optional<std::string> field_of(const CallToPrint& call, int argument, std::string_view field) {
  const Value& v = call.step.arguments[static_cast<std::size_t>(argument)];
  const Value& otherwise = call.step.op->defaults[static_cast<std::size_t>(argument)];
  if (same(v, otherwise)) return "";
  const bool size = field == ".kernel" || field == ".stride" || field == ".padding" || field == ".dilation";
  std::optional<std::string> text = size ? pair_text(v) : value_text(call, v);
  if (!text || text == "{}") return text ? std::optional<std::string>("") : std::nullopt;
  if (size && (same(otherwise, std::int64_t{1}) ? *text == "1" : *text == "0")) return "";
  return fmt::format("{} = {}", field, *text);
}

int place_of(const Step& step, std::string_view name) {
  const auto found = std::ranges::find(step.op->names, name);
  return found == step.op->names.end() ? -1 : static_cast<int>(found - step.op->names.begin());
}

// "(a + b)" as "a + b".
std::string without_parentheses(const std::string& text) {
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') return text;
  int depth = 0;
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
    if (depth == 0) return text;
  }
  return text.substr(1, text.size() - 2);
}

// A pattern with its arguments filled in.
class Filling {
 public:
  Filling(const CallToPrint& call, const Pattern& pattern) : call_(call), pattern_(pattern.text) {}

  // None if an argument has no such form, or one that the pattern does not name is not at its default.
  std::optional<std::string> text() {
    std::size_t at = 0;
    std::size_t printed = std::string::npos;
    while (at < pattern_.size()) {
      if (pattern_[at] == '|') printed = text_.size();
      if (pattern_[at] != '{') {
        text_ += pattern_[at++];
        continue;
      }
      const std::size_t end = pattern_.find('}', at);
      if (!placeholder(pattern_.substr(at + 1, end - at - 1), end + 1)) return std::nullopt;
      at = end + 1;
    }
    if (!others_at_default()) return std::nullopt;
    return text_.substr(0, printed);
  }

 private:
  bool placeholder(std::string_view inside, std::size_t after) {
    const auto colon = std::min(inside.find(':'), inside.size());
    const std::string_view form = inside.substr(std::min(colon + 1, inside.size()));
    const int argument = place_of(call_.step, inside.substr(0, colon));
    if (argument < 0) return false;
    named_.insert(argument);
    if (!form.empty() && form.front() == '.') return field(argument, form, after);
    const Value& v = call_.step.arguments[static_cast<std::size_t>(argument)];
    std::optional<std::string> text = form_of(call_, v, form);
    if (!text) return false;
    const bool opens = text_.ends_with("(") || text_.ends_with(", ");
    const bool closes = after < pattern_.size() && (pattern_[after] == ')' || pattern_[after] == ',');
    text_ += opens && closes ? without_parentheses(*text) : *text;
    return true;
  }

  // Fields of an options struct follow each other; together they are "{.a = 1, .b = 2}".
  bool field(int argument, std::string_view form, std::size_t after) {
    const std::optional<std::string> text = field_of(call_, argument, form);
    if (!text) return false;
    if (!text->empty()) fields_ += (fields_.empty() ? "" : ", ") + *text;
    const bool last = after >= pattern_.size() || pattern_[after] != '{';
    if (!last) return true;
    if (fields_.empty() && text_.ends_with(", ")) text_.resize(text_.size() - 2);
    if (!fields_.empty()) text_ += "{" + fields_ + "}";
    while (fields_.empty() && text_.ends_with(", {}")) text_.resize(text_.size() - 4);
    return true;
  }

  bool others_at_default() const {
    const Step& step = call_.step;
    for (int i = 0; i < static_cast<int>(step.arguments.size()); ++i) {
      const auto k = static_cast<std::size_t>(i);
      if (named_.contains(i)) continue;
      const bool channels_last = step.op->names[k] == "memory_format" && same(step.arguments[k], kChannelsLast);
      if (!channels_last && std::ranges::find(kWithoutEffect, step.op->names[k]) != std::end(kWithoutEffect)) continue;
      if (step.op->defaults[k].get<Ref>() || !same(step.arguments[k], step.op->defaults[k])) return false;
    }
    return true;
  }

  const CallToPrint& call_;
  std::string_view pattern_;
  std::string text_;
  std::string fields_;
  std::set<int> named_;
};

// Functions that a member of the same name hides are named with their namespace.
std::string unhidden(std::string_view pattern, const std::string& text, const std::set<std::string>& hidden) {
  const auto end = pattern.find('(');
  const bool function = end != std::string_view::npos && hidden.contains(std::string(pattern.substr(0, end)));
  return function ? "gradual::" + text : text;
}

bool is_operator(std::string_view pattern) { return pattern.find("} ") != std::string_view::npos || pattern[0] == '-'; }

const std::multimap<std::string, Pattern>& patterns() {
  static const auto* const all = [] {
    auto* const made = new std::multimap<std::string, Pattern>;
    for (const Pattern& p : kPatterns) made->emplace(p.target, p);
    return made;
  }();
  return *all;
}

// The name of the function for a result of this kind.
const char* call_of(const CallToPrint& call) {
  const Step& step = call.step;
  if (step.outputs.size() > 1 || (step.outputs.size() == 1 && step.outputs[0].list)) return "pt2::call_many";
  if (step.written >= 0 || step.outputs.empty() || step.outputs[0].values.empty()) return "pt2::call";
  switch (call.program.fact(step.outputs[0].values[0]).kind) {
    case Fact::Kind::integer:
    case Fact::Kind::flag: return "pt2::call_integer";
    case Fact::Kind::number: return "pt2::call_number";
    default: return "pt2::call";
  }
}

std::string table_value(const CallToPrint& call, const Value& v) {
  const Value::List* const list = v.get<Value::List>();
  if (!list) return value_text(call, v);
  std::vector<std::string> texts;
  for (const Value& item : *list) texts.push_back(table_value(call, item));
  return "pt2::Value::List{" + join(texts) + "}";
}

bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

}  // namespace

std::string quoted(const std::string& text) {
  std::string all = "\"";
  for (const char c : text) {
    if (is_control(c)) {
      all += fmt::format("\\{:03o}", static_cast<unsigned>(c));
      continue;
    }
    if (c == '"' || c == '\\') all += '\\';
    all += c;
  }
  return all + "\"";
}

std::string comment_text(const std::string& text) {
  std::string all = text;
  std::ranges::replace_if(
      all, [](char c) { return is_control(c) || c == '\\'; }, ' ');
  return all;
}

std::optional<std::string> filled_pattern(const CallToPrint& call, const char* pattern) {
  return Filling(call, {"", pattern}).text();
}

std::string number_text(double x) {
  if (std::isnan(x)) return "NAN";
  if (std::isinf(x)) return x > 0 ? "INFINITY" : "-INFINITY";
  std::string text = fmt::format("{}", x);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string argument_list(const CallToPrint& call) {
  const Step& step = call.step;
  std::size_t used = step.arguments.size();
  while (used > 0 && !step.op->defaults[used - 1].get<Ref>() &&
         same(step.arguments[used - 1], step.op->defaults[used - 1]))
    --used;
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < used; ++i) texts.push_back(table_value(call, step.arguments[i]));
  return "{" + join(texts) + "}";
}

bool is_identity(const Step& step) {
  const std::string& target = step.op->target;
  const std::vector<Value>& a = step.arguments;
  if (step.written >= 0) return false;
  if (target == "aten.alias.default" || target == "aten.lift_fresh.default") return true;
  if (target == "aten.to.device") return a[2].none() && !*a[4].get<bool>();
  if (target == "aten.dropout.default") return same(a[1], 0.0) || same(a[2], false);
  if (target != "aten.slice.Tensor") return false;
  const std::int64_t* const end = a[3].get<std::int64_t>();
  const bool whole = a[3].none() || (end && *end == kEnd);
  return whole && (a[2].none() || same(a[2], std::int64_t{0})) && same(a[4], std::int64_t{1});
}

Expression expression_of(const CallToPrint& call) {
  const auto [begin, end] = patterns().equal_range(call.step.op->target);
  for (auto at = begin; at != end; ++at) {
    const Pattern& pattern = at->second;
    if (!holds(call, pattern.need)) continue;
    const std::optional<std::string> text = Filling(call, pattern).text();
    if (!text) continue;
    const bool keeps = pattern.need == Need::arithmetic || pattern.need == Need::division ||
                       pattern.need == Need::floating || pattern.need == Need::nothing;
    return {unhidden(pattern.text, *text, call.hidden), is_operator(pattern.text), false, keeps};
  }
  if (call.step.op->target == "aten.dropout.default") {
    const std::string x = value_text(call, call.step.arguments[0]);
    const std::string p = value_text(call, call.step.arguments[1]);
    const std::string drop = unhidden("dropout(", fmt::format("dropout({}, {})", x, p), call.hidden);
    if (is_name(x)) return {fmt::format("training() ? {} : {}", drop, x), true, false, true};
  }
  return {fmt::format("{}(*this, {}, {})", call_of(call), quoted(call.step.op->target), argument_list(call)), false,
          true, false};
}

const std::set<std::string>& function_names() {
  static const auto* const all = [] {
    auto* const names = new std::set<std::string>{"dropout", "from_data"};
    for (const Pattern& p : kPatterns) {
      const std::string text = p.text;
      const auto end = text.find('(');
      if (end != std::string::npos && text[0] != '{') names->insert(text.substr(0, end));
    }
    return names;
  }();
  return *all;
}

}  // namespace gradual::pt2
