#include "rank_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <variant>

#include "../core/support/throwf.h"

namespace gradual::dist {
RankSum::RankSum(Communicator& communicator, const amp::Exchange& exchange, int ranks,
                 const std::vector<std::int64_t>& sizes)
    : communicator_(communicator), exchange_(exchange), ranks_(ranks), starts_{0} {
  check_valid(exchange);
  if (ranks < 1 || ranks > kMostShards) throwf("exchange: {} ranks; allowed are 1 to {}", ranks, kMostShards);
  if (communicator.size() > 1 && communicator.size() != ranks)
    throwf("exchange: {} ranks cannot be emulated by {} processes; one process can", ranks, communicator.size());
  for (const std::int64_t n : sizes) starts_.push_back(starts_.back() + n);
  total_ = starts_.back();
  held_ = communicator.size() == 1 ? Range{0, ranks} : Range{communicator.rank(), communicator.rank() + 1};
  for (std::int64_t r = held_.first; r < held_.last; ++r)
    for (const char* of : {"gradient", "sums"}) kept_.residuals[fmt::format("{}.{}", r, of)] = {};
}

RankSum::Pieces RankSum::segment(std::int64_t j) const {
  const Range whole = part_of(total_, ranks_, j);
  Pieces out;
  auto p = std::ranges::upper_bound(summed_, whole.first, {}, [](const Piece& s) { return s.range.last; });
  for (; p != summed_.end() && p->range.first < whole.last; ++p) {
    const Range here{std::max(p->range.first, whole.first), std::min(p->range.last, whole.last)};
    if (here.size() > 0) out.push_back({here, p->parameter, p->at + here.first - p->range.first});
  }
  return out;
}

namespace {

// Calls f(place among the numbers of this sum, place among all) for each number.
template <class Pieces, class F> void for_numbers(const Pieces& pieces, const F& f) {
  for (const auto& p : pieces)
    for (std::int64_t i = 0; i < p.range.size(); ++i)
      f(static_cast<std::size_t>(p.at + i), static_cast<std::size_t>(p.range.first + i));
}

// Numbers of the pieces alone, to their places among those of the sum.
template <class Pieces> void put(const Pieces& pieces, const RankSum::Values& numbers, RankSum::Values& to, bool add) {
  auto next = numbers.begin();
  for_numbers(pieces, [&](std::size_t at, std::size_t) {
    to[at] = add ? to[at] + *next : *next;
    ++next;
  });
}

}  // namespace

std::size_t RankSum::bytes_of(const Pieces& pieces) const {
  std::size_t sum = 0;
  for (const Piece& p : pieces) sum += code_bytes(p.range.size());
  return sum;
}

Bytes RankSum::encode(const Pieces& pieces, const Values& values, RandomKey key, int stream, Values* lost) {
  Bytes out(bytes_of(pieces));
  // streams of the seed that no other code uses (dist/data_parallel.cpp)
  key.stream = (std::uint64_t{1} << 60) + key.stream * 2 * kMostShards + static_cast<std::uint64_t>(stream);
  std::byte* to = out.data();
  for (const Piece& p : pieces) {
    encode_piece(p, values.data() + p.at, key, to);
    to += code_bytes(p.range.size());
  }
  if (!lost) return out;
  const Values rounded = decode(pieces, out);
  auto next = rounded.begin();
  for_numbers(pieces, [&](std::size_t at, std::size_t of_all) { (*lost)[of_all] = values[at] - *next++; });
  return out;
}

RankSum::Values RankSum::decode(const Pieces& pieces, const Bytes& bytes) const {
  std::int64_t numbers = 0;
  for (const Piece& p : pieces) numbers += p.range.size();
  Values out(static_cast<std::size_t>(numbers));
  const std::byte* from = bytes.data();
  float* to = out.data();
  for (const Piece& p : pieces) {
    decode_piece(p, from, to);
    from += code_bytes(p.range.size());
    to += p.range.size();
  }
  return out;
}

// Each hop's `from` rounds its numbers and sends them, and `to` adds them. The processes know of the same hops between
// them, in the same order. When all is gathered, a rank's own numbers are rounded too, and the sum is over a tree.
void RankSum::move(const std::vector<Hop>& hops, Held& values, RandomKey key) {
  std::vector<Bytes> bytes(hops.size());
  std::vector<Message> sent, received;
  for (std::size_t i = 0; i < hops.size(); ++i) {
    const auto& [from, to, pieces] = hops[i];
    if (holds(from)) bytes[i] = encode(pieces, of(values, from), key, from, lost_at(from, false));
    else if (holds(to)) {
      bytes[i].resize(bytes_of(pieces));
      received.push_back({from, bytes[i].data(), bytes[i].size()});
    }
    if (holds(from) && from != to) kept_.bytes += bytes[i].size();
    if (holds(from) && !holds(to)) sent.push_back({to, bytes[i].data(), bytes[i].size()});
  }
  if (communicator_.size() > 1) communicator_.transfer(sent, received);
  TreeSum<float> tree;
  for (std::size_t i = 0; i < hops.size(); ++i) {
    const auto& [from, to, pieces] = hops[i];
    if (!holds(to)) continue;
    Values numbers = decode(pieces, bytes[i]);
    if (!gathers_) put(pieces, numbers, of(values, to), true);
    else tree.add(0, from, std::move(numbers));
    if (gathers_ && from + 1 == ranks_) put(pieces, tree.total(), of(values, to), false);
  }
}

// One power of two for each parameter, so that no contribution, or no sum of them, is beyond the largest number.
void RankSum::agree_on_scales(const std::vector<Values>& contributions, bool of_sum, double factor) {
  const auto* const scaling = exchange_.quantizer ? std::get_if<TensorScale>(&exchange_.quantizer->scaling) : nullptr;
  if (!scaling) return;
  const std::size_t n = summed_.size();
  std::vector<float> own, all(n * static_cast<std::size_t>(ranks_));
  for (const Values& v : contributions)
    for (const Piece& p : summed_) {
      float& most = own.emplace_back(0.0f);
      for_numbers(Pieces{p}, [&](std::size_t at, std::size_t) { most = std::max(most, std::fabs(v[at])); });
    }
  communicator_.all_gather(own.data(), own.size() * sizeof(float), all.data());
  kept_.bytes += own.size() * sizeof(float) * static_cast<std::size_t>(ranks_ - 1);
  const Quantizer& q = *exchange_.quantizer;
  scales_.assign(starts_.size() - 1, 1);
  for (std::size_t p = 0; p < n; ++p) {
    double bound = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks_); ++r) {
      const double amax = static_cast<double>(all[r * n + p]);
      bound = of_sum ? bound + amax : std::max(bound, amax);
    }
    if (of_sum) bound *= factor;
    if (!(bound > 0)) continue;
    const double exponent = std::floor(std::log2(q.format.max() / bound) - scaling->margin);
    scales_[summed_[p].parameter] =
        static_cast<float>(std::ldexp(1.0, static_cast<int>(std::clamp(exponent, -126.0, 126.0))));
  }
}

