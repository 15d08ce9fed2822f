#include "value.h"

#include "../core/ops/op.h"
#include "../core/support/throwf.h"

namespace gradual::pt2 {

Value list_of(const std::vector<Tensor>& tensors) {
  Value::List list;
  for (const Tensor& t : tensors) list.emplace_back(t);
  return list;
}

namespace {

struct Describe {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(Ref) const { return "a value"; }
  std::string operator()(const Tensor& t) const { return "a tensor " + gradual::describe(t); }
  std::string operator()(bool b) const { return b ? "true" : "false"; }
  std::string operator()(std::int64_t n) const { return fmt::format("the integer {}", n); }
  std::string operator()(double x) const { return fmt::format("the number {:g}", x); }
  std::string operator()(const std::string& s) const { return fmt::format("the text '{}'", s); }
  std::string operator()(DType d) const { return fmt::format("the dtype {}", to_string(d)); }
  std::string operator()(const Value::List& list) const { return fmt::format("a list of {}", list.size()); }
};

}  // namespace

std::string describe(const Value& value) { return std::visit(Describe{}, value.of); }

}  // namespace gradual::pt2
