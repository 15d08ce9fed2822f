#include "text.h"

#include <fmt/format.h>

#include <set>

#include "../core/input_file.h"
#include "gzip.h"

namespace gradual::data {

Vocabulary::Vocabulary(std::string_view corpus) {
  if (corpus.empty()) fail("vocabulary: the text is empty");
  const std::set<unsigned char> seen(corpus.begin(), corpus.end());
  characters_.assign(seen.begin(), seen.end());
}

Tensor Vocabulary::encode(std::string_view text) const {
  const Tensor tokens = empty({static_cast<std::int64_t>(text.size())}, {.dtype = DType::i64});
  auto* out = tokens.data<std::int64_t>();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t number = characters_.find(text[i]);
    if (number == std::string::npos)
      fail(fmt::format("vocabulary: character {} of the text has code {}, which is not among the {} of the vocabulary",
                       i, static_cast<unsigned char>(text[i]), size()));
    out[i] = static_cast<std::int64_t>(number);
  }
  return tokens;
}

std::string Vocabulary::decode(const Tensor& tokens) const {
  if (tokens.dtype() != DType::i64) fail("vocabulary: tokens are i64, not " + std::string(name(tokens.dtype())));
  std::string text;
  for (const std::int64_t token : tokens.to_vector<std::int64_t>()) {
    if (token < 0 || token >= size()) fail(fmt::format("vocabulary: token {} is outside of [0, {})", token, size()));
    text.push_back(characters_[static_cast<std::size_t>(token)]);
  }
  return text;
}

Dataset windows(const Tensor& tokens, std::int64_t context, std::int64_t stride) {
  if (context < 1 || stride < 1)
    fail(fmt::format("windows: context {} and stride {} must be at least 1", context, stride));
  if (tokens.ndim() != 1 || tokens.numel() <= context || !tokens.is_contiguous())
    fail("windows: tokens " + to_string(tokens.sizes()) + " must be one row of more than " + std::to_string(context));
  const auto from = [&](std::int64_t first) {
    return as_strided(tokens, {(tokens.numel() - context - 1) / stride + 1, context}, {stride, 1},
                      tokens.offset() + first);
  };
  return {.inputs = from(0), .targets = from(1)};
}

TextDataset make_text_dataset(std::string_view text, TextOptions o) {
  if (!(o.test_fraction > 0 && o.test_fraction < 1))
    fail("text: test_fraction " + std::to_string(o.test_fraction) + " must lie between 0 and 1");
  Vocabulary vocabulary(text);
  const auto cut = static_cast<std::size_t>(static_cast<double>(text.size()) * (1 - o.test_fraction));
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
  return make_text_dataset(gunzip_if_packed(read_file(path), path), options);
}

}  // namespace gradual::data
