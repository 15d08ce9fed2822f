#include "accumulator.h"

#include <fmt/format.h>

#include <utility>

#include "error.h"

namespace gradual {
namespace {

std::optional<Accumulator>& current() {
  thread_local std::optional<Accumulator> accumulator;
  return accumulator;
}

}  // namespace

void check(const Accumulator& a) {
  check(a.format);
  if (a.rounding.mode == RoundingMode::stochastic) fail("accumulator: its rounding is not stochastic");
  if (a.chunk < 0) fail(fmt::format("accumulator: a chunk has at least 1 product (0: one chain), not {}", a.chunk));
  if (a.promote < 0)
    fail(fmt::format("accumulator: it promotes after at least 1 product (0: never), not {}", a.promote));
}

AccumulatorScope::AccumulatorScope(const std::optional<Accumulator>& accumulator)
    : saved_(std::exchange(current(), accumulator)) {
  if (accumulator) check(*accumulator);
}
AccumulatorScope::~AccumulatorScope() { current() = saved_; }
const std::optional<Accumulator>& current_accumulator() { return current(); }

}  // namespace gradual
