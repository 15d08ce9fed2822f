// The table of aten ops: one row per op and overload. The names and defaults of its arguments are those of PyTorch's
// schema (torch/_C/_VariableFunctions and native_functions.yaml); the call is written with Gradual's ops. An in-place
// op (aten.relu_.default) needs no row: the module computes its functional form and writes the result.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"

namespace gradual::pt2 {

// Returns a Tensor, a number, or a list of outputs.
using OpFunction = std::function<Value(const Arguments& a)>;

// What a row's result shares with its argument 0.
enum class Aliasing : std::uint8_t {
  none,      // new memory
  view,      // the same memory
  may_view,  // the same memory where no copy is needed (reshape, contiguous, to)
};

// For a view: argument 0 with the numbers that `view`, its output `index`, has now. Null where that cannot be written.
using WriteThrough = Tensor (*)(const Arguments& a, const Tensor& view, int index);

// Rows whose call depends on the mode say with which argument the export recorded it; -1: none.
struct OpRow {
  const char* target;     // "aten.conv2d.default"
  const char* arguments;  // "input weight bias=None stride=1"
  Value (*call)(const Arguments& a);
  Aliasing aliasing = Aliasing::none;
  WriteThrough write_through = nullptr;
  int mode = -1;
};

std::span<const OpRow> arithmetic_rows();
std::span<const OpRow> product_rows();
std::span<const OpRow> view_rows();
std::span<const OpRow> reduction_rows();
std::span<const OpRow> index_rows();
std::span<const OpRow> creation_rows();
std::span<const OpRow> layer_rows();
std::span<const OpRow> activation_rows();
std::span<const OpRow> loss_rows();
std::span<const OpRow> image_rows();
std::span<const OpRow> window_rows();
std::span<const OpRow> recurrent_rows();
std::span<const OpRow> python_rows();

// An op ready to be called.
struct Op {
  std::string target;
  std::vector<std::string> names;  // of the arguments
  std::vector<Value> defaults;     // in the same order; a Ref with id -1 where there is none
  OpFunction call;
  Aliasing aliasing = Aliasing::none;
  WriteThrough write_through = nullptr;
  int mode = -1;
};

// The op of this name, or null.
const Op* find_op(std::string_view target);
std::vector<std::string> op_names();

// Makes an op of the user's known to load(), in this process; a later one replaces an earlier one of that name.
//   pt2::register_op("mylib.scale.default", "x factor=1.0", [](const pt2::Arguments& a) -> pt2::Value {
//     return a.tensor(0) * a.number(1);
//   });
// `arguments`: names separated by blanks, each with an optional default: None, True, False, a number, a 'text' or [].
void register_op(const std::string& target, const std::string& arguments, OpFunction function);

}  // namespace gradual::pt2
