// What casts did to each kind of tensor in each layer, while a scope counts.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "../core/formats/rounding.h"
#include "../core/support/scoped.h"
#include "rewrite.h"

namespace gradual::amp {

struct CastTally {
  CastCounts counts;            // overflow: what saturates counts too
  ExponentHistogram exponents;  // of the values as they meet the format: times the loss scale and the quantiser's
  CastTally& operator+=(const CastTally& other);
  double underflow_percent() const;  // of all elements; 0 where there are none
  double overflow_percent() const;
};

// By role and layer (a module's path, empty outside of all).
using CastStatsTable = std::map<std::pair<Role, std::string>, CastTally>;
void add(CastStatsTable& to, const CastStatsTable& from);
// Of all layers together.
CastTally total(const CastStatsTable& table, std::initializer_list<Role> roles);
inline constexpr std::initializer_list<Role> kGradients = {Role::error, Role::weight_gradient};

// The table that casts and quantisers of this thread add to, or null.
CastStatsTable*& cast_stats();

struct CastStatsScope : Scoped<CastStatsTable*> {
  explicit CastStatsScope(CastStatsTable& table) : Scoped(cast_stats(), &table) {}
};

// Where a cast of this role in this layer is counted; null where no scope is open.
CastTally* cast_tally(Role role, const std::string& layer);

}  // namespace gradual::amp
