// Character text: a model receives a window of characters and learns to predict the next character at each position.
#pragma once

#include <string>
#include <string_view>

#include "dataset.h"

namespace gradual::data {

// Numbers the characters of a text in the order of their codes. A character is a byte, so any text works; a letter
// outside ASCII is several characters.
class Vocabulary {
 public:
  explicit Vocabulary(std::string_view corpus);  // the characters that occur in it; Error if it is empty

  std::int64_t size() const { return static_cast<std::int64_t>(characters_.size()); }
  const std::string& characters() const { return characters_; }
  // i64 [text.size()]. Error naming the first character that is not in the vocabulary, and its position.
  Tensor encode(std::string_view text) const;
  // The inverse, for i64 of any shape, row-major. Error for a number outside of [0, size()).
  std::string decode(const Tensor& tokens) const;

 private:
  std::string characters_;
};

struct TextOptions {
  std::int64_t context = 64;   // characters in a window
  std::int64_t stride = 0;     // from the start of one window to the next; 0: context, so windows do not overlap
  double test_fraction = 0.1;  // share of the text, at its end, for the test
};

// The vocabulary is that of the whole text. The test windows are at its end and do not overlap the training windows.
struct TextDataset {
  Vocabulary vocabulary;
  Dataset train;
  Dataset test;
};

// Inputs and targets are i64 [N, context] views of one token array: window i starts at i * stride, targets are shifted
// by one character. Error if the text is shorter than one window.
Dataset windows(const Tensor& tokens, std::int64_t context, std::int64_t stride);

// `name` stands for the text in messages.
TextDataset make_text_dataset(std::string_view text, TextOptions options = {}, const std::string& name = "text");
TextDataset read_text(const std::string& path, TextOptions options = {});  // a plain or gzipped file

// Addition as a language: a very small task that a transformer can learn.
struct Addition {
  Vocabulary vocabulary;  // "+0123456789="
  Dataset problems;       // all pairs of numbers of that many digits, leading zeros included, in order
  int digits = 2;

  // "12+34=": the prompt for the model; Error for a number of more digits.
  std::string prompt(std::int64_t a, std::int64_t b) const;
  // "640": the expected continuation, the sum's digits in reverse order, so that the carry is known when it is needed.
  std::string answer(std::int64_t a, std::int64_t b) const;
};

// Sequences such as "12+34=640". Inputs are i64 [N, T] with T = 3 * digits + 2: all characters except the last. Targets
// are the following characters, with cross_entropy's ignore_index -100 inside the problem, so that only the answer
// counts. N = 100^digits. Error outside of 1 to 3 digits.
Addition addition(int digits = 2);

}  // namespace gradual::data
