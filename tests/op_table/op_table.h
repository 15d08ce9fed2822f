// The op table of the tests: one row for every row of core/ops.def, from which all op tests are generated.
// References see plain doubles and know nothing of the library's kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gradual/core/ops/dispatch.h>
#include <gradual/core/ops/ops.h>

namespace gradual::test {

using Tensors = std::vector<Tensor>;

// Row-major doubles: what references take and give.
struct Array {
  Shape sizes;
  std::vector<double> v;
  DType dtype = DType::f64;  // of an input; of an output what must come out
  // Of an output: per element the sum of |terms| that are added up (empty: |v|), and how many at most.
  std::vector<double> magnitude{};
  double length = 0;
  bool defined = true;

  std::int64_t numel() const { return static_cast<std::int64_t>(v.size()); }
  double& operator[](std::int64_t i) { return v[static_cast<std::size_t>(i)]; }
  double operator[](std::int64_t i) const { return v[static_cast<std::size_t>(i)]; }
  double& mag(std::int64_t i) { return magnitude[static_cast<std::size_t>(i)]; }
};
using Arrays = std::vector<Array>;

Array make_array(const Shape& sizes, DType dtype);  // zeros
Array to_array(const Tensor& t);                    // any layout; an undefined tensor gives defined == false
// The position of [i...] in a row-major array, and back.
std::int64_t flat_index(const Shape& sizes, const std::vector<std::int64_t>& index);
std::vector<std::int64_t> unflatten(const Shape& sizes, std::int64_t i);
// The element of `a` that lies at `index` of a broadcast result.
double at_broadcast(const Array& a, const std::vector<std::int64_t>& index);

// Draws inputs for one dtype, always the same for the same seed. Integers come out whole, u8 not negative.
class Draw {
 public:
  Draw(DType run_dtype, std::uint64_t seed) : dtype(run_dtype), engine_(seed) {}
  Tensor uniform(const Shape& sizes, double low, double high);
  // Uniform, but at least 0.1 from every kink.
  Tensor away(const Shape& sizes, double low, double high, const std::vector<double>& kinks);
  // All different, by at least 1/4, exact in every float format of 16 bits (up to 256 elements).
  Tensor distinct(const Shape& sizes);
  Tensor index(const Shape& sizes, std::int64_t count);  // i64 in [0, count)
  Tensor mask(const Shape& sizes);                       // bool, both values present from two elements on
  Tensor values(const std::vector<double>& v, const Shape& sizes);
  Draw with(DType other) { return {other, engine_()}; }
  double next() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  DType dtype;

 private:
  std::mt19937_64 engine_;
};

using Call = std::function<Tensors(const Tensors&)>;
using Reference = std::function<Arrays(const Arrays&)>;

struct Sample {
  std::string label;
  Tensors inputs;  // contiguous; the harness lays them out otherwise
  Call call;
  Reference reference;
  bool large = false;    // crosses the grain of parallel loops: run with threads, not with layouts and gradcheck
  bool gradient = true;  // false where a kink or a special value is under test
};

struct BadInput {
  std::string label;
  std::function<void()> run;
  std::string message;  // what the error must contain
};

// The error an output may have, from the output format's epsilon and that of the format computed in (f64 for
// f64, f32 for all others), where `size` is the greater of |y| and the sum of its terms' magnitudes and
// `length` their number:
//   one half ulp of y for the rounding on store, (roundings - 0.5) eps(out) size for roundings before it,
//   (ulps + length) eps(compute) size for the arithmetic.
// Integers and bools must be exact, and so must floats where roundings is 0.
struct Row {
  OpId op;
  const char* policy;  // of amp's default table: lower, fp32, promote, pass, banned
  std::vector<DType> dtypes;
  std::function<std::vector<Sample>(Draw&)> samples;
  double roundings = 0.5;
  double ulps = 0;
  int differentiable_outputs = kMaxOutputs;  // the first n
  std::vector<int> constant_inputs{};        // inputs no gradient flows into
  int written = 1;                           // of an in-place row: the first n inputs
  std::vector<BadInput> bad{};
  // Reasons for holes; empty means there is none.
  std::string no_samples{};
  std::string no_kernel{};
  std::string no_gradient{};
  std::string no_double_gradient{};
  std::string no_empty{};
  std::string no_scalar{};
  std::string no_large{};
  std::string no_bad{};

