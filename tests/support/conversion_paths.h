// For tests of code that the processor chooses.
#pragma once

#include "gradual/core/convert.h"

namespace reference {

// Runs body with each path that the processor has, and puts back the one before.
template <class F> void for_each_path(const F& body) {
  using gradual::ConversionPath;
  for (const auto path : {ConversionPath::portable, ConversionPath::avx2, ConversionPath::avx512}) {
    if (path > gradual::best_conversion_path()) break;
    const ConversionPath before = gradual::set_conversion_path(path);
    body(path);
    gradual::set_conversion_path(before);
  }
}

}  // namespace reference
