// Tensors written as nested lists.
#include <doctest/doctest.h>
#include <gradual/core/tensor/literal.h>

#include <string>
#include <vector>

using namespace gradual;

namespace {

using Values = std::vector<double>;

template <class F> std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

}  // namespace

TEST_CASE("nested lists give shape and values") {
  const Tensor matrix = tensor({{1, 2}, {3, 4}});
  CHECK(matrix.sizes() == Shape{2, 2});
  CHECK(matrix.dtype() == DType::f32);
  CHECK(matrix.to_vector<double>() == Values{1, 2, 3, 4});
  CHECK(tensor({1, 2.5, -3}).sizes() == Shape{3});
  CHECK(tensor({{1}, {2}}).sizes() == Shape{2, 1});
  const Tensor cube = tensor({{{1, 2}, {3, 4}, {5, 6}}}, {.dtype = DType::i64});
  CHECK(cube.sizes() == Shape{1, 3, 2});
  CHECK(cube.dtype() == DType::i64);
  CHECK(cube.to_vector<double>() == Values{1, 2, 3, 4, 5, 6});
  CHECK(tensor({0.1}, {.dtype = DType::bf16}).item() == 0x1.9ap-4);
}

TEST_CASE("lists that are no tensor are an Error that says why") {
  CHECK(error_of([] {
          tensor({{1, 2}, {3}});
        }) == "tensor: a list of 1 in dim 1, where the first one has 2; all lists of a dim have one length");
  CHECK(error_of([] { tensor({{1, 2}, 3}); }) == "tensor: a number in dim 1, where the first entry is a list");
  CHECK(error_of([] { tensor({1, {2, 3}}); }) == "tensor: a list in dim 1, where the first entry is a number");
}
