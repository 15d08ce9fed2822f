#include "products.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "../autograd/grad_mode.h"
#include "../core/ops/compute_mode.h"
#include "../core/ops/cpu_backend.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/multiversion.h"
#include "../core/support/threads.h"

namespace gradual::lab {
using inspect::SumTree;

namespace {

constexpr std::int64_t kSide = 16;  // rows and columns

// The settings of a product.
struct How {
  DType dtype = DType::f32;
  CpuBackend backend = CpuBackend::eigen;
  CpuIsa isa = cpu_isa();
  std::optional<Accumulator> accumulator = {};
  MatmulPrecision precision = MatmulPrecision::f32;
  Device device = Device::cpu();
};

// set_cpu_isa asks the processor what it has, which takes long in a virtual machine.
void use(CpuIsa isa) {
  if (isa != cpu_isa()) set_cpu_isa(isa);
}
struct IsaScope : Pinned {
  CpuIsa before = cpu_isa();
  explicit IsaScope(CpuIsa isa) { use(isa); }
  ~IsaScope() { use(before); }
};

double multiply(const How& how, std::span<const double> a, std::span<const double> b) {
  const NoGrad no_grad;
  const StageScope amp{chain().amp, nullptr};
  const StageScope observe{chain().observe, nullptr};
  const StageScope results{chain().results, nullptr};
  const CpuBackendScope backend(how.backend);
  const IsaScope isa(how.isa);
  const AccumulatorScope accumulator(how.accumulator);
  const MatmulPrecisionScope precision(how.precision);
  const FastF8Scope fast_f8(true);
  const ThreadsScope one(1);
  const auto n = static_cast<std::int64_t>(a.size());
  const auto row = [&](std::span<const double> values) {
    return from_data(std::vector<double>(values.begin(), values.end()), {n}, {.dtype = how.dtype}).to(how.device);
  };
  const auto rows = [&](std::span<const double> values) { return row(values).expand({kSide, n}).contiguous(); };
  return how.accumulator ? matmul(row(a), row(b)).item() : matmul(rows(a), rows(b).transpose(0, 1))[0][0].item();
}

Product product(std::string name, const How& how, int terms, Claim claim) {
  const DType result = is_f8(how.dtype) ? DType::f32 : how.dtype;
  const auto dot = [how](std::span<const double> a, std::span<const double> b) { return multiply(how, a, b); };
  return {std::move(name), {.terms = terms, .operands = how.dtype, .result = result}, dot, std::move(claim)};
}

Claim sums_of(int bits, std::string source = "IEEE 754", std::string_view products = {},
              const char* subnormal = "kept") {
  Claim claim{.source = std::move(source),
              .facts = {{"bits", std::to_string(bits)},
                        {"rounding", "nearest-even"},
                        {"subnormal operands", subnormal},
                        {"subnormal products", "kept"},
                        {"subnormal sums", subnormal}}};
  if (!products.empty()) claim.facts.push_back({"products", std::string(products)});
  return claim;
}
// The claims of a bf16 instruction, for any order of the sum. No product is alone in a sum, so none is flushed.
Claim bf16_instruction(CpuIsa isa) {
  const char* const name = isa == CpuIsa::amx ? "TDPBF16PS" : "VDPBF16PS";
  return sums_of(24, fmt::format("Intel 64 and IA-32 Architectures Software Developer's Manual, {}", name),
                 "fit the sum", "flushed");
}

void add_cpu(std::vector<Product>& all, int terms) {
  const auto add = [&](DType dtype, CpuBackend backend, CpuIsa isa, Claim claim) {
    all.push_back(product(fmt::format("{} {} {}", to_string(backend), to_string(dtype), to_string(isa)),
                          {.dtype = dtype, .backend = backend, .isa = isa}, terms, std::move(claim)));
  };
  const std::vector<CpuIsa> isas = cpu_isas();
  const CpuIsa best = isas.back();
  const auto has_bf16 = [](CpuIsa isa) { return isa >= CpuIsa::avx512 && gradual::detail::has_avx512_bf16(); };
  for (const CpuIsa isa : isas) {
    add(DType::f64, CpuBackend::eigen, isa, sums_of(53));
    add(DType::f32, CpuBackend::eigen, isa, sums_of(24));
  }
  for (const DType half : {DType::bf16, DType::f16}) add(half, CpuBackend::eigen, best, sums_of(24));
  for (const CpuIsa isa : isas) {
    if (!has_fast() || isa < CpuIsa::avx2) continue;
    const bool suits = isa == CpuIsa::avx2 || terms <= 1024;  // Eigen computes the others
    Claim in_turn = suits ? sums_of(24, "core/cpu/fast/f32_gemm.h", "fused") : sums_of(24);
    if (suits) in_turn.tree = inspect::tree_of({}, terms);
    add(DType::f32, CpuBackend::fast, isa, std::move(in_turn));
    if (has_bf16(isa)) add(DType::bf16, CpuBackend::fast, isa, bf16_claim(isa, terms));
  }
  if (!has_onednn()) return;
  add(DType::bf16, CpuBackend::onednn, best, has_bf16(best) ? bf16_instruction(best) : sums_of(24));
  for (const DType dtype : {DType::f32, DType::f16}) add(dtype, CpuBackend::onednn, best, sums_of(24));
}

void add_gpu(std::vector<Product>& all, int terms, Device gpu) {
  const auto add = [&](DType dtype, Claim claim, MatmulPrecision precision = MatmulPrecision::f32) {
    const auto name = precision == MatmulPrecision::tf32 ? std::string_view("tf32") : to_string(dtype);
    all.push_back(product(fmt::format("{} {}", to_string(gpu), name),
                          {.dtype = dtype, .precision = precision, .device = gpu}, terms, std::move(claim)));
    // TF32 has no dtype; bf16 numbers are among those of TF32.
    if (precision == MatmulPrecision::tf32) all.back().options.operands = DType::bf16;
  };
  const Claim f32{.source = "cuBLAS documentation, CUBLAS_COMPUTE_32F", .facts = {{"bits", "24"}}};
  add(DType::f64, sums_of(53));
  add(DType::f32, sums_of(24));
  add(DType::f32, f32, MatmulPrecision::tf32);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f8e4m3fn, DType::f8e5m2}) add(dtype, f32);
}

}  // namespace