  // A bad input that must be an error whose message contains `message`.
  void refuses(std::string label, std::string message, std::function<void()> run) {
    bad.push_back({std::move(label), std::move(run), std::move(message)});
  }
};

const std::vector<Row>& op_table();
const Row& row_of(OpId op);
// Whether an environment variable, a list with commas, has this name in it; everything is chosen where it is not set.
bool chosen(const char* variable, std::string_view name);
// The rows to test: all, or those that GRADUAL_TEST_OP names.
std::vector<const Row*> rows_under_test();
// The samples of a row for a dtype; the seed depends on the row alone.
std::vector<Sample> samples_of(const Row& row, DType dtype);

// The parts of the table.
std::vector<Row> unary_rows();
std::vector<Row> binary_rows();
std::vector<Row> reduction_rows();
std::vector<Row> contraction_rows();
std::vector<Row> convolution_rows();
std::vector<Row> attention_rows();
std::vector<Row> pooling_rows();
std::vector<Row> normalization_rows();
std::vector<Row> softmax_rows();
std::vector<Row> loss_rows();
std::vector<Row> movement_rows();
std::vector<Row> indexing_rows();
std::vector<Row> in_place_rows();

enum class Layout {
  contiguous,
  offset,
  transposed,
  first_transposed,
  reversed,
  channels_last,
  strided,
  expanded,
  count_
};
const char* to_string(Layout layout);
// The inputs in another layout, in storage whose gaps hold NaN, -1 or true; nothing where the layout changes
// no input. The first `written` ones are not expanded. An expanded input repeats its first entry along dim 0, so values
// change: build the reference afterwards.
std::optional<Tensors> lay_out(const Tensors& inputs, Layout layout, int written);
// How many inputs a row writes: the first ones.
int written_inputs(const Row& row);

// The tensor with a copy of its whole storage on another device: the same geometry, gaps included.
Tensor with_storage_on(Device device, const Tensor& t);
// The bytes of a tensor's elements in row-major order, and of its whole storage; of any device.
std::vector<std::byte> bytes_of(const Tensor& t);
std::vector<std::byte> storage_of(const Tensor& t);

// On a CUDA device only the first sample of each dtype shows that observers change no bits: the emulator takes minutes
// for all. Observers act before the kernel, in the same way for every sample.
inline std::size_t samples_observed(Device device, std::size_t all) {
  return device.is_cuda() ? std::min<std::size_t>(all, 1) : all;
}

// Copies with own storage, contiguous, so that a call that writes leaves the sample alone.
Tensors fresh(const Tensors& inputs);
// Copies of the floating inputs in another dtype (indices and masks stay as they are).
Tensor converted(const Tensor& t, DType dtype);

// Empty where every output agrees with the reference in dtype, shape and numbers; otherwise what is wrong.
std::string compare(const Row& row, const Tensors& outputs, const Arrays& reference);
// What was called, for failures: op, sample, layout, shapes, strides and dtypes, and how to run it alone.
std::string describe(const Row& row, const Sample& sample, const Tensors& inputs, const std::string& layout);
// Reports a failure unless `problem` is empty.
void expect_none(const std::string& problem, const std::string& where);

inline const std::vector<DType> kFloats{DType::f64, DType::f32, DType::f16, DType::bf16};
inline const std::vector<DType> kNumbers{DType::f64, DType::f32, DType::f16, DType::bf16,
                                         DType::i64, DType::i32, DType::u8};
inline const std::vector<DType> kContracted{DType::f64,  DType::f32,      DType::f16,
                                            DType::bf16, DType::f8e4m3fn, DType::f8e5m2};
inline const std::vector<DType> kAll{DType::f64,    DType::f32, DType::f16, DType::bf16, DType::f8e4m3fn,
                                     DType::f8e5m2, DType::i64, DType::i32, DType::u8,   DType::bool_};
inline const std::vector<DType> kAllButF8{DType::f64, DType::f32, DType::f16, DType::bf16,
                                          DType::i64, DType::i32, DType::u8,  DType::bool_};

}  // namespace gradual::test
