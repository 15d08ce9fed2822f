// Ops of two and three operands, and in-place arithmetic.
#include "elementwise.h"
#include "movement.h"

namespace gradual::cuda {
namespace {

template <class C, class F> void update(const OpCall& c, const F& f, C scalar) {
  const Tensor y = c[1].defined() ? readable(c[0], c[1]) : c[1];
  const Tensor* inputs[] = {&c[0], &y};
  map_elements<C, 2>(c[0], inputs, f, scalar);
}

// x += alpha * y; without y, x += alpha.
void add_in_place(const OpCall& c, Outputs&) {
  cpu::visit_compute(in_place_dtype(c), [&]<class C>(C) {
    const C alpha = number<C>(c);
    if (c[1].defined()) update<C>(c, functors::AddScaled<C>{alpha}, alpha);
    else update<C>(c, functors::Add{}, alpha);
  });
}

void mul_in_place(const OpCall& c, Outputs&) {
  cpu::visit_compute(in_place_dtype(c),
                     [&]<class C>(C) { update<C>(c, functors::Mul{}, c[1].defined() ? C{} : number<C>(c)); });
}

// f16 or bf16 with f32: widening in the kernel is exact and saves a pass over memory.
bool half_with_f32(const OpCall& call) {
  const Tensor& a = call[0];
  const Tensor& b = call[1];
  if (!a.defined() || !b.defined()) return false;
  return (is_half(a.dtype()) && b.dtype() == DType::f32) || (a.dtype() == DType::f32 && is_half(b.dtype()));
}

}  // namespace

void register_elementwise_binary() {
  binary_rows(Cuda{});
  for (const OpId op : {OpId::add, OpId::sub, OpId::mul}) capability(op).reads_mixed = half_with_f32;
  set_kernel(OpId::add_, add_in_place);
  set_kernel(OpId::mul_, mul_in_place);
}

}  // namespace gradual::cuda
