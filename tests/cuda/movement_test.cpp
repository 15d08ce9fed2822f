// Indexing, pooling and dropout on a GPU against the CPU, bit for bit, and indices out of range.
#include <doctest/doctest.h>

#include <functional>

#include <gradual/core/formats/cast_counts.h>
#include <gradual/core/ops/dispatch.h>
#include <gradual/cuda/cuda.h>
#include "support/gpu.h"
#include "support/tensors.h"

namespace gradual {
namespace {

using namespace test;

using testing::same_bits;

Tensor numbers(const Shape& sizes, DType dtype, std::uint64_t seed) {
  Generator g(seed);
  return (randn(sizes, {}, g) * 0x1p-12).to(dtype);  // some of them subnormal in f16
}
Tensor indices(std::int64_t end, const Shape& sizes, std::uint64_t seed) {
  Generator g(seed);
  return randint(0, end, sizes, {.dtype = DType::i64}, g);
}

struct Case {
  const char* name;
  std::function<std::vector<Tensor>(DType)> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> f;
};

PoolAttrs windows(std::int64_t height, std::int64_t width) {
  return {{.kernel = {3, 2}, .stride = {2, 1}, .padding = 1}, {height, width}};
}

std::vector<Case> cases() {
  using In = std::vector<Tensor>;
  const auto image = [](DType d) { return In{numbers({2, 3, 9, 7}, d, 1)}; };
  const auto pooled = [](DType d) {
    const Tensor x = numbers({2, 3, 9, 7}, d, 1);
    const Outputs out = dispatch(OpId::max_pool2d, {&x}, windows(0, 0), SourceLocation::current());
    return In{numbers(out[0].sizes(), d, 2), out[1]};
  };
  const auto smaller = [](DType d) { return In{numbers({2, 3, 5, 8}, d, 2)}; };
  return {
      {"index_add of rows",
       [](DType d) {
         return In{numbers({600, 33}, d, 1), indices(9, {600}, 2)};
       },
       [](const In& in) { return index_add(in[0], 0, in[1], 12); }},
      {"index_add of columns",
       [](DType d) {
         return In{numbers({5, 70, 3}, d, 1), indices(4, {70}, 2)};
       },
       [](const In& in) { return index_add(in[0], 1, in[1], 4); }},
      {"scatter_add",
       [](DType d) {
         return In{numbers({6, 5, 7}, d, 1), indices(5, {6, 40, 7}, 2), numbers({6, 41, 7}, d, 3)};
       },
       [](const In& in) { return scatter_add(in[0], 1, in[1], in[2]); }},
      {"scatter_add of transposed tensors",
       [](DType d) {
         return In{numbers({6, 5}, d, 1).transpose(0, 1), indices(5, {6, 40}, 2).transpose(0, 1),
                   numbers({6, 40}, d, 3).transpose(0, 1)};
       },
       [](const In& in) { return scatter_add(in[0], 0, in[1], in[2]); }},
      {"index_select of wide rows",
       [](DType d) {
         return In{numbers({9, 64}, d, 1), indices(9, {50}, 2)};
       },
       [](const In& in) { return index_select(in[0], 0, in[1]); }},
      {"index_select of columns",
       [](DType d) {
         return In{numbers({9, 65}, d, 1), indices(65, {50}, 2)};
       },
       [](const In& in) { return index_select(in[0], 1, in[1]); }},
      {"dropout",
       [](DType d) {
         return In{numbers({13, 101}, d, 1)};
       },
       [](const In& in) {
         Generator g(5);
         return dropout(in[0], 0.3, g);
       }},
      {"dropout of a transposed tensor",
       [](DType d) {
         return In{numbers({13, 101}, d, 1).transpose(0, 1)};
       },
       [](const In& in) {
         Generator g(5);
         return dropout(in[0], 0.3, g);
       }},
      {"max_pool2d", image,
       [](const In& in) { return dispatch1(OpId::max_pool2d, {&in[0]}, windows(0, 0), SourceLocation::current()); }},
      {"max_pool2d_backward", pooled,
       [](const In& in) { return call_row(OpId::max_pool2d_backward, windows(9, 7), in[0], in[1])[0]; }},
      {"avg_pool2d", image, [](const In& in) { return call_row(OpId::avg_pool2d, windows(0, 0), in[0])[0]; }},
      {"avg_pool2d_backward", smaller,
       [](const In& in) { return call_row(OpId::avg_pool2d_backward, windows(9, 7), in[0])[0]; }},
      {"adaptive_avg_pool2d", image, [](const In& in) { return adaptive_avg_pool2d(in[0], 4, 9); }},
      {"adaptive_avg_pool2d_backward", smaller,
       [](const In& in) { return call_row(OpId::adaptive_avg_pool2d_backward, windows(9, 7), in[0])[0]; }},
      {"adaptive_avg_pool2d of channels-last images", image,
       [](const In& in) { return adaptive_avg_pool2d(channels_last(in[0]), 4, 9); }},
      {"adaptive_avg_pool2d_backward to channels-last images", smaller,
       [](const In& in) {
         PoolAttrs attrs = windows(9, 7);
         attrs.channels_last = true;
         const Tensor dx = call_row(OpId::adaptive_avg_pool2d_backward, attrs, in[0])[0];
         CHECK(dx.strides() == Shape{3 * 9 * 7, 1, 7 * 3, 3});
         return dx;
       }},
  };
}

// What goes in runs or units of several elements, and what just misses them.
std::vector<Case> strided_cases() {
  using In = std::vector<Tensor>;
  std::vector<Case> all;
  const auto other = [](DType d) { return d == DType::f32 ? DType::bf16 : DType::f32; };
  for (const std::int64_t start : {16, 8, 4, 2, 1})
    for (const std::int64_t width : {64, 60}) {
      const auto inputs = [=](DType d) { return In{numbers({3, 2, 96}, d, 1), numbers({3, 2, width}, d, 2)}; };
      const auto part = [=](const Tensor& t) { return t.narrow(2, start, width); };
      all.push_back({"a slice copied", inputs, [=](const In& in) { return part(in[0]).contiguous(); }});
      all.push_back({"a slice cast", inputs, [=](const In& in) { return cast(part(in[0]), other(in[0].dtype())); }});
      all.push_back({"a slice written", inputs, [=](const In& in) {
                       const Tensor t = in[0].clone();
                       part(t).copy_(in[1]);
                       return t;
                     }});
      all.push_back({"a slice filled", inputs, [=](const In& in) {
                       const Tensor t = in[0].clone();
                       part(t).fill_(-0.3);
                       return t;
                     }});
      all.push_back({"a slice added to", inputs, [=](const In& in) {
                       const Tensor t = in[0].clone();
                       part(t).add_(cast(in[1], other(in[1].dtype())), 0.5);
                       return t;
                     }});
      all.push_back({"slice_backward", inputs, [=](const In& in) {
                       return call_row(OpId::slice_backward, SliceAttrs{2, start, start + width, 1, 96}, in[1])[0];
                     }});
    }
  const auto rows = [](DType d) {
    return In{numbers({4, 6, 24}, d, 1), numbers({6, 24}, d, 2), numbers({4, 6, 1}, d, 3), numbers({24}, d, 4)};
  };
  all.push_back({"rows added", rows, [](const In& in) { return in[0] + in[1] * in[3]; }});
  all.push_back({"a column added", rows, [](const In& in) { return in[2] - in[0]; }});
  all.push_back({"a column spread", rows, [](const In& in) { return expand(in[2], {4, 6, 24}).contiguous(); }});
  all.push_back({"rows spread", rows, [](const In& in) { return expand(in[3], {4, 6, 24}).contiguous(); }});
  all.push_back({"all cast", rows, [=](const In& in) { return cast(in[0], other(in[0].dtype())); }});
  return all;
}

void compare(const std::vector<Case>& cases) {
  for (const Case& c : cases)
    for (DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      INFO(c.name << " " << to_string(dtype));
      const std::vector<Tensor> here = c.inputs(dtype);
      std::vector<Tensor> there;
      there.reserve(here.size());
      for (const Tensor& t : here) there.push_back(t.to(Device::cuda()));
      CHECK(same_bits(c.f(here), c.f(there).to(Device::cpu())));
      CastCounts cpu, gpu;
      Tensor y;
      {
        const CountScope scope(&cpu);
        c.f(here);
      }
      {
        const CountScope scope(&gpu);
        y = c.f(there);
      }
      CHECK(cpu == gpu);
      CHECK(same_bits(c.f(here), y.to(Device::cpu())));
    }
}

TEST_CASE("strided copies, casts and sums have the bits and counts of the CPU") {
  if (have_gpu()) compare(strided_cases());
}

TEST_CASE("f16 and bf16 meet f32 in one kernel and have the bits of a cast") {
  if (!have_gpu()) return;
  using Binary = Tensor (*)(const Tensor&, const Tensor&);
  const Binary ops[] = {[](const Tensor& a, const Tensor& b) { return a + b; },
                        [](const Tensor& a, const Tensor& b) { return a - b; },
                        [](const Tensor& a, const Tensor& b) { return a * b; }};
  for (const DType narrow : {DType::f16, DType::bf16})
    for (const Binary f : ops)
      for (const bool swapped : {false, true})
        for (const Shape& sizes :
             {Shape{3, 5, 24}, Shape{5, 24}, Shape{24}, Shape{3, 1, 24}, Shape{3, 5, 1}, Shape{}}) {
          CAPTURE(to_string(narrow));
          CAPTURE(to_string(sizes));
          Tensor values[2][3];
          for (const bool there : {false, true}) {
            const Device device = there ? Device::cuda() : Device::cpu();
            const Tensor wide = numbers({3, 5, 24}, DType::f32, 1).to(device).set_requires_grad();
            const Tensor half = numbers(sizes, narrow, 2).to(device).set_requires_grad();
            const auto both = [&] { return swapped ? f(half, wide) : f(wide, half); };
            if (there) CHECK(kernels_of(both).size() == 1);
            const Tensor y = both();
            CHECK(y.dtype() == DType::f32);
            y.backward(numbers({3, 5, 24}, DType::f32, 3).to(device));
            CHECK(half.grad().dtype() == narrow);
            values[there][0] = y.detach();
            values[there][1] = wide.grad();
            values[there][2] = half.grad();
          }
          CHECK(same_numbers(values[0][0], values[1][0]));
          CHECK(same_numbers(values[0][1], values[1][1]));
          if (sizes == Shape{3, 5, 24}) CHECK(same_numbers(values[0][2], values[1][2]));  // else there are sums
        }
}

TEST_CASE("indexing and pooling and dropout have the bits and counts of the CPU") {
  if (!have_gpu()) return;
  const cuda::LibraryKernelsScope ours(false);  // the library's means are within a bound, but have bits of their own
  compare(cases());
}

TEST_CASE("tensors are joined in a launch and the bits are theirs") {
  if (!have_gpu()) return;
  for (const DType dtype :
       {DType::f64, DType::f32, DType::bf16, DType::f8e4m3fn, DType::i64, DType::u8, DType::bool_}) {
    CAPTURE(to_string(dtype));
    const auto part = [&](const Shape& sizes, std::uint64_t seed) { return indices(2, sizes, seed).to(dtype); };
    const auto joined = [&](const std::vector<Tensor>& parts, int dim, std::size_t launches) {
      std::vector<Tensor> there;
      for (const Tensor& t : parts) there.push_back(t.is_contiguous() ? t.to(kGpu) : t.t().to(kGpu).t());
      const auto names = kernels_of([&] { CHECK(same_numbers(cat(there, dim), cat(parts, dim))); });
      CHECK(std::ranges::count_if(names, [](const auto& n) { return n.find("MoveParts") != std::string::npos; }) ==
            static_cast<std::ptrdiff_t>(launches));
      CHECK(names.size() == launches + (launches > 0));  // and the copy to the CPU
    };
    joined({part({4, 16}, 1), part({4, 32}, 2)}, 1, 1);                                     // 16 bytes at a time
    joined({part({4, 16}, 1), part({4, 7}, 2), part({4, 0}, 3), part({4, 1}, 4)}, 1, 1);    // not all
    joined({part({5, 6}, 1), part({6, 3}, 2).t().narrow(1, 0, 6), part({1, 6}, 3)}, 0, 1);  // nor all row-major
    joined({part({0, 6}, 1), part({0, 6}, 2)}, 0, 0);
    const auto views = [](const Tensor& t) {  // which begin at no multiple of 16 bytes
      return cat({t.narrow(1, 0, 16), t.narrow(1, 1, 16), t.narrow(1, 8, 16)}, 1);
    };
    const Tensor wide = part({4, 24}, 5);
    CHECK(same_numbers(views(wide.to(kGpu)), views(wide)));
    for (const int inputs : {15, 16, 120, 121, 250}) {
      std::vector<Tensor> parts;
      for (int i = 0; i < inputs; ++i)
        parts.push_back(part({i % 3 + (i == inputs - 1), 3}, static_cast<std::uint64_t>(i)));
      joined(parts, 0, static_cast<std::size_t>((inputs + 119) / 120));
    }
  }
}

TEST_CASE("a fill ends where its tensor does") {
  if (!have_gpu()) return;
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64})
    for (const std::int64_t n : {1, 2, 15, 16, 17, 33, 1000})
      for (const std::int64_t start : {0, 1, 16}) {
        CAPTURE(to_string(dtype));
        CAPTURE(n);
        CAPTURE(start);
        const auto filled = [&](Device device) {
          const Tensor flat = full({n + 32}, 7, {.dtype = dtype, .device = device});
          const Tensor rows = full({3, n + 32}, 7, {.dtype = dtype, .device = device});
          const Tensor columns = full({n + 32, 3}, 7, {.dtype = dtype, .device = device}).t();
          for (const Tensor& t : {flat, rows, columns}) t.narrow(-1, start, n).fill_(3);
          return cat({flat, rows.reshape({-1}), columns.contiguous().reshape({-1})});
        };
        CHECK(same_numbers(filled(Device::cpu()), filled(kGpu)));
      }
}

