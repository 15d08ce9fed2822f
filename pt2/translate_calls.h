// The calls of aten ops as C++ expressions.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "program.h"

namespace gradual::pt2 {

// A call to print, and what its arguments are called.
struct CallToPrint {
  const Program& program;
  const Step& step;
  std::function<std::string(int)> name;  // of a value
  std::string like;                      // a tensor on whose device new ones are made; empty: the CPU
  const std::set<std::string>& hidden;   // members whose names hide functions
};

struct Expression {
  std::string text;
  bool compound = false;     // an operator: wants parentheses inside another expression
  bool by_table = false;     // runs a row of the table of aten ops
  bool keeps_dtype = false;  // of argument 0
};

// The library's own function where it does what the row does, else pt2::call.
Expression expression_of(const CallToPrint& call);

// The text of a pattern ("nn::MaxPool2d({kernel_size:.kernel})", see the table in translate_calls.cpp) for this call;
// none where it does not fit.
std::optional<std::string> filled_pattern(const CallToPrint& call, const char* pattern);

// Whether the step's result is its argument 0.
bool is_identity(const Step& step);

// The row's arguments as a list of values: "{x, 1, {2, 3}}". Arguments at their defaults at the end are left out.
std::string argument_list(const CallToPrint& call);

// A literal that reads back as this number.
std::string number_text(double x);

// A string literal that reads back as this text: control characters are octal.
std::string quoted(const std::string& text);
// The text for a comment of one line: control characters and backslashes become blanks.
std::string comment_text(const std::string& text);

// Every function that expressions may call; local names must not hide them.
const std::set<std::string>& function_names();

}  // namespace gradual::pt2
