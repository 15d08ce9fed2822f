// Every row under inspect::Shadow: its local error is the result minus the row's own float64 reference.
#include <doctest/doctest.h>
#include <gradual/inspect/shadow.h>

#include <cmath>
#include <cstdlib>

#include "op_table.h"

namespace gradual::test {
namespace {

// The reference of a sample's first output, of inputs as they are before the call.
Array reference_of(const Sample& sample) {
  Arrays given;
  for (const Tensor& t : sample.inputs) given.push_back(to_array(t));
  return sample.reference(given)[0];
}

TEST_CASE("the shadow's local error of every row is that of an independent f64 reference") {
  int compared = 0;
  int rows = 0;
  for (const Row* row : rows_under_test()) {
    if (!row->samples || op_info(row->op).kind == OpKind::View || op_info(row->op).kind == OpKind::Custom) continue;
    const int before = compared;
    for (const DType dtype : row->dtypes) {
      if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) continue;
      for (const Sample& sample : samples_of(*row, dtype)) {
        if (sample.large) continue;
        Array want = reference_of(sample);
        inspect::Shadow shadow;
        Tensor local, inherited;
        shadow.tensors = [&](const inspect::ShadowRow&, const Tensor& l, const Tensor& i, const Tensor&) {
          local = l;
          inherited = i;
        };
        Tensors outputs;
        {
          const ObserverScope scope(shadow);
          outputs = sample.call(fresh(sample.inputs));
        }
        const std::string where = describe(*row, sample, sample.inputs, "shadow");
        for (const inspect::ShadowRow& r : shadow.rows())
          if (!r.not_exact.empty()) expect_none(r.op + " has no f64 form: " + r.not_exact, where);
        // Composite rows run as their parts, whose last one need not be the output.
        if (op_info(row->op).kind == OpKind::Composite || !local.defined() || !outputs[0].is_floating()) continue;
        if (local.sizes() != outputs[0].sizes()) continue;
        const Array got = to_array(outputs[0]);
        const Array error = to_array(local);
        const Array rest = to_array(inherited);
        for (std::int64_t i = 0; i < got.numel(); ++i) {
          if (!std::isfinite(got[i]) || !std::isfinite(want[i])) continue;
          const double size = std::max({std::abs(want[i]), std::abs(got[i]), want.magnitude.empty() ? 0 : want.mag(i)});
          if (!(std::abs(error[i] - (got[i] - want[i])) <= 1e-9 * size + 1e-300))
            expect_none("element " + std::to_string(i) + ": local error " + std::to_string(error[i]) + ", reference " +
                            std::to_string(got[i] - want[i]),
                        where);
          if (rest[i] != 0) expect_none("an error is inherited from exact inputs", where);
          ++compared;
        }
      }
    }
    rows += compared > before;
  }
  MESSAGE(rows << " rows, " << compared << " elements");
  if (std::getenv("GRADUAL_TEST_OP")) return;
  CHECK(rows > 80);
}

}  // namespace
}  // namespace gradual::test
