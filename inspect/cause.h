// The causes that findings name. Each is a row of causes.def.
#pragma once

#include <cstdint>
#include <string_view>

#include "number_role.h"

namespace gradual::inspect {

enum class Cause : std::uint8_t {
#define GRADUAL_CAUSE(cause, ...) cause,
#include "causes.def"
  count_
};
inline constexpr int kCauses = static_cast<int>(Cause::count_);

// What is to blame: the recipe, the program (data, learning rate, code), or the recipe unless fp32 fails too.
enum class Blame : std::uint8_t { recipe, program, either };

// Where it holds: in the run that shows it, or for every recipe, as it does not depend on the numbers.
enum class Holds : std::uint8_t { in_run, everywhere };

struct CauseInfo {
  Cause cause;
  std::string_view name;  // in results.json: "adam-eps"
  Blame blame;
  Holds holds;
  NumberRole role;            // of its numbers, where one role alone can have it; none: the op or the operand tells
  std::string_view evidence;  // what is seen
  std::string_view sentence;  // for readers who know what a float is
  std::string_view cure;      // what helps
};
inline constexpr CauseInfo kCauseInfos[kCauses] = {
#define GRADUAL_CAUSE(cause, name, blame, holds, role, evidence, sentence, cure) \
  {Cause::cause, name, Blame::blame, Holds::holds, NumberRole::role, evidence, sentence, cure},
#include "causes.def"
};
constexpr const CauseInfo& cause_info(Cause cause) { return kCauseInfos[static_cast<int>(cause)]; }
constexpr std::string_view to_string(Cause cause) { return cause_info(cause).name; }

// True if the recipe is to blame for a finding of this cause.
constexpr bool blames_recipe(Cause cause, bool fp32_fails) {
  const Blame blame = cause_info(cause).blame;
  return blame == Blame::recipe || (blame == Blame::either && !fp32_fails);
}

}  // namespace gradual::inspect