Claim bf16_claim(CpuIsa isa, int terms) {
  Claim claim = bf16_instruction(isa);
  std::vector<SumTree> sums;
  if (isa == CpuIsa::amx) {  // for each 32 products: the sum of the even ones plus that of the odd ones
    for (int tile = 0; tile < terms; tile += 32) {
      std::vector<SumTree> sides[2];
      for (int at = tile; at < std::min(terms, tile + 32); ++at) sides[at % 2].push_back({.first = at});
      std::vector<SumTree> both{inspect::sum_in_turn(std::move(sides[0]))};
      if (!sides[1].empty()) both.push_back(inspect::sum_in_turn(std::move(sides[1])));
      sums.push_back(inspect::sum_in_turn(std::move(both)));
    }
  } else {  // for each two products: the odd one, then the even one
    for (int at = 0; at < terms; ++at) sums.push_back({.first = at % 2 ? at - 1 : std::min(at + 1, terms - 1)});
  }
  claim.tree = inspect::sum_in_turn(std::move(sums));
  return claim;
}

Product current_product(DType dtype, int terms) {
  return product(fmt::format("{} by {}, {}", to_string(dtype), to_string(cpu_backend()), to_string(cpu_isa())),
                 {.dtype = dtype, .backend = cpu_backend()}, terms, {});
}

Product emulated_product(std::string_view name, int terms) {
  const Accumulator a = accumulator(name);
  Claim claim = sums_of(a.f64 ? 53 : a.format.mantissa_bits + 1, "core/formats/accumulator.h",
                        a.f64 && !a.promote ? "fit the sum" : "fused");
  claim.tree = inspect::tree_of(a, terms);
  claim.facts[1].text = to_string(a.rounding.mode);
  return product("emulated " + std::string(name), {.accumulator = a}, terms, std::move(claim));
}

std::vector<Product> products_of_this_machine(int terms) {
  std::vector<Product> all;
  add_cpu(all, terms);
  for (const char* name : {"f32", "f64", "fp16-acc", "bf16-acc", "hopper-fp8-14bit", "hopper-fp8-14bit/promote=128",
                           "fp16-acc/chunk=64", "bf16-acc:toward-zero/chunk=16/promote=64"})
    all.push_back(emulated_product(name, terms));
  for (int i = 0; i < device::count(); ++i) add_gpu(all, terms, Device::cuda(i));
  return all;
}

std::vector<Fact> facts_of(const inspect::ProbeResult& r) {
  constexpr std::string_view kProducts[] = {"not seen", "fit the sum", "rounded", "fused"};
  const auto mode = [](const std::optional<RoundingMode>& m) { return std::string(m ? to_string(*m) : "not seen"); };
  const auto bits = [](int n) { return n ? std::to_string(n) : std::string("not seen"); };
  const auto flushed = [](std::optional<bool> f) { return std::string(!f ? "not seen" : *f ? "flushed" : "kept"); };
  std::vector<Fact> facts{{"order", r.consistent ? to_string(r.tree) : "no tree"},
                          {"addends at once", std::to_string(ways(r.tree))},
                          {"bits", bits(r.sum.bits)},
                          {"rounding", mode(r.sum.rounding)}};
  const auto add = [&](const char* what, std::string text) { facts.push_back({what, std::move(text)}); };
  if (r.sum.aligned) {
    add("bits of an addend", bits(r.sum.aligned));
    add("rounding of an addend", mode(r.sum.alignment));
  }
  if (r.chunk) add("chunk", std::to_string(r.chunk));
  if (r.promote) add("promoted every", std::to_string(r.promote));
  if (r.outer) {
    add("bits of outer sums", bits(r.outer->bits));
    add("rounding of outer sums", mode(r.outer->rounding));
  }
  add("products", std::string(kProducts[static_cast<int>(r.products)]));
  add("subnormal operands", flushed(r.flushes_operands));
  add("subnormal products", flushed(r.flushes_products));
  add("subnormal sums", flushed(r.flushes_sums));
  add("powers of two", fmt::format("2^{} to 2^{}", r.least, r.largest));
  add("same bits as the tree",
      r.replayed ? fmt::format("{} of {}", r.reproduced, r.replayed) : std::string("not compared"));
  return facts;
}

std::vector<CheckedFact> check_claim(const Claim& claim, const inspect::ProbeResult& found) {
  std::vector<CheckedFact> all;
  if (claim.tree)
    all.push_back(
        {"order", to_string(*claim.tree), to_string(found.tree), found.consistent && shows(found.tree, *claim.tree)});
  for (const Fact& seen : facts_of(found))
    for (const Fact& claimed : claim.facts)
      if (seen.what == claimed.what && seen.text != "not seen")
        all.push_back({seen.what, claimed.text, seen.text, seen.text == claimed.text});
  return all;
}

}  // namespace gradual::lab
