// The rows of one operand, and those whose function holds a number.
#include "elementwise.h"

namespace gradual::cuda {
namespace {

void leaky_relu(const OpCall& c, Outputs& out) {
  cpu::visit_floating(c[0].dtype(), [&]<class C>(C) {
    map_elements<C, 1>(out[0], c.inputs.data(), functors::LeakyRelu<C>{number<C>(c)});
  });
}

void clamp(const OpCall& c, Outputs& out) {
  const auto& a = c.get<ScalarAttrs>();
  cpu::visit_compute(c[0].dtype(), [&]<class C>(C) {
    const functors::Clamp<C> f{bound<C>(std::ceil(a.value), a.value), bound<C>(std::floor(a.high), a.high)};
    map_elements<C, 1>(out[0], c.inputs.data(), f);
  });
}

// The kernel for one form of gelu or the other.
template <int N, class Exact, class Tanh> void gelu_form(const OpCall& c, Outputs& out) {
  (c.get<Gelu>() == Gelu::tanh ? floats_kernel<N, Tanh> : floats_kernel<N, Exact>)(c, out);
}

}  // namespace

void register_elementwise() {
  using namespace functors;
  unary_rows(Cuda{});
  set_kernel(OpId::clamp, clamp);
  set_kernel(OpId::leaky_relu, leaky_relu);
  set_kernel(OpId::gelu, gelu_form<1, GeluExact, GeluTanh>);
  set_kernel(OpId::gelu_backward, gelu_form<2, GeluExactBackward, GeluTanhBackward>);
}

}  // namespace gradual::cuda
