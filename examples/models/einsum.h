// Einstein's summation of one or two tensors, with ops: einsum("bij,bjk->bik", {a, b}). Without "->" the result has the
// letters that occur once, sorted. Two operands are one matmul, so autocast and recipes see it as one.
// std::invalid_argument for a letter twice in one operand, and for sizes that differ.
#pragma once

#include <gradual/gradual.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace models {

using namespace gradual;

namespace einsum_parts {

inline bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }

struct Equation {
  std::vector<std::string> operands = {""};
  std::string result;
  std::map<char, std::int64_t> size;

  Shape sizes(const std::string& letters) const {
    Shape s;
    for (const char c : letters) s.push_back(size.at(c));
    return s;
  }
};

inline Equation parse(std::string text, const std::vector<Tensor>& tensors) {
  std::erase(text, ' ');
  const auto need = [&](bool right, const char* what) {
    if (!right) throw std::invalid_argument("einsum: \"" + text + "\": " + what);
  };
  const std::size_t arrow = text.find("->");
  const std::string left = text.substr(0, arrow);
  Equation e;
  for (const char c : left)
    if (c == ',') e.operands.emplace_back();
    else e.operands.back() += c;
  need(e.operands.size() == tensors.size() && tensors.size() <= 2, "one or two operands are allowed, each a tensor");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string& letters = e.operands[i];
    need(std::ssize(letters) == tensors[i].dim(), "an operand has a letter for each dim");
    for (int d = 0; d < tensors[i].dim(); ++d) {
      const char c = letters[static_cast<std::size_t>(d)];
      need(std::isalpha(static_cast<unsigned char>(c)), "a dim is a letter");
      need(std::ranges::count(letters, c) == 1, "a letter is twice in one operand");
      need(e.size.try_emplace(c, tensors[i].size(d)).first->second == tensors[i].size(d), "a letter has one size");
    }
  }
  if (arrow != std::string::npos) e.result = text.substr(arrow + 2);
  else
    for (const auto& [c, n] : e.size)
      if (std::ranges::count(left, c) == 1) e.result += c;
  for (const char c : e.result)
    need(e.size.contains(c) && std::ranges::count(e.result, c) == 1, "the result has letters of operands, each once");
  return e;
}

inline Tensor permuted(const Tensor& x, const std::string& from, const std::string& to, Loc loc) {
  Shape dims;
  for (const char c : to) dims.push_back(static_cast<std::int64_t>(from.find(c)));
  return permute(x, dims, loc);
}

// Sums over the letters that are not in `kept`, and drops them from `letters`.
inline Tensor reduced(const Tensor& x, std::string& letters, const std::string& kept, Loc loc) {
  Shape dims;
  for (std::size_t d = 0; d < letters.size(); ++d)
    if (!has(kept, letters[d])) dims.push_back(static_cast<std::int64_t>(d));
  std::erase_if(letters, [&](char c) { return !has(kept, c); });
  return dims.empty() ? x : sum(x, dims, false, loc);
}

}  // namespace einsum_parts

inline Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands, Loc loc = Loc::current()) {
  using namespace einsum_parts;
  Equation e = parse(equation, operands);
  std::string& a = e.operands.front();
  std::string& b = e.operands.back();
  Tensor x = reduced(operands[0], a, operands.size() == 1 ? e.result : e.result + b, loc);
  if (operands.size() == 1) return permuted(x, a, e.result, loc);
  Tensor y = reduced(operands[1], b, e.result + a, loc);
  std::string batch, rows, columns, summed;
  for (const char c : a) (!has(b, c) ? rows : has(e.result, c) ? batch : summed) += c;
  for (const char c : b)
    if (!has(a, c)) columns += c;
  const std::int64_t k = numel(e.sizes(summed));
  const auto matrices = [&](std::int64_t m, std::int64_t n) {
    Shape s = e.sizes(batch);
    s.push_back(m), s.push_back(n);
    return s;
  };
  x = reshape(permuted(x, a, batch + rows + summed, loc), matrices(numel(e.sizes(rows)), k), loc);
  y = reshape(permuted(y, b, batch + summed + columns, loc), matrices(k, numel(e.sizes(columns))), loc);
  const std::string order = batch + rows + columns;
  return permuted(reshape(matmul(x, y, loc), e.sizes(order), loc), order, e.result, loc);
}

}  // namespace models
