#include "digits.h"

#include "csv.h"
#include "gzip.h"

namespace gradual::embedded {
extern const unsigned char digits_csv_gz[];
extern const unsigned long digits_csv_gz_size;
}  // namespace gradual::embedded

namespace gradual::data {

Dataset digits() {
  constexpr std::int64_t kPixels = 64;
  const std::string_view packed(reinterpret_cast<const char*>(embedded::digits_csv_gz), embedded::digits_csv_gz_size);
  const Tensor table = parse_csv(gunzip(packed, "digits.csv.gz"), "digits.csv", {.columns = kPixels + 1}).values;
  const std::int64_t n = table.size(0);
  Dataset out{.inputs = empty({n, 1, 8, 8}), .targets = empty({n}, {.dtype = DType::i64})};
  out.classes = 10;
  out.name = "digits";
  const auto* row = table.data<double>();
  auto* x = out.inputs.data<float>();
  for (std::int64_t i = 0; i < n; ++i, row += kPixels + 1, x += kPixels) {
    for (std::int64_t p = 0; p < kPixels; ++p) x[p] = static_cast<float>((row[p] / 16 - 0.3053) / 0.3760);
    out.targets.data<std::int64_t>()[i] = static_cast<std::int64_t>(row[kPixels]);
  }
  return out;
}

}  // namespace gradual::data
