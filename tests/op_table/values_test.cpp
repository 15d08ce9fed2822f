// Every row against its float64 reference, for every dtype and layout; what a call may and may not touch.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/tensor/memory.h>
#include <gradual/cuda/cuda.h>
#include "op_table.h"
#include "support/cpu_backends.h"
#include "support/gpu.h"

namespace gradual::test {
namespace {

// The values an output holds are not all one number: a kernel that writes nothing or a constant would be
// seen.
bool varied(const Tensor& t) {
  const Array a = to_array(t);
  return std::any_of(a.v.begin(), a.v.end(), [&](double v) { return v != a.v[0]; });
}

Tensors storages_seen(const Tensors& inputs) {
  Tensors defined;
  for (const Tensor& t : inputs)
    if (t.defined()) defined.push_back(t);
  return defined;
}

// Bytes of a written tensor's storage that do not belong to its view.
std::vector<std::byte> outside(const Tensor& t) {
  std::vector<std::byte> all = storage_of(t);
  const std::size_t width = size_of(t.dtype());
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const std::vector<std::int64_t> index = unflatten(t.sizes(), i);
    std::int64_t at = t.offset();
    for (int d = 0; d < t.dim(); ++d) at += index[static_cast<std::size_t>(d)] * t.strides()[d];
    std::fill_n(all.begin() + at * static_cast<std::int64_t>(width), width, std::byte{0});
  }
  return all;
}

// Runs a sample in a layout; what is wrong, or "".
std::string run(const Row& row, const Sample& sample, Tensors inputs, std::vector<bool>* seen_varied,
                Device device = Device::cpu()) {
  Arrays given;
  for (Tensor& t : inputs) {
    given.push_back(to_array(t));
    t = with_storage_on(device, t);
  }
  const Arrays want = sample.reference(given);
  const Tensors defined = storages_seen(inputs);
  std::vector<std::vector<std::byte>> before;
  std::vector<std::uint32_t> versions;
  for (const Tensor& t : defined) {
    before.push_back(storage_of(t));
    versions.push_back(t.version());
  }
  const int written = written_inputs(row);
  std::vector<std::vector<std::byte>> frames;
  for (int i = 0; i < written; ++i) frames.push_back(outside(inputs[static_cast<std::size_t>(i)]));
  const Tensors outputs = sample.call(inputs);
  std::string problem = compare(row, outputs, want);
  for (const Tensor& t : outputs)
    if (t.defined() && t.device() != device && row.op != OpId::to_device)
      problem = "an output is on " + to_string(t.device());
  for (std::size_t i = 0; i < defined.size() && problem.empty(); ++i) {
    if (i < frames.size()) {
      if (defined[i].version() == versions[i])
        problem = "the version of the written input " + std::to_string(i) + " did not rise";
    } else if (storage_of(defined[i]) != before[i]) {
      problem = "input " + std::to_string(i) + " was written";
    } else if (defined[i].version() != versions[i]) {
      problem = "the version of input " + std::to_string(i) + " rose";
    }
  }
  for (std::size_t i = 0; i < frames.size() && problem.empty(); ++i)
    if (outside(inputs[i]) != frames[i]) problem = "written outside of the view";
  if (seen_varied) {
    seen_varied->resize(std::max(seen_varied->size(), outputs.size()));
    for (std::size_t k = 0; k < outputs.size(); ++k)
      if (outputs[k].defined() && varied(outputs[k])) (*seen_varied)[k] = true;
  }
  return problem;
}

// All layouts; on a GPU the contiguous one and two others, in turn by sample: the emulator takes minutes for all.
std::vector<Layout> layouts_for(Device device, std::size_t sample) {
  constexpr std::size_t kOthers = static_cast<std::size_t>(Layout::count_) - 1;
  std::vector<Layout> layouts = {Layout::contiguous};
  const std::size_t some = device.is_cuda() ? 2 : kOthers;
  for (std::size_t i = 0; i < some; ++i) layouts.push_back(static_cast<Layout>(1 + (2 * sample + i) % kOthers));
  return layouts;
}

// Of these rows, in these layouts; the number of calls.
std::int64_t check_values(const std::vector<const Row*>& rows, Device device = Device::cpu()) {
  std::int64_t calls = 0;
  for (const Row* row : rows) {
    for (DType dtype : row->dtypes) {
      std::vector<bool> seen_varied;
      const std::vector<Sample> samples = samples_of(*row, dtype);
      for (std::size_t s = 0; s < samples.size(); ++s) {
        const Sample& sample = samples[s];
        if (sample.large) continue;
        for (const Layout layout : layouts_for(device, s)) {
          if (!chosen("GRADUAL_TEST_LAYOUTS", to_string(layout))) continue;  // sanitizers take long
          // y and logsumexp are those of q, k and v as they were, not of their first rows repeated
          if (row->op == OpId::flash_attention_backward && layout == Layout::expanded) continue;
          const auto inputs = lay_out(sample.inputs, layout, written_inputs(*row));
          if (!inputs) continue;
          const std::string where =
              describe(*row, sample, *inputs, std::string(to_string(dtype)) + " " + to_string(layout));
          try {
            expect_none(run(*row, sample, *inputs, &seen_varied, device), where);
          } catch (const std::exception& e) { expect_none(std::string("threw: ") + e.what(), where); }
          ++calls;
        }
      }
      // fill_ gives one number, and a cast to bool of ones may; a count of batches is one.
      for (std::size_t k = 0; k < seen_varied.size(); ++k)
        if (row->op != OpId::fill_ && !(row->op == OpId::batch_norm_update_ && k == 2))
          CHECK_MESSAGE(seen_varied[k], to_string(row->op) << " " << to_string(dtype) << ": output " << k
                                                           << " is the same everywhere in every sample");
    }
  }
  return calls;
}

void check_large(const std::vector<const Row*>& rows, Device device = Device::cpu()) {
  for (const Row* row : rows) {
    for (DType dtype : row->dtypes) {
      // The reference takes the time: f32 computes in itself, bf16 is widened and narrowed; else the first
      // dtype.
      if (dtype != DType::f32 && dtype != DType::bf16 && row->dtypes.size() > 1) continue;
      for (const Sample& sample : samples_of(*row, dtype)) {
        if (!sample.large) continue;
        const Tensors inputs = fresh(sample.inputs);
        expect_none(run(*row, sample, inputs, nullptr, device), describe(*row, sample, inputs, "large"));
      }
    }
  }
}

TEST_CASE("values agree with the float64 references in every layout") {
  const std::int64_t calls = check_values(rows_under_test());
  if (rows_under_test().size() > 1) CHECK(calls > 0);
  MESSAGE(calls << " calls");
}

TEST_CASE("large inputs agree with the float64 references" * doctest::test_suite("slow")) {
  check_large(rows_under_test());
}

// The rows that other backends offer to compute ran on the default above; here they run on each backend.
TEST_CASE("all CPU backends agree with the float64 references") {
  ensure_registered();
  std::vector<const Row*> rows;
  for (const Row* row : rows_under_test())
    if (const int op = static_cast<int>(row->op); columns().fast[op] || columns().onednn[op]) rows.push_back(row);
  for (const CpuBackend backend : testing::cpu_backends()) {
    if (backend == cpu_backend()) continue;
    CAPTURE(to_string(backend));
    const CpuBackendScope scope(backend);
    if (!rows.empty()) CHECK(check_values(rows) > 0);
    check_large(rows);
  }
}

TEST_CASE("CUDA agrees with the float64 references, contiguous and in other layouts") {
  if (!have_gpu()) return;
  const std::int64_t calls = check_values(rows_under_test(), Device::cuda());
  if (rows_under_test().size() > 1) CHECK(calls > 0);
  check_large(rows_under_test(), Device::cuda());
}

// The rows that NVIDIA's libraries offer to compute ran on them above; here they run on our kernels.
TEST_CASE("CUDA agrees with the float64 references without the libraries") {
  if (!have_gpu()) return;
  std::vector<const Row*> rows;
  for (const Row* row : rows_under_test())
    for (const OpId op :
         {OpId::conv2d, OpId::conv2d_backward_input, OpId::conv2d_backward_weight, OpId::batch_norm,
          OpId::batch_norm_backward, OpId::avg_pool2d, OpId::avg_pool2d_backward, OpId::softmax, OpId::softmax_backward,
          OpId::log_softmax, OpId::log_softmax_backward, OpId::flash_attention, OpId::flash_attention_backward})
      if (row->op == op) rows.push_back(row);
  const cuda::LibraryKernelsScope scope(false);
  if (!rows.empty()) CHECK(check_values(rows, Device::cuda()) > 0);
  check_large(rows, Device::cuda());
}

TEST_CASE("elementwise ops, convolution and pooling keep the order of their input's strides") {
  for (const Row* row : rows_under_test()) {
    const OpKind kind = op_info(row->op).kind;
    const bool elementwise = kind == OpKind::Elementwise || kind == OpKind::Transcendental || row->op == OpId::cast;
    const bool image = row->op == OpId::conv2d || row->op == OpId::max_pool2d || row->op == OpId::avg_pool2d ||
                       row->op == OpId::batch_norm;
    if (!elementwise && !image) continue;
    int checked = 0;
    const bool of_integers = op_info(row->op).dtype_rule == DTypeRule::Integer;
    for (const Sample& sample : samples_of(*row, of_integers ? row->dtypes[0] : DType::f32)) {
      if (sample.large || sample.inputs[0].numel() < 2) continue;
      for (Layout layout : {Layout::channels_last, Layout::transposed, Layout::reversed}) {
        const auto inputs = lay_out(sample.inputs, layout, 0);
        if (!inputs || (image && layout != Layout::channels_last)) continue;
        const Tensor y = sample.call(*inputs)[0];
        if (elementwise && y.sizes() != (*inputs)[0].sizes()) continue;  // broadcast
        CAPTURE(describe(*row, sample, *inputs, to_string(layout)));
        CAPTURE(to_string(y.strides()));
        ++checked;
        if (elementwise) {
          CHECK(y.strides() == (*inputs)[0].strides());
        } else {
          const Shape& s = y.sizes();
          CHECK(y.strides() == Shape{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]});
        }
      }
    }
    CHECK_MESSAGE(checked > 0, to_string(row->op));
  }
}