// --- codes -----------------------------------------------------------------------------------------------------------

namespace {

bool in_blocks(const amp::Exchange& e) { return e.quantizer && !per_tensor(e.quantizer->scaling); }

// What travels: codes, scales and the factor of all values, which a tensor without one has too.
template <class F> void for_tensors(QuantizedTensor q, const F& f) {
  if (!q.global_scale.defined()) q.global_scale = scalar(1).to(DType::f32);
  for (const Tensor* t : {&q.codes, &q.scales, &q.global_scale}) f(*t);
}

}  // namespace

// Room for n codes in blocks.
const QuantizedTensor& RankSum::codes_of(std::int64_t n) const {
  const auto found = codes_.find(n);
  return found != codes_.end() ? found->second
                               : codes_.emplace(n, quantize(zeros({n}), *exchange_.quantizer)).first->second;
}

std::size_t RankSum::code_bytes(std::int64_t n) const {
  if (exchange_.sign) return sizeof(float) + static_cast<std::size_t>((n + 7) / 8);
  if (!exchange_.quantizer) return static_cast<std::size_t>(n) * sizeof(float);
  if (in_blocks(exchange_)) {
    std::size_t bytes = 0;
    for_tensors(codes_of(n), [&](const Tensor& t) { bytes += t.nbytes(); });
    return bytes;
  }
  const Format& f = exchange_.quantizer->format;
  return static_cast<std::size_t>(f.bits() <= 8 ? packed_bytes(n, f.storage_bits()) : n * gradual::code_bytes(f));
}

float RankSum::scale_of(const Piece& piece) const {
  const Scaling& s = exchange_.quantizer->scaling;
  if (is_any<TensorScale>(s)) return scales_[piece.parameter];
  const auto* const fixed = std::get_if<FixedScale>(&s);
  return fixed ? static_cast<float>(fixed->value) : 1;
}

