// What kind of op a step is, for judge(). Internal to it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "judge_step.h"

namespace gradual::lab {

// Whether the step only arranges elements, without rounding.
bool only_arranges(const pt2::Step& step);
// Whether the step draws random numbers: its results cannot be computed again.
bool draws(const pt2::Step& step);
// Whether it has sums inside, for whose errors there is an estimate only.
bool has_sums_inside(const pt2::Step& step);
// Whether its derivative jumps. Where an operand is at the jump, or nearer than its error, either side may be taken.
bool derivative_jumps(const pt2::Step& step);
// Whether its op is `name` in any overload: "aten.add" of "aten.add.Tensor".
bool is_op(const pt2::Step& step, std::string_view name);

// Argument i as what it holds; null for others and where there is none.
template <class T> const T* argument_of(const pt2::Step& step, std::size_t i) {
  return i < step.arguments.size() ? step.arguments[i].get<T>() : nullptr;
}
// The value that argument i names; -1: it is no tensor.
int id_of(const pt2::Step& step, std::size_t i);
// An integer or a list of them; empty for others.
std::vector<std::int64_t> integers_of(const pt2::Step& step, std::size_t i);

// How many windows of an average pool overlap at an element; 1 for other steps. PyTorch adds up the gradients of these
// windows in the stored dtype.
double windows_over_an_element(const pt2::Step& step);

}  // namespace gradual::lab