TEST_CASE("no op keeps memory") {
  for (const Row* row : rows_under_test()) {
    if (!row->samples) continue;
    CAPTURE(to_string(row->op));
    const std::vector<Sample> samples = samples_of(*row, row->dtypes[0]);
    const std::int64_t before = memory_stats().total.current;
    for (const Sample& sample : samples)
      if (!sample.large) sample.call(fresh(sample.inputs));
    CHECK(memory_stats().total.current == before);
  }
}

// The harness must fail where a kernel is wrong: by two ulps of the format, in dtype, in shape, in a gap of
// its input.
TEST_CASE("the comparison finds wrong outputs") {
  const Row& row = row_of(OpId::add);
  for (DType dtype : kFloats) {
    Sample sample = samples_of(row, dtype)[0];
    const Tensors inputs = fresh(sample.inputs);
    CHECK(run(row, sample, inputs, nullptr).empty());
    const Call right = sample.call;
    const auto found = [&](const std::function<Tensor(const Tensor&)>& change) {
      sample.call = [&](const Tensors& in) -> Tensors { return {change(right(in)[0])}; };
      return run(row, sample, fresh(inputs), nullptr);
    };
    CHECK(found([&](const Tensor& y) {
            Array a = to_array(y);
            a[7] += std::ldexp(float_info(dtype).epsilon, std::ilogb(a[7]) + 1);  // two ulps
            return from_data(a.v, y.sizes(), {.dtype = dtype});
          }).find("element [0, 1, 2] is") != std::string::npos);
    CHECK(found([](const Tensor& y) { return y.reshape({-1}); }).find("expected [3, 4, 5]") != std::string::npos);
    CHECK(found([](const Tensor& y) { return y.to(DType::i64); }).find("i64, expected") != std::string::npos);
    sample.call = [&](const Tensors& in) -> Tensors {
      const Tensors y = right(in);
      in[0].fill_(0);
      return y;
    };
    CHECK(run(row, sample, fresh(inputs), nullptr) == "input 0 was written");
  }
  CHECK_FALSE(varied(ones({3})));
  CHECK(varied(from_data(std::vector<double>{1, 1, 2}, {3})));
}

}  // namespace
}  // namespace gradual::test
