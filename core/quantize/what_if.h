// What would a tensor lose in each format, at which scale would it lose least?
//
//   const WhatIf w = what_if(weight.grad());
//   w.loss_scale;                    // what to multiply the loss by, if such gradients were f16
//   w.of("e4m3fn").best.scale;       // the power of two at which e4m3fn keeps most of it
//   std::puts(to_string(w).c_str());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../formats/rounding.h"
#include "../tensor/tensor.h"

namespace gradual {

struct WhatIfOptions {
  std::vector<Format> also = {};  // beside the named formats
  Rounding rounding = {};         // values beyond the largest one saturate
  int headroom = 3;               // of the proposed loss scale: powers of two kept free below overflow
  // The sweep is the powers of two from 1 (or from the largest one at which nothing overflows, where that is smaller) to
  // 2^above times the largest one at which nothing overflows. Nearest rounding gains nothing below that range.
  int above = 8;
};

// One format at one scale. Shares (0 to 1) are of the tensor's finite elements that are not zero; its zeros, NaN and Inf
// lose nothing and are left out.
struct ScaleLoss {
  double scale = 1;      // times the tensor; divided out again after rounding
  double underflow = 0;  // become zero
  double subnormal = 0;  // become subnormal values, which have fewer bits
  double overflow = 0;   // lie beyond the largest value
  double sqnr_db = 0;    // signal to quantisation noise, 10 log10(sum x^2 / sum (x - q(x))^2); Inf: nothing is lost
};

struct FormatLoss {
  std::string name;
  Format format;
  ScaleLoss unscaled = {};  // at scale 1
  ScaleLoss best = {};      // the power of two of the sweep with the best sqnr_db; of equals, the nearest to 1
  ScaleLoss amax = {};      // at max / amax, which puts the largest element on the format's largest value
  std::vector<ScaleLoss> sweep = {};  // by rising scale; 1 is always there
};

struct WhatIf {
  std::int64_t elements = 0, zeros = 0, nan = 0, inf = 0;
  double amax = 0, amin = 0;  // the largest and smallest magnitude of the finite elements that are not zero; 0: none
  int headroom = 0;
  double loss_scale = 1;                 // for gradients in f16: 2^(floor(log2(65504 / amax)) - headroom)
  std::vector<FormatLoss> formats = {};  // those of named_formats() that hold values, then WhatIfOptions::also

  // Error listing the formats.
  const FormatLoss& of(std::string_view name) const;
};

// x: any floating tensor. Scaling by a power of two is exact and rounded once, at every scale whose format is a Format
// itself (see check_valid(Format)): formats with f32's exponents have the scale 1 alone.
WhatIf what_if(const Tensor& x, const WhatIfOptions& options = {});
// A table, one line a format.
std::string to_string(const WhatIf& w);
// A format's sweep, one line a scale.
std::string to_string(const FormatLoss& loss);
// "2^12", "0.3", "1".
std::string scale_text(double scale);

}  // namespace gradual
