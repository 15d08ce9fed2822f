#include "ops_table.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <mutex>

#include "../core/support/throwf.h"

namespace gradual::pt2 {
namespace {

Value parse_default(std::string_view text) {
  if (text == "None") return {};
  if (text == "True") return true;
  if (text == "False") return false;
  if (text == "[]") return Value::List{};
  if (text.size() >= 2 && text.front() == '\'' && text.back() == '\'')
    return std::string(text.substr(1, text.size() - 2));
  const char* const end = text.data() + text.size();
  std::int64_t n = 0;
  if (const auto read = std::from_chars(text.data(), end, n); read.ec == std::errc() && read.ptr == end) return n;
  double x = 0;
  if (const auto read = std::from_chars(text.data(), end, x); read.ec == std::errc() && read.ptr == end) return x;
  throwf("the default '{}' is not None, True, False, [], a number or a 'text'", text);
}

Op make_op(const std::string& target, std::string_view arguments, OpFunction call) {
  Op op;
  op.target = target;
  op.call = std::move(call);
  while (!arguments.empty()) {
    const auto end = std::min(arguments.find(' '), arguments.size());
    const std::string_view argument = arguments.substr(0, end);
    arguments.remove_prefix(std::min(end + 1, arguments.size()));
    if (argument.empty()) continue;
    const auto equals = argument.find('=');
    op.names.emplace_back(argument.substr(0, equals));
    const bool required = equals == std::string_view::npos;
    op.defaults.push_back(required ? Value(Ref{-1}) : parse_default(argument.substr(equals + 1)));
  }
  return op;
}

std::map<std::string, Op, std::less<>> make_table() {
  std::map<std::string, Op, std::less<>> table;
  const auto rows = {arithmetic_rows(), product_rows(),   view_rows(),  reduction_rows(),  index_rows(),
                     creation_rows(),   layer_rows(),     loss_rows(),  activation_rows(), image_rows(),
                     window_rows(),     recurrent_rows(), python_rows()};
  for (const std::span<const OpRow> part : rows) {
    for (const OpRow& row : part) {
      Op op = make_op(row.target, row.arguments, row.call);
      op.aliasing = row.aliasing;
      op.write_through = row.write_through;
      op.mode = row.mode;
      if (!table.emplace(row.target, std::move(op)).second) throwf("internal: two rows for {}", row.target);
    }
  }
  return table;
}

std::map<std::string, Op, std::less<>>& table() {
  static auto* const all = new auto(make_table());
  return *all;
}

std::mutex& table_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

}  // namespace

const Op* find_op(std::string_view target) {
  const std::lock_guard lock(table_mutex());
  const auto found = table().find(target);
  return found == table().end() ? nullptr : &found->second;
}

std::vector<std::string> op_names() {
  const std::lock_guard lock(table_mutex());
  std::vector<std::string> names;
  for (const auto& [name, op] : table()) names.push_back(name);
  return names;
}

void register_op(const std::string& target, const std::string& arguments, OpFunction function) {
  if (target.empty()) throw_error("register_op: the name is empty");
  Op op = in_context("register_op: " + target,
                     [&] { return make_op(target, arguments, not_null(std::move(function), "the function")); });
  const std::lock_guard lock(table_mutex());
  table().insert_or_assign(target, std::move(op));
}

}  // namespace gradual::pt2
