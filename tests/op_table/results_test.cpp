// Under amp::ResultScope every op of the table gives values of the format, and writes nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>

#include <gradual/amp/quantized_results.h>
#include <gradual/amp/recipe.h>
#include "op_table.h"

namespace gradual::test {
namespace {

bool is_of(const Tensor& t, const Format& f) {
  return bytes_of(t) == bytes_of(fake_quantize(t, f, {}, Overflow::ieee).to(t.dtype()));
}

TEST_CASE("every op gives values of the format, as floats of any dtype; in-place ops write them") {
  for (const char* name : {"pure:e4m3fn", "pure:e5m2:stochastic", "pure:posit8"}) {
    const amp::Recipe recipe = amp::recipe(name);
    const Format& f = recipe.quantization->result->format;
    int ops = 0;
    int changed = 0;
    for (const Row* row : rows_under_test()) {
      if (op_info(row->op).kind == OpKind::View || !row->no_samples.empty()) continue;
      ++ops;
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
        if (std::ranges::find(row->dtypes, dtype) == row->dtypes.end()) continue;
        for (const Sample& sample : samples_of(*row, dtype)) {
          if (sample.large) continue;
          const Tensors inputs = fresh(sample.inputs);
          Tensors outputs;
          {
            const amp::ResultScope scope(recipe.quantization);
            outputs = sample.call(inputs);
          }
          for (const Tensor& t : outputs)
            if (t.defined() && t.is_floating() && !is_of(t, f))
              expect_none("a result is no value of " + std::string(name), describe(*row, sample, inputs, ""));
          const Tensors exact = sample.call(fresh(sample.inputs));
          for (const Tensor& t : exact) changed += t.defined() && t.is_floating() && !is_of(t, f);
        }
      }
    }
    CHECK(ops > (std::getenv("GRADUAL_TEST_OP") ? 0 : 80));
    CHECK(changed > (std::getenv("GRADUAL_TEST_OP") ? -1 : 100));
  }
}

}  // namespace
}  // namespace gradual::test
