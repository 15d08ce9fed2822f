// The library leaves short names to its users: a program says `using namespace gradual`, defines these functions, and
// every call reaches them.
#include <doctest/doctest.h>
#include <gradual/gradual.h>

#include <string>
#include <type_traits>

using namespace gradual;  // NOLINT(google-build-using-namespace)

namespace {

struct Mine {};

// For types of the library, where a function of the library would make a call ambiguous, and for any others, where it
// would be preferred and give another type.
#define GRADUAL_TEST_USERS(name)                            \
  Mine name(DType) { return {}; }                           \
  Mine name(OpId) { return {}; }                            \
  Mine name(const Tensor&) { return {}; }                   \
  Mine name(const Quantizer&) { return {}; }                \
  Mine name(const amp::Recipe&) { return {}; }              \
  Mine name(const amp::Recipe&, nn::Module&) { return {}; } \
  template <class... A> Mine name(const A&...) { return {}; }

GRADUAL_TEST_USERS(check)
GRADUAL_TEST_USERS(fail)
GRADUAL_TEST_USERS(failf)
GRADUAL_TEST_USERS(load)
GRADUAL_TEST_USERS(store)
GRADUAL_TEST_USERS(name)
GRADUAL_TEST_USERS(info)
GRADUAL_TEST_USERS(place)

template <class... R> constexpr bool mine(const R&...) { return (std::is_same_v<R, Mine> && ...); }

template <class... A> bool all_mine(A&&... a) {
  return mine(check(a...), fail(a...), failf(a...), load(a...), store(a...), name(a...), info(a...), place(a...));
}

TEST_CASE("check, fail, load, store, name, info and place are the user's") {
  const Tensor x = ones({2, 3});
  float number = 0;
  nn::Sequential model;
  CHECK(all_mine(x));
  CHECK(all_mine(x.dtype()));
  CHECK(all_mine(OpId::matmul));
  CHECK(all_mine(Quantizer{.format = format("e4m3fn")}));
  CHECK(all_mine(format("e4m3fn")));
  CHECK(all_mine(Rounding(), Overflow::saturate));
  CHECK(all_mine(Accumulator()));
  CHECK(all_mine(amp::recipe("fp32")));
  CHECK(all_mine(amp::recipe("fp32"), static_cast<nn::Module&>(model)));
  CHECK(all_mine(amp::Quantization()));
  CHECK(all_mine(optim::LowPrecisionUpdate::kahan));
  CHECK(all_mine(cpu_isa()));
  CHECK(all_mine(std::source_location::current()));
  CHECK(all_mine(std::string("a message"), 1));
  CHECK(all_mine(x.dtype(), x.raw(), 1, &number, 6));
  CHECK(all_mine(x.dtype(), &number, x.raw(), 1, 6));
  CHECK(all_mine());
}

}  // namespace
