#include <algorithm>
#include <cctype>
#include <map>

#include "../support/throwf.h"
#include "derived_ops.h"

namespace gradual {
namespace {

bool has(const std::string& letters, char c) { return letters.find(c) != std::string::npos; }

// The letters of each operand and of the result, and the size of each letter.
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

Equation parse(std::string text, const std::vector<Tensor>& tensors) {
  std::erase(text, ' ');
  const auto need = [&](bool right, const char* what) {
    if (!right) throwf("einsum: \"{}\": {}", text, what);
  };
  const std::size_t arrow = text.find("->");
  Equation e;
  for (const char c : text.substr(0, arrow))
    if (c == ',') e.operands.emplace_back();
    else e.operands.back() += c;
  need(e.operands.size() == tensors.size() && tensors.size() <= 2, "one or two operands are allowed, each a tensor");
  std::map<char, int> uses;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string& letters = e.operands[i];
    need(std::ssize(letters) == tensors[i].dim(), "an operand has a letter for each dim");
    for (int d = 0; d < tensors[i].dim(); ++d) {
      const char c = letters[static_cast<std::size_t>(d)];
      need(std::isalpha(static_cast<unsigned char>(c)), "a dim is a letter");
      need(std::ranges::count(letters, c) == 1, "a letter is twice in one operand");
      need(e.size.try_emplace(c, tensors[i].size(d)).first->second == tensors[i].size(d), "a letter has one size");
      ++uses[c];
    }
  }
  if (arrow != std::string::npos) e.result = text.substr(arrow + 2);
  else
    for (const auto& [c, n] : uses)
      if (n == 1) e.result += c;
  for (const char c : e.result)
    need(e.size.contains(c) && std::ranges::count(e.result, c) == 1, "the result has letters of operands, each once");
  return e;
}

Tensor permuted(const Tensor& x, const std::string& from, const std::string& to, Loc loc) {
  Shape dims;
  for (const char c : to) dims.push_back(static_cast<std::int64_t>(from.find(c)));
  return permute(x, dims, loc);
}

// Sums over the letters that are not in `kept`, and drops them from `letters`.
Tensor reduced(const Tensor& x, std::string& letters, const std::string& kept, Loc loc) {
  Shape dims;
  for (std::size_t d = 0; d < letters.size(); ++d)
    if (!has(kept, letters[d])) dims.push_back(static_cast<std::int64_t>(d));
  std::erase_if(letters, [&](char c) { return !has(kept, c); });
  return dims.empty() ? x : sum(x, dims, false, loc);
}

}  // namespace

Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands, Loc loc) {
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
  const auto matrices = [&](const Tensor& t, const std::string& from, const std::string& m, const std::string& n) {
    Shape sizes = e.sizes(batch);
    sizes.push_back(numel(e.sizes(m)));
    sizes.push_back(numel(e.sizes(n)));
    return reshape(permuted(t, from, batch + m + n, loc), sizes, loc);
  };
  const Tensor z = matmul(matrices(x, a, rows, summed), matrices(y, b, summed, columns), loc);
  const std::string order = batch + rows + columns;
  return permuted(reshape(z, e.sizes(order), loc), order, e.result, loc);
}

}  // namespace gradual
