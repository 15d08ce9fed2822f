#include "products.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "../autograd/grad_mode.h"
#include "../core/ops/compute_mode.h"
#include "../core/ops/cpu_backend.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/ops.h"
#include "../core/support/message_text.h"
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
  std::string_view products = a.f64 && !a.promote ? "fit the sum" : "fused";
  if (a.product) products = "rounded";
  Claim claim = sums_of(a.f64 ? 53 : a.format.mantissa_bits + 1, "core/formats/accumulator.h", products);
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

namespace {

Fact unseen(const char* what) { return {what, "not seen", false}; }
Fact bits_fact(const char* what, int bits) { return bits ? Fact{what, std::to_string(bits)} : unseen(what); }
Fact rounding_fact(const char* what, const std::optional<RoundingMode>& mode) {
  return mode ? Fact{what, std::string(to_string(*mode))} : unseen(what);
}
Fact subnormal_fact(const char* what, const std::optional<bool>& flushed) {
  return flushed ? Fact{what, *flushed ? "flushed" : "kept"} : unseen(what);
}
Fact products_fact(inspect::Products products) {
  constexpr const char* kWhat = "products";
  if (products == inspect::Products::unseen) return unseen(kWhat);
  return {kWhat, std::string(enum_name(products, {"", "fit the sum", "rounded", "fused"}))};
}

}  // namespace

std::vector<Fact> facts_of(const inspect::ProbeResult& r) {
  std::vector<Fact> facts{{"order", r.consistent ? to_string(r.tree) : "no tree"},
                          {"addends at once", std::to_string(ways(r.tree))},
                          bits_fact("bits", r.sum.bits),
                          rounding_fact("rounding", r.sum.rounding)};
  if (r.sum.aligned) {
    facts.push_back(bits_fact("bits of an addend", r.sum.aligned));
    facts.push_back(rounding_fact("rounding of an addend", r.sum.alignment));
  }
  if (r.chunk) facts.push_back({"chunk", std::to_string(r.chunk)});
  if (r.promote) facts.push_back({"promoted every", std::to_string(r.promote)});
  if (r.outer) {
    facts.push_back(bits_fact("bits of outer sums", r.outer->bits));
    facts.push_back(rounding_fact("rounding of outer sums", r.outer->rounding));
  }
  facts.push_back(products_fact(r.products));
  facts.push_back(subnormal_fact("subnormal operands", r.flushes_operands));
  facts.push_back(subnormal_fact("subnormal products", r.flushes_products));
  facts.push_back(subnormal_fact("subnormal sums", r.flushes_sums));
  facts.push_back({"powers of two", fmt::format("2^{} to 2^{}", r.least, r.largest)});
  const std::string same = r.replayed ? fmt::format("{} of {}", r.reproduced, r.replayed) : "not compared";
  facts.push_back({"same bits as the tree", same});
  return facts;
}

std::vector<CheckedFact> check_claim(const Claim& claim, const inspect::ProbeResult& found) {
  std::vector<CheckedFact> all;
  if (claim.tree)
    all.push_back(
        {"order", to_string(*claim.tree), to_string(found.tree), found.consistent && shows(found.tree, *claim.tree)});
  for (const Fact& fact : facts_of(found))
    for (const Fact& claimed : claim.facts)
      if (fact.what == claimed.what && fact.seen)
        all.push_back({fact.what, claimed.text, fact.text, fact.text == claimed.text});
  return all;
}

}  // namespace gradual::lab
