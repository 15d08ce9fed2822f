// A quantiser's call, as observers receive it (core/observe/observer.h).
#pragma once

#include "../observe/observer.h"
#include "quantizer.h"

namespace gradual {

struct QuantizerCall {
  // values: `to` times `scale` is `from` rounded. encode: `to` holds codes of `from`, u8 [bytes].
  // decode: `to` times `scale` is what the codes `from` stand for.
  enum Kind : std::uint8_t { values, encode, decode };
  Kind kind;
  // scale: f32 that broadcasts to `to` (values), or the codes' own; undefined: 1
  const Tensor& from;
  const Tensor& to;
  const Tensor& scale;
  const Quantizer* quantizer;  // null: decode
  int axis;                    // the contracted one
  // values: all that the result depends on besides `from` and the quantizer.
  struct Circumstances {
    // Of `from`, where the tensor has one scale; else 1. 0: a GPU computed the tensor's scale, and the host has not
    // waited.
    float factor = 1;
    bool scale_apart = false;  // `to` is without the scales of tensors and rows, which are 1 where `scale` is undefined
    bool amax_of_more = false;       // `from` is a part; scales follow from the amax of all parts
    std::int64_t first_element = 0;  // its number, for random words
    RandomKey key = {};
  };
  Circumstances circumstances = {};
  // The innermost custom op in which it runs; null: none. tell_observers() sets it.
  const CustomAttrs* within = nullptr;

  void tell_observers() const;
};

}  // namespace gradual
