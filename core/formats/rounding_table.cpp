// Rounding to the values of a table (format_table.h): CPU only.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "../support/multiversion.h"
#include "format_table.h"
#include "rounding_kernels.h"

namespace gradual::detail {
namespace {

template <class U> using Value = typename SourceBits<U>::Value;

// Bits whose order as integers is that of the values; -0 is below 0.
template <class U> constexpr U key_of(U bits) {
  constexpr U kSign = SourceBits<U>::kSign;
  return bits ^ ((bits & kSign) != 0 ? ~U{0} : kSign);
}

// The least number of the source's type that is at least x, or that is above x.
template <class T> T at_least(double x) {
  const T near = static_cast<T>(x);
  return near < x ? std::nextafter(near, std::numeric_limits<T>::infinity()) : near;
}
template <class T> T above(double x) {
  const T near = static_cast<T>(x);
  return near > x ? near : std::nextafter(near, std::numeric_limits<T>::infinity());
}

constexpr int kBuckets = 4096;

// How a table rounds in one mode. Its values, with one more at each end for overflow, are parted by cuts: the number of
// cuts at or below a source is the index of its value. A bucket of sources has few cuts, which are searched.
template <class U> struct Cuts {
  Cuts(const ValueTable& t, RoundingMode mode);

  std::vector<U> keys;                        // padded with the largest key
  std::array<std::uint32_t, kBuckets> first;  // cuts below the bucket
  // the first and the last key
  U low = 0;
  U high = 0;
  int shift = 0;
  int steps = 0;
  std::vector<double> values;  // with those at the ends, and one more
  std::vector<U> bits, codes;  // of the values; nothing at the ends
  std::uint32_t zero = 0;      // the index of the value nearest to zero
};

// The cut between a and b. `even`: a tie goes to b. `odd`: to-odd takes b, else a.
template <class T> T cut_between(double a, double b, double bound, RoundingMode mode, bool even, bool odd) {
  T cut = T(0);
  switch (mode) {
    case RoundingMode::nearest_even: cut = even ? at_least<T>(bound) : above<T>(bound); break;
    case RoundingMode::nearest_away: cut = bound > 0 ? at_least<T>(bound) : above<T>(bound); break;
    case RoundingMode::toward_zero: cut = a >= 0 ? at_least<T>(b) : b > 0 ? T(0) : above<T>(a); break;
    case RoundingMode::up: cut = above<T>(a); break;
    case RoundingMode::to_odd: cut = odd ? above<T>(a) : at_least<T>(b); break;
    default: cut = at_least<T>(b);
  }
  return std::clamp(cut, above<T>(a), at_least<T>(b));  // values stay what they are
}

template <class U> Cuts<U>::Cuts(const ValueTable& t, RoundingMode mode) {
  using T = Value<U>;
  const std::size_t n = t.values.size();
  values.push_back(t.values.front() + 2 * (*t.lowest - t.values.front()));
  values.insert(values.end(), t.values.begin(), t.values.end());
  values.push_back(t.values.back() + 2 * (*t.highest - t.values.back()));
  for (std::size_t i = 0; i <= n; ++i) {
    const double bound = i == 0 ? *t.lowest : i == n ? *t.highest : t.bounds[i - 1];
    // Beyond the ends codes go on with the other parity.
    const bool below_odd = i > 0 ? (t.codes[i - 1] & 1) != 0 : (t.codes[0] & 1) == 0;
    const bool above_odd = i < n ? (t.codes[i] & 1) != 0 : !below_odd;
    const bool start = i == 0;
    const bool ends = !std::isfinite(values[start ? 0 : i + 1]) && (start || i == n);
    // If both codes are even or both odd, to-odd goes away from zero: what is not zero does not become zero.
    const bool odd = above_odd == below_odd ? values[i] >= 0 : above_odd;
    const T cut = ends ? (start ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::infinity())
                       : cut_between<T>(values[i], values[i + 1], bound, mode, below_odd && !above_odd, odd);
    keys.push_back(key_of(std::bit_cast<U>(cut == 0 ? T(-0.0) : cut)));
  }
  low = keys.front();
  high = keys.back();
  while ((high - low) >> shift >= kBuckets) ++shift;
  std::size_t most = 0;
  std::size_t at = 0;
  for (std::uint32_t b = 0; b < kBuckets; ++b) {
    first[b] = static_cast<std::uint32_t>(at);
    while (at < keys.size() && (keys[at] - low) >> shift == b) ++at;
    most = std::max(most, at - first[b]);
  }
  steps = static_cast<int>(std::bit_width(most));
  keys.insert(keys.end(), std::size_t{1} << steps, ~U{0});
  values.push_back(values.back());
  bits.resize(n + 2);
  codes.resize(n + 2);
  for (std::size_t i = 0; i < n; ++i) {
    bits[i + 1] = std::bit_cast<U>(T{t.values[i]});
    codes[i + 1] = t.codes[i];
  }
  const auto least = std::ranges::min_element(t.values, {}, [](float v) { return std::abs(v); });
  zero = static_cast<std::uint32_t>(least - t.values.begin()) + 1;
}

// Made once for a table and a mode.
template <class U> const Cuts<U>& cuts_of(const ValueTable& t, RoundingMode mode) {
  static std::mutex mutex;
  static std::map<std::pair<const ValueTable*, RoundingMode>, Cuts<U>> all;
  const std::lock_guard lock(mutex);
  return all.try_emplace({&t, mode}, t, mode).first->second;
}

// What a rounder gives at the ends, for Inf and for NaN: values' bits, or codes.
template <class U> struct Ends {
  U below, beyond, negative_inf, inf, nan;
};

template <class U> Ends<U> ends_of(const Cuts<U>& c, const ValueTable& t, const Rounder& r, bool codes) {
  const std::vector<U>& of = codes ? c.codes : c.bits;
  const bool saturates = r.overflow == Overflow::saturate;
  const U first = of[1];
  const U last = of[t.values.size()];
  const auto special = [&](std::optional<std::uint32_t> code, double value, U otherwise) {
    if (!code) return otherwise;
    return codes ? U{*code} : std::bit_cast<U>(static_cast<Value<U>>(value));
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const U nan = special(t.nan, std::numeric_limits<double>::quiet_NaN(), saturates ? last : of[c.zero]);
  const U up = special(t.inf, kInf, t.nan ? nan : last);
  const U down = special(t.negative_inf, -kInf, t.nan ? nan : first);
  return {stays_finite(r, true) ? first : down, stays_finite(r, false) ? last : up, saturates ? first : down,
          saturates ? last : up, nan};
}

// The indices of n sources.
template <class U> void find(const Cuts<U>& c, const Value<U>* in, std::uint32_t* index, std::int64_t n) {
  vectorized([=, &c, keys = c.keys.data(), first = c.first.data(), low = c.low, high = c.high, shift = c.shift,
              steps = c.steps] {
    for (std::int64_t i = 0; i < n; ++i) {
      const U key = key_of(std::bit_cast<U>(in[i]));
      const U within = (key < low ? low : key > high ? high : key) - low;
      index[i] = first[within >> shift];
    }
    for (std::uint32_t half = steps > 0 ? 1u << (steps - 1) : 0; half != 0; half /= 2)
      for (std::int64_t i = 0; i < n; ++i)
        index[i] += keys[index[i] + half - 1] <= key_of(std::bit_cast<U>(in[i])) ? half : 0;
  });
}

template <class U, class Out>
void put(const std::vector<U>& results, const Ends<U>& ends, const Value<U>* in, const std::uint32_t* index, Out* out,
         std::int64_t n) {
  const auto last = static_cast<std::uint32_t>(results.size()) - 1;
  vectorized([=, of = results.data()] {
    const Ends<U> e = ends;
    for (std::int64_t i = 0; i < n; ++i) {
      const U bits = std::bit_cast<U>(in[i]);
      const U magnitude = bits & ~SourceBits<U>::kSign;
      U r = of[index[i]];
      r = choose(index[i] == 0, e.below, r);
      r = choose(index[i] == last, e.beyond, r);
      r = choose(magnitude == SourceBits<U>::kInf, choose(bits == magnitude, e.inf, e.negative_inf), r);
      r = choose(magnitude > SourceBits<U>::kInf, e.nan, r);
      if constexpr (std::is_floating_point_v<Out>) out[i] = std::bit_cast<Out>(r);
      else out[i] = static_cast<Out>(r);
    }
  });
}

// Goes from the lower neighbour to the upper one by chance.
template <class U>
void round_up_by_chance(const Cuts<U>& c, const Value<U>* in, const std::uint32_t* random, int bits,
                        std::uint32_t* index, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double low = c.values[index[i]];
    const double gap = c.values[index[i] + 1] - low;
    if (!(in[i] >= low) || !std::isfinite(gap) || !(gap > 0)) continue;  // beyond the ends, or NaN
    const auto distance = static_cast<std::uint64_t>(std::ldexp((in[i] - low) / gap, bits));
    index[i] += distance + random[i] >= std::uint64_t{1} << bits ? 1 : 0;
  }
}

template <class U>
void count(const Cuts<U>& c, const Value<U>* in, const std::uint32_t* index, std::int64_t n, LoopCounts& counts) {
  const auto last = static_cast<std::uint32_t>(c.bits.size()) - 1;
  const std::uint32_t zero = c.values[c.zero] == 0 ? c.zero : ~0u;
  for (std::int64_t i = 0; i < n; ++i) {
    const bool finite = std::isfinite(in[i]);
    const bool to_zero = in[i] == 0 || (finite && index[i] == zero);
    counts.zeros += in[i] == 0;
    counts.to_zero += to_zero;
    counts.below_normal += to_zero;
    counts.beyond += !finite || (in[i] != 0 && (index[i] == 0 || index[i] == last));
    counts.not_finite += !finite;
    counts.nan += std::isnan(in[i]);
  }
}

}  // namespace

template <class T>
void round_to_table(const Rounder& r, const T* in, const std::uint32_t* random, T* values, void* codes, std::int64_t n,
                    LoopCounts* counts) {
  using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  const ValueTable& t = *r.format.table;
  const Cuts<U>& cuts = cuts_of<U>(t, r.rounding.mode);
  std::uint32_t index[kRoundingBlock];
  find<U>(cuts, in, index, n);
  if (random) round_up_by_chance<U>(cuts, in, random, r.rounding.random_bits, index, n);
  if (counts) count<U>(cuts, in, index, n, *counts);
  const Ends<U> ends = ends_of(cuts, t, r, codes != nullptr);
  if (!codes) put(cuts.bits, ends, in, index, values, n);
  else if (t.bits <= 8) put(cuts.codes, ends, in, index, static_cast<std::uint8_t*>(codes), n);
  else put(cuts.codes, ends, in, index, static_cast<std::uint16_t*>(codes), n);
}

template void round_to_table(const Rounder&, const float*, const std::uint32_t*, float*, void*, std::int64_t,
                             LoopCounts*);
template void round_to_table(const Rounder&, const double*, const std::uint32_t*, double*, void*, std::int64_t,
                             LoopCounts*);

}  // namespace gradual::detail
