// Every row, forward and backward: the same bits with and without observers, on the CPU and on a GPU.
#include <doctest/doctest.h>
#include <gradual/autograd/autograd.h>
#include <gradual/core/observe/profile.h>
#include <gradual/core/observe/tracer.h>

#include <algorithm>
#include <cstdlib>

#include "op_table.h"
#include "support/gpu.h"

namespace gradual::test {
namespace {

using Bits = std::vector<std::vector<std::byte>>;

// The bits of the outputs and, of a small sample, of the gradients of all inputs that may have one.
Bits bits(const Row& row, const Sample& sample, Device device) {
  Tensors inputs;
  for (const Tensor& t : fresh(sample.inputs)) inputs.push_back(t.defined() ? with_storage_on(device, t) : t);
  const bool backward =
      row.no_gradient.empty() && sample.gradient && !sample.large && op_info(row.op).kind != OpKind::InPlace;
  Tensors leaves;
  for (std::size_t i = 0; backward && i < inputs.size(); ++i) {
    Tensor& t = inputs[i];
    if (!t.defined() || !t.is_floating() || is_f8(t.dtype())) continue;
    if (std::ranges::count(row.constant_inputs, static_cast<int>(i))) continue;
    leaves.push_back(t.set_requires_grad());
  }
  const Tensors outputs = sample.call(inputs);
  Tensors results = outputs, roots;
  for (const Tensor& t : outputs)
    if (t.defined() && t.requires_grad()) roots.push_back(t);
  if (!roots.empty()) {
    Tensors ones;
    for (const Tensor& t : roots) ones.push_back(ones_like(t));
    for (const Tensor& g : autograd::grad(roots, leaves, ones, {.allow_unused = true})) results.push_back(g);
  }
  Bits all;
  for (const Tensor& t : results) all.push_back(t.defined() ? bytes_of(t.detach()) : std::vector<std::byte>{});
  return all;
}

void check_rows(Device device) {
  int compared = 0;
  std::int64_t lines = 0;
  Tracer tracer([&](const std::string&) { ++lines; });
  Tracer counting([&](const std::string&) { ++lines; }, true);
  Profile profile;
  for (const Row* row : rows_under_test()) {
    for (const DType dtype : row->dtypes) {
      if (!row->samples || (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16)) continue;
      const std::vector<Sample> samples = samples_of(*row, dtype);
      for (std::size_t i = 0; i < samples_observed(device, samples.size()); ++i) {
        const Sample& sample = samples[i];
        const Bits alone = bits(*row, sample, device);
        const std::string where = describe(*row, sample, sample.inputs, to_string(device));
        {
          const ObserverScope tracing(tracer);
          const ObserverScope profiling(profile);
          if (bits(*row, sample, device) != alone) expect_none("a tracer changed bits", where);
        }
        const ObserverScope tracing(counting);
        if (bits(*row, sample, device) != alone) expect_none("a tracer that counts changed bits", where);
        ++compared;
      }
    }
  }
  if (std::getenv("GRADUAL_TEST_OP")) return;
  CHECK(compared > (device.is_cuda() ? 200 : 500));
  CHECK(lines > 2 * compared);
}

TEST_CASE("the same bits, forward and backward, with and without observers") { check_rows(Device::cpu()); }

TEST_CASE("CUDA: the same bits, forward and backward, with and without observers") {
  if (have_gpu()) check_rows(kGpu);
}

}  // namespace
}  // namespace gradual::test