void RankSum::encode_piece(const Piece& piece, const float* values, RandomKey key, std::byte* out) {
  const std::int64_t n = piece.range.size();
  if (exchange_.sign) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(std::fabs(values[i]));
    const auto mean = static_cast<float>(sum / static_cast<double>(n));
    std::memcpy(out, &mean, sizeof mean);
    std::fill_n(out + sizeof mean, (n + 7) / 8, std::byte{0});
    for (std::int64_t i = 0; i < n; ++i)
      if (std::signbit(values[i])) out[sizeof mean + static_cast<std::size_t>(i / 8)] |= std::byte{1} << (i % 8);
    kept_.counts.elements += static_cast<std::uint64_t>(n);
    return;
  }
  if (!exchange_.quantizer) {
    std::memcpy(out, values, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  const Quantizer& q = *exchange_.quantizer;
  if (in_blocks(exchange_)) {
    key.seed += 0x9E3779B97F4A7C15u * static_cast<std::uint64_t>(piece.range.first + 1);  // elements count from 0
    const Tensor x = from_data(std::vector<float>(values, values + n), {n});
    for_tensors(quantize(x, q, {.key = key, .stats = {counts_on_ ? &kept_.counts : nullptr, nullptr}}),
                [&](const Tensor& t) {
                  std::memcpy(out, t.raw(), t.nbytes());
                  out += t.nbytes();
                });
    return;
  }
  const float scale = scale_of(piece);
  const bool exact = product_of(q.scaling) == ScaledProduct::exact;
  std::vector<double> scaled(values, values + n);
  for (double& v : scaled) v = exact ? v * scale : static_cast<float>(v) * scale;
  const Rounder rounder{q.format, q.rounding, q.overflow, key};
  const CastStats stats{counts_on_ ? &kept_.counts : nullptr, nullptr};
  if (q.format.bits() > 8) return rounder.encode(scaled.data(), out, n, piece.range.first, stats);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
  rounder.encode(scaled.data(), codes.data(), n, piece.range.first, stats);
  pack_codes(codes.data(), n, q.format.storage_bits(), reinterpret_cast<std::uint8_t*>(out));
}

void RankSum::decode_piece(const Piece& piece, const std::byte* in, float* values) const {
  const std::int64_t n = piece.range.size();
  if (exchange_.sign) {
    float mean = 0;
    std::memcpy(&mean, in, sizeof mean);
    const auto* signs = reinterpret_cast<const std::uint8_t*>(in + sizeof mean);
    for (std::int64_t i = 0; i < n; ++i) values[i] = (signs[i / 8] >> (i % 8) & 1) != 0 ? -mean : mean;
    return;
  }
  if (!exchange_.quantizer) {
    std::memcpy(values, in, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  const Quantizer& q = *exchange_.quantizer;
  if (in_blocks(exchange_)) {
    QuantizedTensor codes = codes_of(n);
    codes.global_scale = scalar(1).to(DType::f32);
    for_tensors(codes, [&](const Tensor& t) {
      std::memcpy(t.raw(), in, t.nbytes());
      in += t.nbytes();
    });
    const Tensor x = codes.dequantize();
    std::memcpy(values, x.raw(), static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  if (q.format.bits() > 8) {
    gradual::decode(q.format, in, values, n);
  } else {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
    unpack_codes(reinterpret_cast<const std::uint8_t*>(in), n, q.format.storage_bits(), codes.data());
    gradual::decode(q.format, codes.data(), values, n);
  }
  const float scale = scale_of(piece);
  for (std::int64_t i = 0; i < n && scale != 1; ++i) values[i] /= scale;
}

// --- algorithms ------------------------------------------------------------------------------------------------------

// What a rank has the sum of in the end.
RankSum::Pieces RankSum::owned(int rank) const {
  if (exchange_.algorithm == ExchangeAlgorithm::tree) return rank == 0 ? summed_ : Pieces{};
  return segment(exchange_.algorithm == ExchangeAlgorithm::ring ? (rank + 1) % ranks_ : rank);
}

// In a ring and a tree an owner's residual is of the sum, before the factor.
RankSum::Values* RankSum::lost_at(int rank, bool of_sums) {
  if (!exchange_.error_feedback) return nullptr;
  return &kept_.residuals.at(fmt::format("{}.{}", rank, of_sums && gathers_ ? "sums" : "gradient"));
}

// Rounds of hops, after which the owners have the sums.
std::vector<std::vector<RankSum::Hop>> RankSum::rounds() const {
  std::vector<std::vector<Hop>> out;
  if (exchange_.algorithm == ExchangeAlgorithm::ring) {
    for (int round = 0; round + 1 < ranks_; ++round) {
      out.emplace_back();
      for (int r = 0; r < ranks_; ++r)
        out.back().push_back({r, (r + 1) % ranks_, segment((r - round + ranks_) % ranks_)});
    }
  } else if (exchange_.algorithm == ExchangeAlgorithm::tree) {
    for (int step = 1; step < ranks_; step *= 2) {
      out.emplace_back();
      for (int r = step; r < ranks_; r += 2 * step) out.back().push_back({r, r - step, summed_});
    }
  } else {
    out.emplace_back();
    for (int j = 0; j < ranks_; ++j)
      for (int r = 0; r < ranks_; ++r)
        if (holds(r) || holds(j)) out[0].push_back({r, j, segment(j)});
  }
  return out;
}

// The owners send their sums to all.
RankSum::Values RankSum::share(Held& values, double factor, RandomKey key) {
  amp::Exchange back = exchange_;
  if (!exchange_.round_result) {
    back.quantizer.reset();
    back.sign = false;
  }
  const Scoped on_the_way_back(exchange_, std::move(back));
  std::vector<Bytes> codes(static_cast<std::size_t>(ranks_));
  std::vector<Message> sent, received;
  Values out(values[0].size());
  for (int r = 0; r < ranks_; ++r) {
    const Pieces pieces = owned(r);
    Bytes& own = codes[static_cast<std::size_t>(r)];
    if (holds(r)) {
      for_numbers(pieces, [&, &sums = of(values, r)](std::size_t at, std::size_t) {
        sums[at] = static_cast<float>(static_cast<double>(sums[at]) * factor);
      });
      own = encode(pieces, of(values, r), key, kMostShards + r, lost_at(r, true));
    } else {
      own.resize(bytes_of(pieces));
      received.push_back({r, own.data(), own.size()});
    }
    for (int p = 0; p < ranks_ && holds(r); ++p)
      if (p != r) {
        kept_.bytes += own.size();
        sent.push_back({p, own.data(), own.size()});
      }
  }
  if (communicator_.size() > 1) communicator_.transfer(sent, received);
  for (int r = 0; r < ranks_; ++r) put(owned(r), decode(owned(r), codes[static_cast<std::size_t>(r)]), out, false);
  return out;
}

RankSum::Values RankSum::sum(Held values, double factor, RandomKey key, double unit,
                             const std::vector<std::size_t>& parameters) {
  summed_.clear();
  std::int64_t numbers = 0;
  for (std::size_t k = 0; k < (parameters.empty() ? starts_.size() - 1 : parameters.size()); ++k) {
    const std::size_t p = parameters.empty() ? k : parameters[k];
    const Range range{starts_[p], starts_[p + 1]};
    if (range.size() > 0) summed_.push_back({range, p, numbers});  // a parameter may have no elements
    numbers += range.size();
  }
  const auto by = static_cast<float>(unit);
  // Adds what earlier roundings took. In the meantime a residual has what this sum's roundings take.
  const auto feed_back = [&](bool of_sums) {
    for (int r = static_cast<int>(held_.first); r < held_.last && exchange_.error_feedback; ++r) {
      Values& residual = *lost_at(r, of_sums);
      residual.resize(static_cast<std::size_t>(total_));
      for_numbers(of_sums ? owned(r) : summed_, [&, &to = of(values, r)](std::size_t at, std::size_t of_all) {
        to[at] += std::exchange(residual[of_all], 0) * by;
      });
    }
  };
  feed_back(false);
  agree_on_scales(values, !gathers_, 1);
  const Held contributions = gathers_ ? values : Held{};  // the scales of the sum follow from them
  for (const std::vector<Hop>& hops : rounds()) move(hops, values, key);
  if (gathers_ && exchange_.round_result) agree_on_scales(contributions, true, factor);
  if (gathers_) feed_back(true);
  Values out = share(values, factor, key);
  for (int r = static_cast<int>(held_.first); r < held_.last && exchange_.error_feedback; ++r) {
    for_numbers(owned(r), [&, &residual = *lost_at(r, true)](std::size_t, std::size_t i) {
      residual[i] = static_cast<float>(static_cast<double>(residual[i]) / factor) / (gathers_ ? by : 1);
    });
    for_numbers(summed_, [&, &residual = *lost_at(r, false)](std::size_t, std::size_t i) { residual[i] /= by; });
  }
  return out;
}

}  // namespace gradual::dist
