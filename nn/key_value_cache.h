// Keys and values of the tokens that an attention has seen: the next token needs no more of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "../core/quantize/quantizer.h"
#include "../core/tensor/tensor.h"

namespace gradual::nn {

struct KeyValues {
  Tensor keys, values;  // [.., heads, length, E / heads]
};

// Of one attention. Copies share no later tokens.
class KeyValueCache {
 public:
  // quantizer: how keys and values are kept between the calls, along the last dim; none: as they are. Scales are those
  // of the tokens of one call. With a scale for a tensor, alone or above those of blocks (nvfp4), and with tiles they
  // depend on how many tokens a call brings, with scales of rows or of blocks alone they do not. Random numbers are
  // drawn in each call. Error for delayed scaling, Hadamard transforms and subtracted means.
  explicit KeyValueCache(std::optional<Quantizer> quantizer = {});

  // Keeps those of further tokens. Returns those of all tokens so far, in the dtypes that were given: codes are read as
  // f32 and rounded to them. Error, with nothing kept, for sizes that differ from earlier ones in more than the number
  // of tokens, for another dtype, and for tensors that require gradients, which a cache would lose.
  KeyValues append(const KeyValues& added);
  std::int64_t length() const { return length_; }  // tokens
  std::size_t nbytes() const;                      // what is kept: numbers, or codes and scales

 private:
  struct Codes {
    QuantizedTensor keys, values;
  };
  void check(const KeyValues& added) const;

  std::optional<Quantizer> quantizer_;
  KeyValues kept_ = {};            // without a quantizer
  std::vector<Codes> codes_ = {};  // with one: of each call
  std::int64_t length_ = 0;
  Shape without_tokens_ = {};  // of the first call, with a length of 0
  DType dtype_ = DType::f32;
};
// One for each attention of a model, in the order of its layers.
using KeyValueCaches = std::vector<KeyValueCache>;

// A format by its name (see format()) as serving systems keep keys and values: formats of up to 8 bits with one f32
// scale for each token of each head (RowScale), wider ones without scales.
Quantizer cache_quantizer(std::string_view format_name);

}  // namespace gradual::nn
