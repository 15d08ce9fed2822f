#include "sum_tree.h"

#include <algorithm>
#include <span>

namespace gradual::inspect {
namespace {

// The addends that are added at once to the sum so far.
using Part = std::vector<const SumTree*>;

const SumTree& largest_addend(const SumTree& sum) {
  return *std::ranges::max_element(sum.children, {}, &SumTree::size);
}

// The average number of products of the addends, without the largest one.
std::size_t step(const SumTree& sum) {
  return static_cast<std::size_t>(sum.size - largest_addend(sum).size) / (sum.children.size() - 1);
}

// The parts of a sum, first to last. The beginning of a longer sum is a part of its own, a chunk, if it adds more at
// once or in shorter steps.
std::vector<Part> parts_of(const SumTree& sum) {
  const SumTree& begin = largest_addend(sum);
  std::vector<Part> parts;
  Part added;
  for (const SumTree& t : sum.children)
    if (&t != &begin) added.push_back(&t);
  const std::size_t at_once = begin.children.size();
  if (at_once > 0 && at_once <= sum.children.size() && step(sum) <= step(begin)) parts = parts_of(begin);
  else if (added.size() == 1) parts.push_back({&begin});
  else added.insert(added.begin(), &begin);
  parts.push_back(std::move(added));
  return parts;
}

bool is_shifted(const SumTree& a, const SumTree& b, int by) {
  const auto same = [by](const SumTree& x, const SumTree& y) { return is_shifted(x, y, by); };
  return a.size == b.size && b.first - a.first == by && std::ranges::equal(a.children, b.children, same);
}

// The number of parts, from `at` on, that repeat those `period` before them, all shifted by the same distance.
std::size_t repeats(const std::vector<Part>& parts, std::size_t at, std::size_t period) {
  std::size_t n = 0;
  for (; at + n + period < parts.size(); ++n) {
    const int by = parts[at + period][0]->first - parts[at][0]->first;
    const auto same = [by](const SumTree* x, const SumTree* y) { return is_shifted(*x, *y, by); };
    if (!std::ranges::equal(parts[at + n], parts[at + n + period], same)) break;
  }
  return n;
}

// True if a tree has a sum or product that shows as `part`.
bool has(const SumTree& tree, const SumTree& part) {
  return shows(part, tree) ||
         std::ranges::any_of(tree.children, [&](const SumTree& t) { return t.size >= part.size && has(t, part); });
}

}  // namespace

SumTree sum_of(std::vector<SumTree> addends) {
  std::ranges::sort(addends, {}, &SumTree::first);
  int size = 0;
  for (const SumTree& t : addends) size += t.size;
  // Initialisers run in their order. NOLINTNEXTLINE(bugprone-use-after-move)
  return {.first = addends.front().first, .size = size, .children = std::move(addends)};
}

SumTree sum_in_turn(std::vector<SumTree> addends) {
  SumTree sum = std::move(addends.front());
  for (std::size_t i = 1; i < addends.size(); ++i) {
    std::vector<SumTree> both(2);
    both[0] = std::move(sum);
    both[1] = std::move(addends[i]);
    sum = sum_of(std::move(both));
  }
  return sum;
}

int ways(const SumTree& tree) {
  auto most = static_cast<int>(tree.children.size());
  for (const SumTree& t : tree.children) most = std::max(most, ways(t));
  return most;
}

SumTree tree_of(const Accumulator& a, int terms) {
  const auto sum = [](const auto& self, int from, int to, int length, int inner) -> SumTree {
    std::vector<SumTree> parts;
    for (int at = from; at < to; at += length)
      parts.push_back(length == 1 ? SumTree{.first = at} : self(self, at, std::min(to, at + length), inner, 1));
    return sum_in_turn(std::move(parts));
  };
  return sum(sum, 0, terms, a.promote ? a.promote : terms, std::max(a.chunk, 1));
}

bool shows(const SumTree& found, const SumTree& truth) {
  if (found.first != truth.first || found.size != truth.size) return false;
  const bool exact = found.children.size() > 2 && found.adder.aligned == 0;
  if (!exact) return std::ranges::equal(found.children, truth.children, shows);
  return std::ranges::all_of(found.children, [&](const SumTree& part) { return has(truth, part); });
}

std::vector<std::array<double, 3>> points_of(const SumTree& tree) {
  std::vector<std::array<double, 3>> points;
  const auto add = [&](const auto& self, const SumTree& t, double parent) -> std::array<double, 3> {
    const std::size_t at = points.size();
    std::array<double, 3> point{static_cast<double>(t.first), 0, parent};
    points.push_back(point);
    double x = 0;
    for (const SumTree& child : t.children) {
      const std::array<double, 3> below = self(self, child, static_cast<double>(at));
      point[1] = std::max(point[1], below[1] + 1);
      x += below[0];
    }
    if (!t.children.empty()) point[0] = x / static_cast<double>(t.children.size());
    return points[at] = point;
  };
  add(add, tree, -1);
  return points;
}

std::string to_string(const SumTree& tree) {
  if (tree.children.empty()) return std::to_string(tree.first);
  const std::vector<Part> parts = parts_of(tree);
  std::string text;
  const auto write = [&](std::size_t from, std::size_t n) {
    for (const Part& part : std::span(parts).subspan(from, n)) {
      text += text.empty() ? "" : "+";
      for (const SumTree* t : part)
        text += (t == part.front() ? "" : "&") +
                (t->children.empty() ? std::to_string(t->first) : '(' + to_string(*t) + ')');
    }
  };
  for (std::size_t at = 0; at < parts.size();) {
    const std::size_t period = repeats(parts, at, 1) > 3 ? 1 : 2;
    const std::size_t more = repeats(parts, at, period) / period * period;
    const bool folds = more > 3 * period;
    write(at, folds ? 2 * period : 1);
    if (folds) {
      text += "+..";
      write(at + more, period);
    }
    at += folds ? more + period : 1;
  }
  return text;
}

}  // namespace gradual::inspect
