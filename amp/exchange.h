// The precision in which ranks of data-parallel training exchange gradients (dist/rank_sum.h carries it out). A recipe
// without one exchanges f32 and has the same bits on any number of ranks.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "../core/quantize/quantizer.h"

namespace gradual {

enum class ExchangeAlgorithm : std::uint8_t {
  gather,  // every rank rounds its gradient once; codes are gathered, and each element is summed in f32 at one rank
  ring,    // partial sums travel from rank to rank and are rounded before each hop
  tree     // partial sums of pairs, pairs of pairs, ..; rounded before each hop
};
// When gradients are divided by the number of ranks.
enum class Averaging : std::uint8_t { before, after };
template <> inline constexpr std::string_view kEnumNames<ExchangeAlgorithm>[] = {"gather", "ring", "tree"};
template <> inline constexpr std::string_view kEnumNames<Averaging>[] = {"before", "after"};

namespace amp {

struct Exchange {
  // What travels. Scales: none; fixed; tensor: one power of two for each parameter, on which the ranks agree, from
  // their amaxes; block and nvfp4: along the parameter's elements in their order. Neither set: f32.
  std::optional<Quantizer> quantizer = {};
  bool sign = false;  // instead of a quantizer: one bit, the sign, times the mean magnitude of the piece sent (1-bit
                      // SGD, Seide et al. 2014)
  ExchangeAlgorithm algorithm = ExchangeAlgorithm::gather;
  Averaging average = Averaging::before;
  bool error_feedback = false;  // what rounding took is added to the rank's next gradient (Seide et al. 2014)
  bool round_result = true;     // the sum is rounded too, before it goes back to all ranks

  bool operator==(const Exchange&) const = default;
};
// Error that names the wrong field.
void check_valid(const Exchange& exchange);
// From words separated by "/": what travels (f32, sign, int8, mxfp8, mxfp6, mxfp4, nvfp4 or a format: with one scale
// for each parameter if it has at most 8 bits), then gather, ring or tree; stochastic; feedback; after; f32-result.
// "bf16/ring", "sign/feedback". Error that lists the words.
Exchange exchange_from_name(std::string_view text);
std::string describe(const Exchange& exchange);

}  // namespace amp
}  // namespace gradual
