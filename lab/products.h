// The matrix products of this machine, for the probe, and what is documented about each.
//
//   for (const Product& p : lab::products_of_this_machine(256))
//     for (const CheckedFact& c : lab::check_claim(p.claim, inspect::probe(p.dot, p.options)))
//       ..  // c.what, c.claimed, c.found, c.agrees
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../core/support/cpu_isa.h"
#include "../inspect/probe.h"

namespace gradual::lab {

// A fact about a sum, found or claimed: "rounding", "nearest-even".
struct Fact {
  std::string what, text;
  bool seen = true;  // false: the probe did not find it
};
// All findings of a probe as text.
std::vector<Fact> facts_of(const inspect::ProbeResult& found);

// The documented properties of a sum. Properties that are absent are not claimed.
struct Claim {
  std::string source = {};  // empty: nothing is claimed
  std::optional<inspect::SumTree> tree = {};
  std::vector<Fact> facts = {};
};

struct Product {
  std::string name;  // "fast bf16 avx512", "emulated hopper-fp8-14bit/promote=128"
  inspect::ProbeOptions options;
  inspect::DotProduct dot;  // an element of matmul's result
  Claim claim;
};

// matmul by each CPU backend, instruction set and dtype, by emulated accumulators, and on GPUs. The products multiply
// matrices of 16 rows and columns on one thread; emulated ones multiply two vectors. Other shapes may sum in another
// order. A dot product sets backend and instruction set for the whole process while it runs.
std::vector<Product> products_of_this_machine(int terms);
// matmul of this dtype as it runs now, by the current backend and instruction set.
Product current_product(DType dtype, int terms);
// matmul of f32 vectors with this accumulator. The claim is its definition.
Product emulated_product(std::string_view accumulator, int terms);
// The manual's claims for a sum by VDPBF16PS (isa: avx512) or TDPBF16PS (amx) that takes the operands in order.
Claim bf16_claim(CpuIsa isa, int terms);

struct CheckedFact {
  std::string what, claimed, found;
  bool agrees;
};
// One entry for each claim whose fact was seen.
std::vector<CheckedFact> check_claim(const Claim& claim, const inspect::ProbeResult& found);

}  // namespace gradual::lab
