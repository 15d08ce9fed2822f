#include "text.h"

#include <algorithm>
#include <set>

#include "../core/files/input_file.h"
#include "../core/support/throwf.h"
#include "gzip.h"

namespace gradual::data {

Vocabulary::Vocabulary(std::string_view corpus) {
  if (corpus.empty()) throw_error("vocabulary: the text is empty");
  const std::set<unsigned char> seen(corpus.begin(), corpus.end());
  characters_.assign(seen.begin(), seen.end());
}

Tensor Vocabulary::encode(std::string_view text) const {
  const Tensor tokens = empty({static_cast<std::int64_t>(text.size())}, {.dtype = DType::i64});
  auto* out = tokens.data<std::int64_t>();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t number = characters_.find(text[i]);
    if (number == std::string::npos)
      throwf("vocabulary: character {} of the text has code {}, which is not among the {} of the vocabulary", i,
             static_cast<unsigned char>(text[i]), size());
    out[i] = static_cast<std::int64_t>(number);
  }
  return tokens;
}

std::string Vocabulary::decode(const Tensor& tokens) const {
  if (tokens.dtype() != DType::i64) throwf("vocabulary: tokens are i64, not {}", to_string(tokens.dtype()));
  std::string text;
  for (const std::int64_t token : tokens.to_vector<std::int64_t>()) {
    if (token < 0 || token >= size()) throwf("vocabulary: token {} is outside of [0, {})", token, size());
    text.push_back(characters_[static_cast<std::size_t>(token)]);
  }
  return text;
}

Dataset windows(const Tensor& tokens, std::int64_t context, std::int64_t stride) {
  if (context < 1 || stride < 1) throwf("windows: context {} and stride {} must be at least 1", context, stride);
  if (tokens.dim() != 1 || tokens.numel() <= context || !tokens.is_contiguous())
    throwf("windows: tokens {} must be one row of more than {}", to_string(tokens.sizes()), context);
  const auto from = [&](std::int64_t first) {
    return as_strided(tokens, {(tokens.numel() - context - 1) / stride + 1, context}, {stride, 1},
                      tokens.offset() + first);
  };
  return {.inputs = from(0), .targets = from(1)};
}

TextDataset make_text_dataset(std::string_view text, TextOptions o, const std::string& name) {
  if (!(o.test_fraction > 0 && o.test_fraction < 1))
    throwf("text: test_fraction {} must lie between 0 and 1", o.test_fraction);
  const auto cut = static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - o.test_fraction));
  if (o.context > 0 && std::min(cut, text.size() - cut) <= static_cast<std::size_t>(o.context))
    throwf("{}: {} characters, {} to train and {} to test; both must be more than the {} of a window", name,
           text.size(), cut, text.size() - cut, o.context);
  Vocabulary vocabulary(text);
  const auto part = [&](std::string_view piece) {
    Dataset d = windows(vocabulary.encode(piece), o.context, o.stride == 0 ? o.context : o.stride);
    d.classes = vocabulary.size();
    d.name = "text";
    return d;
  };
  Dataset train = part(text.substr(0, cut));
  Dataset test = part(text.substr(cut));
  return {std::move(vocabulary), std::move(train), std::move(test)};
}

TextDataset read_text(const std::string& path, TextOptions options) {
  return make_text_dataset(gunzip_if_packed(read_file(path), path), options, path);
}

// The count of numbers with that many digits.
static std::int64_t count_of(int digits) { return digits == 1 ? 10 : 10 * count_of(digits - 1); }

std::string Addition::prompt(std::int64_t a, std::int64_t b) const {
  const std::int64_t limit = count_of(digits);
  if (a < 0 || b < 0 || a >= limit || b >= limit) throwf("addition: {} + {}: both must lie in [0, {})", a, b, limit);
  return fmt::format("{:0{}}+{:0{}}=", a, digits, b, digits);
}

std::string Addition::answer(std::int64_t a, std::int64_t b) const {
  prompt(a, b);  // checks them
  const std::string text = fmt::format("{:0{}}", a + b, digits + 1);
  return {text.rbegin(), text.rend()};
}

Addition addition(int digits) {
  if (digits < 1 || digits > 3) throwf("addition: {} digits; 1 to 3 are allowed", digits);
  Addition out{.vocabulary = Vocabulary("+0123456789="), .problems = {}, .digits = digits};
  const std::int64_t limit = count_of(digits);
  std::string text;
  for (std::int64_t a = 0; a < limit; ++a)
    for (std::int64_t b = 0; b < limit; ++b) text += out.prompt(a, b) + out.answer(a, b);
  const Tensor rows = out.vocabulary.encode(text).reshape({limit * limit, 3 * digits + 3});
  const Tensor inputs = rows.narrow(1, 0, 3 * digits + 2).contiguous();
  const Tensor targets = rows.narrow(1, 1, 3 * digits + 2).contiguous();
  targets.narrow(1, 0, 2 * digits + 1).fill_(-100);  // those that complete the problem, its '=' included
  out.problems = {.inputs = inputs, .targets = targets, .classes = out.vocabulary.size(), .name = "addition"};
  return out;
}

}  // namespace gradual::data
