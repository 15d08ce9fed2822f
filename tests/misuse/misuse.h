// A misuse of the public API and what it gives: the message of an Error, or a value where the library defines one.
#pragma once

#include <gradual/gradual.h>

#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

namespace test {

// A value as the tables write it: "= f32: 1 nan", "= true", "= text".
inline std::string text(const gradual::Tensor& t) {
  if (!t.defined()) return "undefined";
  std::ostringstream out;
  out << to_string(t.dtype()) << ":";
  for (const double v : t.to_vector<double>()) {
    if (std::isnan(v)) out << " nan";  // without its sign
    else out << " " << v;
  }
  return out.str();
}
inline std::string text(const std::string& s) { return s; }
inline std::string text(bool b) { return b ? "true" : "false"; }
inline std::string text(double v) { return text(gradual::scalar(v, {.dtype = gradual::DType::f64})).substr(5); }

class Misuse {
 public:
  // expected: a part of the Error's message, or "= VALUE" of a call that returns one. A call without a result that must
  // pass gives "= done".
  template <class F>
  Misuse(std::string name, F f, std::string expected) : name_(std::move(name)), expected_(std::move(expected)) {
    run_ = [f]() -> std::string {
      if constexpr (std::is_void_v<decltype(f())>) {
        f();
        return "= done";
      } else return "= " + text(f());
    };
  }
  const std::string& name() const { return name_; }
  const std::string& expected() const { return expected_; }
  // What it gives. Any exception that is no Error is named as such.
  std::string outcome() const {
    try {
      return run_();
    } catch (const gradual::Error& e) { return e.what(); } catch (const std::exception& e) {
      return std::string("ANOTHER EXCEPTION: ") + e.what();
    }
  }

 private:
  std::string name_;
  std::function<std::string()> run_;
  std::string expected_;
};

using Misuses = std::vector<Misuse>;

// The tables, by area.
Misuses tensor_misuses();
Misuses op_misuses();
Misuses layer_op_misuses();
Misuses autograd_misuses();
Misuses nn_misuses();
Misuses optim_misuses();
Misuses amp_misuses();
Misuses format_misuses();
Misuses data_misuses();
Misuses file_misuses();
Misuses lab_misuses();

}  // namespace test
