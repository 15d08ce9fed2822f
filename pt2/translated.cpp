#include "translated.h"

#include <algorithm>
#include <map>

#include "../autograd/activation_checkpoint.h"
#include "../core/support/message_text.h"
#include "../core/support/throwf.h"
#include "archive.h"
#include "ops_table.h"
#include "weights.h"

namespace gradual::pt2 {
namespace {

// The first tensor in a value, or null.
const Tensor* first_tensor(const Value& v) {
  if (const Tensor* const t = v.get<Tensor>()) return t->defined() ? t : nullptr;
  const Value::List* const list = v.get<Value::List>();
  if (!list) return nullptr;
  for (const Value& item : *list)
    if (const Tensor* const t = first_tensor(item)) return t;
  return nullptr;
}

CallSite site_of(const nn::Module& module, const std::vector<Value>& arguments) {
  CallSite site;
  site.training = module.training();
  for (const Value& v : arguments) {
    const Tensor* const t = first_tensor(v);
    if (!t) continue;
    site.device = t->device();
    if (t->dtype() == DType::f64) site.real = DType::f64;
    return site;
  }
  const std::vector<Tensor> parameters = module.parameters();
  if (!parameters.empty()) site.device = parameters.front().device();
  return site;
}

const Op& op_of(const char* target) {
  const Op* const op = find_op(target);
  if (!op) throwf("pt2: there is no op {}", target);
  return *op;
}

void add_defaults(const Op& op, std::vector<Value>& arguments) {
  if (arguments.size() > op.defaults.size())
    throwf("{}: {} arguments; it takes {}", op.target, arguments.size(), op.defaults.size());
  for (std::size_t i = arguments.size(); i < op.defaults.size(); ++i) {
    if (op.defaults[i].get<Ref>()) throwf("{}: lacks the argument '{}'", op.target, op.names[i]);
    arguments.push_back(op.defaults[i]);
  }
}

Value result_of(const nn::Module& module, const char* target, std::vector<Value>& arguments, Loc loc) {
  const Op& op = op_of(target);
  return in_context(target, [&] {
    add_defaults(op, arguments);
    CallSite site = site_of(module, arguments);
    site.names = op.names.data();
    const Scoped line(context().line, loc);
    return op.call(Arguments(arguments, site));
  });
}

[[noreturn]] void no_such(const char* target, const Value& given, const char* wanted) {
  throwf("{}: gives {}, not {}", target, describe(given), wanted);
}

}  // namespace

Tensor call(const nn::Module& module, const char* target, std::vector<Value> arguments, Loc loc) {
  const Value result = result_of(module, target, arguments, loc);
  const Tensor* const t = result.get<Tensor>();
  if (!t) no_such(target, result, "a tensor");
  return *t;
}

std::vector<Tensor> call_many(const nn::Module& module, const char* target, std::vector<Value> arguments, Loc loc) {
  const Value result = result_of(module, target, arguments, loc);
  const Value::List* const list = result.get<Value::List>();
  if (!list) no_such(target, result, "a list of tensors");
  std::vector<Tensor> all;
  for (const Value& v : *list) {
    const Tensor* const t = v.get<Tensor>();
    all.push_back(t ? *t : Tensor());
  }
  return all;
}

std::int64_t call_integer(const nn::Module& module, const char* target, std::vector<Value> arguments, Loc loc) {
  const Value result = result_of(module, target, arguments, loc);
  if (const bool* const b = result.get<bool>()) return *b ? 1 : 0;
  const std::int64_t* const n = result.get<std::int64_t>();
  if (!n) no_such(target, result, "an integer");
  return *n;
}

double call_number(const nn::Module& module, const char* target, std::vector<Value> arguments, Loc loc) {
  const Value result = result_of(module, target, arguments, loc);
  const double* const x = result.get<double>();
  if (!x) no_such(target, result, "a number");
  return *x;
}

Tensor write_through(const nn::Module& module, const char* target, std::vector<Value> arguments, const Tensor& view,
                     int place, Loc loc) {
  const Op& op = op_of(target);
  if (!op.write_through) throwf("{}: its views cannot be written through", target);
  return in_context(target, [&] {
    add_defaults(op, arguments);
    CallSite site = site_of(module, arguments);
    site.names = op.names.data();
    const Scoped line(context().line, loc);
    return op.write_through(Arguments(arguments, site), view, place);
  });
}

void update(Tensor& buffer, const Tensor& value) {
  if (recomputing()) return;
  const NoGrad no_grad;
  buffer.detach().copy_(value.detach());
}

Tensor in_place_of(const Tensor& old, const Tensor& value) {
  const Tensor same = cast(value, old.dtype());
  return same.sizes() == old.sizes() ? same : expand(same, old.sizes());
}

Tensor constant(const std::string& archive, const std::string& key) {
  const Archive file(archive);
  return in_context("pt2 \"" + archive + "\"", [&] {
    const std::map<std::string, Weight> constants = read_constants(file);
    const std::map<std::string, Weight> weights = read_weights(file);
    for (const auto* const tensors : {&constants, &weights})
      if (const auto found = tensors->find(key); found != tensors->end()) return found->second.tensor;
    throwf("the archive has no tensor {}", key);
  });
}

}  // namespace gradual::pt2
