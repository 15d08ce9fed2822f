// What the sessions of the debuggers look at. Every variable of main() that `expected.txt` lists is shown in shown().
#include <gradual/core/formats/format_table.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

using namespace gradual;

namespace {

struct Net : nn::Module {
  nn::Linear& fc = register_module("fc", nn::Linear(3, 2));
  Tensor forward(const Tensor& x) override { return fc(x); }
};

// Breakpoints: the sessions read the variables of main() at the first, and compare the arguments of the second.
void shown() { std::fflush(stdout); }
void named([[maybe_unused]] const Format& format, const char* name) { std::printf("%s\n", name); }

std::vector<Format> formats() {
  std::vector<Format> all = {format("e3m4"), format("q3.4"), format("uq2.6")};
  for (const auto* list : {&named_formats(), &table_formats()})
    for (const NamedFormat& n : *list) all.push_back(n.format);
  all.push_back(format("e4m3fn"));
  all.back().bias = 9;
  return all;
}

}  // namespace

int main() {
  set_cpu_backend(CpuBackend::eigen);  // the kernel whose source is compiled with this program
  const Tensor undefined;
  const Tensor x = tensor({{1, 2, 3}, {4, 5, 6}}).to(DType::f32);
  Tensor moved_from = x.clone();
  const Tensor moved_to = std::move(moved_from);
  const Tensor f16 = from_data(std::vector<double>{1.5, -65504, 6e-8, NAN, INFINITY}, {5}, {.dtype = DType::f16});
  const Tensor bf16 = from_data(std::vector<double>{1.5, -3e38, 1e-40, INFINITY}, {4}, {.dtype = DType::bf16});
  const Tensor e4m3 = from_data(std::vector<double>{1.5, -448, 0x1p-9, 0.0625, NAN}, {5}, {.dtype = DType::f8e4m3fn});
  const Tensor e5m2 = from_data(std::vector<double>{1.5, -57344, 0x1p-16, INFINITY}, {4}, {.dtype = DType::f8e5m2});
  const Tensor f64 = full({}, 0.1, DType::f64);
  const Tensor ids = from_data(std::vector<std::int64_t>{-7, 1LL << 40}, {2});
  const Tensor mask = x.gt(2);
  const Tensor turned = x.t();
  const Tensor column = x.select(1, 1);
  const Tensor spread = x.select(0, 1).unsqueeze(0).expand({1000, 3});
  const Tensor none = zeros({0, 4});
  [[maybe_unused]] const Tensor& reference = x;
  const Tensor gpu = device::count() > 0 ? x.to(Device::cuda()) : undefined;
  [[maybe_unused]] const Shape shape = {2, 3};
  [[maybe_unused]] const Device device = Device::cpu();
  [[maybe_unused]] const Quantizer quantizer = {.format = format("e4m3fn"), .scaling = PowerBlocks{.block = 16}};
  const QuantizedTensor codes = quantize(x, {.format = format("e2m1")});
  alignas(Tensor) unsigned char garbage[sizeof(Tensor)];
  std::fill(std::begin(garbage), std::end(garbage), static_cast<unsigned char>(0x5a));
  [[maybe_unused]] const Tensor& not_made = *reinterpret_cast<const Tensor*>(garbage);

  Net net;
  const Tensor weight = net.fc.weight;
  {
    const NoGrad off;
    weight.fill_(0.5);
    net.fc.bias.fill_(0);
  }
  const Tensor y = net(x);
  y.sum().backward();
  const Tensor fresh = zeros({1}).set_requires_grad();
  shown();
  for (const Format& f : formats()) named(f, to_string(f).c_str());
  return 0;
}
