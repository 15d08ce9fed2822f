// The loss of a tensor in each format, and the scale at which it is least.
//
//   const WhatIf w = what_if(weight.grad());
//   w.loss_scale;                    // the loss scale for such gradients in f16
//   w.of("e4m3fn").best.scale;       // the power of two at which e4m3fn loses least
//   w.of("e4m3fn").best_by(Criterion::kept).scale;   // and by another criterion: an outlier decides the first alone
//   std::puts(to_string(w).c_str());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../formats/rounding.h"
#include "../tensor/tensor.h"
#include "quantizer.h"

namespace gradual {

struct NamedQuantizer {
  std::string name;
  Quantizer quantizer;
};
// MX, NVFP4 and MSFP, with blocks along the last dim.
std::vector<NamedQuantizer> block_quantizers();

struct WhatIfOptions {
  std::vector<Format> also = {};  // in addition to the common named formats
  std::vector<NamedQuantizer> blocks = block_quantizers();
  Rounding rounding = {};  // values beyond the largest one saturate
  int headroom = 3;        // powers of two between the proposed loss scale and overflow
  // The sweep has 1 and the powers of two from min(1, L) to 2^above L, with L the largest power of two at which nothing
  // overflows. Below this range rounding to nearest loses no less.
  int above = 8;
};

// The loss in one format at one scale. Shares (0 to 1) are of the tensor's finite elements that are not zero; zeros,
// NaN and Inf are left out.
struct ScaleLoss {
  double scale = 1;         // the tensor is multiplied by it, and divided by it after rounding
  double underflow = 0;     // the share that becomes zero
  double subnormal = 0;     // the share that becomes subnormal, with fewer bits
  double overflow = 0;      // the share beyond the largest value
  double sqnr_db = 0;       // signal to quantisation noise, 10 log10(sum x^2 / sum (x - q(x))^2); Inf: nothing is lost
  double median_error = 0;  // of |x - q(x)| / |x| over at most 4096 elements, evenly spaced
  double kept() const { return 1 - underflow - overflow; }
};

// What makes a scale better than another. The largest elements decide sqnr, single ones if they are outliers; all
// elements count alike for the others.
enum class Criterion : std::uint8_t {
  sqnr,
  kept,   // the share that neither vanishes nor overflows; of equal ones, median
  median  // the least median error
};

struct FormatLoss {
  std::string name;
  Format format;
  ScaleLoss unscaled = {};            // at scale 1
  ScaleLoss best = {};                // the sweep's power of two with the best sqnr_db; of equal ones, the nearest to 1
  ScaleLoss amax = {};                // at max / amax, which maps the largest element to the format's largest value
  std::vector<ScaleLoss> sweep = {};  // in ascending order of scale; 1 is included

  const ScaleLoss& best_by(Criterion criterion) const;  // in the sweep; of equal ones, the nearest to 1
};

struct BlockLoss : NamedQuantizer {
  ScaleLoss loss;  // with scale 1
};

struct WhatIf {
  std::int64_t elements = 0;
  std::int64_t zeros = 0;
  std::int64_t nan = 0;
  std::int64_t inf = 0;
  // the largest and smallest magnitude of finite nonzero elements; 0 without any
  double amax = 0;
  double amin = 0;
  int headroom = 0;
  double loss_scale = 1;                 // for gradients in f16: 2^(floor(log2(65504 / amax)) - headroom)
  std::vector<FormatLoss> formats = {};  // the common named_formats() with a zero, then WhatIfOptions::also
  std::vector<BlockLoss> blocks = {};    // WhatIfOptions::blocks

  // The loss in the format with this name. Error that lists the formats for another name.
  const FormatLoss& of(std::string_view name) const;
};

// x is a floating tensor of any sizes on any device. A product with a power of two is exact and rounded once. The sweep
// has only scales at which the format with a shifted bias is a valid Format (see check_valid(Format)); formats with
// f32's exponents have the scale 1 only. A table (format_table.h) is swept as max / amax is: the product with a scale
// may round where it leaves the normal numbers.
WhatIf what_if(const Tensor& x, const WhatIfOptions& options = {});
// A table with one line per format.
std::string to_string(const WhatIf& w);
// A scale as text: "2^12", "0.3", "1".
std::string scale_text(double scale);

}  // namespace gradual
