#include "digits.h"

#include "../core/ops/ops.h"
#include "csv.h"

namespace gradual::embedded {
extern const unsigned char digits_csv_gz[];
extern const unsigned long digits_csv_gz_size;
}  // namespace gradual::embedded

namespace gradual::data {

Dataset digits() {
  const std::string_view packed(reinterpret_cast<const char*>(embedded::digits_csv_gz), embedded::digits_csv_gz_size);
  const Tensor table = parse_csv(packed, "digits.csv.gz", 65);
  const Tensor pixels = (table.narrow(1, 0, 64) / 16.0 - 0.3053) / 0.3760;  // in f64
  return {.inputs = pixels.to(DType::f32).reshape({-1, 1, 8, 8}),
          .targets = table.select(1, 64).to(DType::i64),
          .classes = 10,
          .name = "digits"};
}

}  // namespace gradual::data
