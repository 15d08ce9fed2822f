#include "generator.h"

#include "rounding_draws.h"
#include "throwf.h"

namespace gradual {

static thread_local Generator* current = nullptr;
static thread_local DrawScope* draws = nullptr;
static thread_local Generator* rounding = nullptr;

DrawScope::DrawScope(std::vector<RandomKey>& log, Mode mode)
    : log_(log), mode_(mode), outer_(draws), current_(draws, this) {}

RandomKey Generator::next() {
  // The key comes from the innermost replaying scope; recording scopes inside it log the key.
  DrawScope* source = draws;
  while (source && source->mode_ == DrawScope::Mode::record) source = source->outer_;
  if (source && source->used_ == source->log_.size())
    throwf("random numbers: a recomputation draws more often than the first computation ({} draws)", source->used_);
  const RandomKey key = source ? source->log_[source->used_++] : RandomKey{state_.seed, state_.stream++};
  for (DrawScope* s = draws; s != source; s = s->outer_) s->log_.push_back(key);
  return key;
}

Generator& default_generator() {
  thread_local Generator own;
  return current ? *current : own;
}
GeneratorScope::GeneratorScope(Generator& generator) : Scoped(current, &generator) {}

// Another seed, so that no stream of rounding is one of the model's draws.
constexpr std::uint64_t kRoundingSeed = 0x6772616475616c23;

Generator& rounding_generator() { return rounding ? *rounding : default_generator(); }
RoundingDraws::RoundingDraws(RandomKey start)
    : own_(RandomKey{start.seed ^ kRoundingSeed, start.stream}), scope_(rounding, &own_) {}

}  // namespace gradual
