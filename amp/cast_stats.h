// Statistics of casts by role and layer, collected while a scope counts.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>

#include "../core/formats/rounding.h"
#include "../core/support/scoped.h"
#include "rewrite.h"
#include "site_name.h"

namespace gradual::amp {

struct CastTally {
  CastCounts counts;            // overflow includes saturation
  ExponentHistogram exponents;  // of the values before rounding: times the loss scale and the quantiser's scale
  CastTally& operator+=(const CastTally& o) {
    counts += o.counts;
    exponents += o.exponents;
    return *this;
  }
  double underflow_percent() const;  // of all elements; 0 if there are none
  double overflow_percent() const;
};

// By role and layer: the text of a SiteName. Of a product with outlier channels it has the casts by the product's own
// quantizers, to which the outliers are zeros, and not those by the outliers' quantizer.
using CastStatsTable = std::map<std::pair<Role, std::string>, CastTally>;
void add(CastStatsTable& to, const CastStatsTable& from);
// The sum over all layers.
CastTally total(const CastStatsTable& table, std::initializer_list<Role> roles);
inline constexpr std::initializer_list<Role> kGradients = {Role::error, Role::weight_gradient};

// The table that casts and quantisers of this thread add their counts to, or null.
inline constexpr auto cast_stats = per_thread<CastStatsTable*, struct OfCasts>;

struct CastStatsScope : Scoped<CastStatsTable*> {
  explicit CastStatsScope(CastStatsTable& table) : Scoped(cast_stats(), &table) {}
};

// The tally of casts of this role in this layer, or at this site; null if no scope is open.
CastTally* cast_tally(Role role, const std::string& layer);
CastTally* cast_tally(Role role, const SiteName& site);

}  // namespace gradual::amp