// The error that f's result ends in once it is read.
std::string error_of(const std::function<Tensor()>& f) {
  try {
    f().to(Device::cpu());
  } catch (const Error& e) { return e.what(); }
  return "";
}
bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_CASE("an index out of range is reported when the numbers are read, and only then") {
  if (!have_gpu()) return;
  const Device gpu = Device::cuda();
  const Tensor x = numbers({4, 3}, DType::f32, 1).to(gpu);
  const Tensor bad = from_data(std::vector<std::int64_t>{0, 4, 1}, {3}).to(gpu);
  const Tensor negative = from_data(std::vector<std::int64_t>{0, 2, -1, 1, 0, 2}, {2, 3}).to(gpu);
  const std::string selected = error_of([&] { return index_select(x, 0, bad); });
  CHECK(contains(selected, "index_select at movement_test.cpp:"));
  CHECK(contains(selected, "index 4 (element 1 of the index) is out of range; allowed are 0 to 3"));
  CHECK(contains(error_of([&] { return index_select(x.transpose(0, 1), 1, bad); }), "index 4"));
  CHECK(contains(error_of([&] { return gather(x, 0, negative); }), "gather at movement_test.cpp"));
  CHECK(contains(error_of([&] { return gather(x, 0, negative); }), "index -1 (element 2 of the index)"));
  CHECK(contains(error_of([&] { return scatter_add(x, 0, negative, x); }), "index -1"));
  CHECK(contains(error_of([&] { return index_add(x.narrow(0, 0, 3), 0, bad, 4); }), "index 4"));
  CHECK(contains(error_of([&] { return one_hot(bad, 4); }), "index 4"));
  const Tensor nothing = zeros({0, 3}).to(gpu);
  CHECK(contains(error_of([&] { return index_select(nothing, 0, bad); }), "no index is in range"));
  CHECK(contains(error_of([&] { return gather(nothing, 0, negative); }), "no index is in range"));
  CHECK(contains(error_of([&] { return index_add(x.narrow(0, 0, 3), 0, bad, 0); }), "no index is in range"));
  CHECK(contains(error_of([&] { return scatter_add(nothing, 0, negative, x); }), "no index is in range"));
  const Tensor dy = numbers({1, 1, 2, 2}, DType::f32, 1).to(gpu);
  const PoolAttrs two{{.kernel = 2, .stride = 2}, 4};
  for (const std::int64_t wrong : {16, -1, 3}) {  // outside of the plane, and of the window
    const Tensor at = from_data(std::vector<std::int64_t>{wrong, 2, 8, 10}, {1, 1, 2, 2}).to(gpu);
    CHECK(contains(error_of([&] { return call_row(OpId::max_pool2d_backward, two, dy, at)[0]; }),
                   "lies outside its window in a plane of 16 elements"));
  }
  const Tensor skipped = index_select(x, 0, bad);
  CHECK_THROWS_AS(cuda::synchronize(), Error);
  cuda::synchronize();  // told once
  const Tensor rows = skipped.to(Device::cpu());
  CHECK(same_bits(rows.narrow(0, 1, 1), zeros({1, 3})));
  CHECK(same_bits(rows.narrow(0, 0, 1), x.to(Device::cpu()).narrow(0, 0, 1)));
}

}  // namespace
}  // namespace gradual
