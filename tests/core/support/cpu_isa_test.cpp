// The choice of instruction sets at run time. That all give the same bits is shown by tests/op_table.
#include <doctest/doctest.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/cpu_isa.h>
#include <gradual/core/support/error.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>

#include "support/cpu_isas.h"
#include "support/tensors.h"

using namespace gradual;

namespace {

// GRADUAL_CPU_ISA as if the process had just begun; puts all back.
class Environment {
 public:
  explicit Environment(const char* value) : isa_(cpu_isa()) {
    if (const char* before = std::getenv(kName)) before_ = before;
    setenv(kName, value, 1);
    detail::current_isa = detail::kNoIsa;
  }
  ~Environment() {
    if (before_) setenv(kName, before_->c_str(), 1);
    else unsetenv(kName);
    detail::current_isa = static_cast<int>(isa_);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static constexpr const char* kName = "GRADUAL_CPU_ISA";
  std::optional<std::string> before_;
  CpuIsa isa_;
};

std::string error_of(const char* wanted) {
  const Environment environment(wanted);
  try {
    cpu_isa();
    return "none";
  } catch (const Error& e) { return e.what(); }
}

std::string names_of_all() {
  std::string names;
  for (const CpuIsa isa : cpu_isas()) names += (names.empty() ? "" : ", ") + std::string(to_string(isa));
  return names;
}

}  // namespace

TEST_CASE("the instruction set in use is the fastest, or what the environment says") {
  const std::vector<CpuIsa> isas = cpu_isas();
  MESSAGE("in use: " << to_string(cpu_isa()) << ", of: " << names_of_all());
  REQUIRE(!isas.empty());
  CHECK(std::is_sorted(isas.begin(), isas.end()));
  CHECK(std::adjacent_find(isas.begin(), isas.end()) == isas.end());
  {
    const Environment none("");
    CHECK(cpu_isa() == isas.back());
  }
  for (const CpuIsa isa : isas) {
    const Environment environment(std::string(to_string(isa)).c_str());
    CHECK(cpu_isa() == isa);
  }
}

TEST_CASE("the environment must name an instruction set that there is") {
  CHECK(error_of("avx51").starts_with("GRADUAL_CPU_ISA: no instruction set 'avx51'; there are " + names_of_all()));
  for (const CpuIsa isa : {CpuIsa::baseline, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::amx}) {
    const std::vector<CpuIsa> isas = cpu_isas();
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) continue;
    const std::string wanted(to_string(isa));
    CHECK(error_of(wanted.c_str()) ==
          "GRADUAL_CPU_ISA: this build on this processor has no '" + wanted + "'; there are " + names_of_all());
  }
}

TEST_CASE("an instruction set that is not there is refused and changes nothing") {
  const CpuIsa before = cpu_isa();
  const std::vector<CpuIsa> isas = cpu_isas();
  for (const CpuIsa isa : {CpuIsa::baseline, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::amx}) {
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) {
      CHECK(set_cpu_isa(isa) == before);
      CHECK(cpu_isa() == isa);
      CHECK(set_cpu_isa(before) == isa);
    } else {
      const std::string message = "set_cpu_isa: this build on this processor has no '" + std::string(to_string(isa)) +
                                  "'; there are " + names_of_all();
      CHECK_THROWS_WITH_AS(set_cpu_isa(isa), message.c_str(), Error);
    }
    CHECK(cpu_isa() == before);
  }
}

// Lengths near those of vectors and blocks, numbers of all exponents, and special values: tails and special values
// take ways of their own in each instruction set.
TEST_CASE("conversions, elementwise ops and reductions of any length have the same bits by every instruction set") {
  const std::vector<double> special = {0,       -0.0,    0x1p-149, -0x1p-130, 0x1p127, 65520,    448,  464,
                                       0x1p-24, 0x1p-25, 1,        -1.5,      NAN,     INFINITY, -NAN, -INFINITY};
  Generator g(3);
  const auto inputs = [&](std::int64_t n) {
    std::vector<double> wide = mul(randn({n}, {}, g), exp(randn({n}, {}, g) * 20)).to_vector<double>();
    const Tensor plain = from_data(wide, {n});
    std::copy_n(special.begin(), std::min(special.size(), wide.size()), wide.begin());
    return std::vector<Tensor>{from_data(wide, {n}), plain, randn({n}, {}, g)};
  };
  const auto results = [](const std::vector<Tensor>& in) {
    std::vector<Tensor> out;
    for (const Tensor& x : in) {
      for (const DType d : {DType::f16, DType::bf16, DType::f8e4m3fn, DType::f8e5m2, DType::f64, DType::i32}) {
        out.push_back(x.to(d));
        out.push_back(out.back().to(DType::f32));
      }
      for (const auto f : {abs, relu, square, exp, log, log1p, sqrt, rsqrt, tanh, sigmoid, erf, silu, softplus})
        out.push_back(f(x, Loc::current()));
      const Tensor& y = in.back();
      out.push_back(x + y);
      out.push_back(x * y);
      out.push_back(x / y);
      out.push_back(maximum(x, y));
      if (&x == &in.front()) continue;  // which of two NaNs a sum keeps is not said
      out.push_back(sum(x));
      out.push_back(max(x));
      out.push_back(var(x));
      out.push_back(logsumexp(x));
      out.push_back(softmax(x, 0));
      out.push_back(layer_norm(x, 1));
    }
    return out;
  };
  for (const std::int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1023, 1024, 1025, 5000, 100000}) {
    const std::vector<Tensor> in = inputs(n);
    const CpuIsa before = set_cpu_isa(cpu_isas().front());
    const std::vector<Tensor> slowest = results(in);
    set_cpu_isa(before);
    reference::for_each_isa([&](CpuIsa isa) {
      const std::vector<Tensor> here = results(in);
      for (std::size_t i = 0; i < here.size(); ++i) {
        CAPTURE(n);
        CAPTURE(to_string(isa));
        CAPTURE(i);
        CHECK(testing::same_bits(here[i], slowest[i]));
      }
    });
  }
}
