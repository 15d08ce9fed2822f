#include "rank_sum.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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
  residuals_.resize(static_cast<std::size_t>(held_.size()));
}

// The range's parts by parameter.
std::vector<RankSum::Piece> RankSum::pieces(Range range) const {
  std::vector<Piece> out;
  auto next = std::upper_bound(starts_.begin(), starts_.end(), range.first);
  for (std::int64_t at = range.first; at < range.last; ++next) {
    const std::int64_t end = std::min(*next, range.last);
    if (end > at) out.push_back({{at, end}, static_cast<std::size_t>(next - starts_.begin()) - 1});
    at = end;
  }
  return out;
}

std::size_t RankSum::bytes_of(Range range) const {
  std::size_t sum = 0;
  for (const Piece& p : pieces(range)) sum += code_bytes(p.range.size());
  return sum;
}

Bytes RankSum::encode(Range range, const float* values, RandomKey key, int stream, float* lost) {
  Bytes out(bytes_of(range));
  // streams of the seed that no other code uses (dist/data_parallel.cpp)
  key.stream = (std::uint64_t{1} << 60) + key.stream * 2 * kMostShards + static_cast<std::uint64_t>(stream);
  std::byte* to = out.data();
  for (const Piece& p : pieces(range)) {
    encode_piece(p, values + (p.range.first - range.first), key, to);
    to += code_bytes(p.range.size());
  }
  if (!lost) return out;
  std::vector<float> rounded(static_cast<std::size_t>(range.size()));
  decode(range, out, rounded.data());
  for (std::size_t i = 0; i < rounded.size(); ++i) lost[i] = values[i] - rounded[i];
  return out;
}

void RankSum::decode(Range range, const Bytes& bytes, float* values) const {
  const std::byte* from = bytes.data();
  for (const Piece& p : pieces(range)) {
    decode_piece(p, from, values + (p.range.first - range.first));
    from += code_bytes(p.range.size());
  }
}

void RankSum::add_decoded(Range range, const Bytes& bytes, Values& to) const {
  Values part(static_cast<std::size_t>(range.size()));
  decode(range, bytes, part.data());
  for (std::size_t i = 0; i < part.size(); ++i) to[static_cast<std::size_t>(range.first) + i] += part[i];
}

// Sends what other processes expect and returns what came, in the order of `expected`, whose bytes have their sizes.
std::vector<RankSum::Parcel> RankSum::deliver(std::vector<Parcel> sent, const std::vector<Parcel>& expected) {
  for (const Parcel& p : sent)
    if (p.from != p.to) bytes_sent_ += p.bytes.size();
  std::vector<Parcel> out;
  if (communicator_.size() == 1) {
    const auto before = [](const Parcel& a, const Parcel& b) {
      return std::pair(a.to, a.from) < std::pair(b.to, b.from);
    };
    std::ranges::sort(sent, before);
    for (const Parcel& e : expected) out.push_back(std::move(*std::ranges::lower_bound(sent, e, before)));
    return out;
  }
  out = expected;
  std::vector<Message> to, from;
  for (Parcel& p : sent) to.push_back({p.to, p.bytes.data(), p.bytes.size()});
  for (Parcel& p : out) from.push_back({p.from, p.bytes.data(), p.bytes.size()});
  communicator_.transfer(to, from);
  return out;
}

// One power of two for each parameter, so that no contribution, or no sum of them, is beyond the largest number.
void RankSum::agree_on_scales(const std::vector<Values>& contributions, bool of_sum, double factor) {
  if (!exchange_.quantizer || exchange_.quantizer->scaling.kind != ScalingKind::tensor) return;
  const std::size_t n = starts_.size() - 1;
  std::vector<float> own, all(n * static_cast<std::size_t>(ranks_));
  for (const Values& v : contributions)
    for (std::size_t p = 0; p < n; ++p) {
      float& most = own.emplace_back(0.0f);
      for (std::int64_t i = starts_[p]; i < starts_[p + 1]; ++i)
        most = std::max(most, std::fabs(v[static_cast<std::size_t>(i)]));
    }
  communicator_.all_gather(own.data(), own.size() * sizeof(float), all.data());
  bytes_sent_ += own.size() * sizeof(float) * static_cast<std::size_t>(ranks_ - 1);
  const Quantizer& q = *exchange_.quantizer;
  scales_.assign(n, 1);
  for (std::size_t p = 0; p < n; ++p) {
    double bound = 0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks_); ++r) {
      const double amax = static_cast<double>(all[r * n + p]);
      bound = of_sum ? bound + amax : std::max(bound, amax);
    }
    if (of_sum) bound *= factor;
    if (!(bound > 0)) continue;
    const double exponent = std::floor(std::log2(q.format.max() / bound) - q.scaling.margin);
    scales_[p] = static_cast<float>(std::ldexp(1.0, static_cast<int>(std::clamp(exponent, -126.0, 126.0))));
  }
}

// --- codes -----------------------------------------------------------------------------------------------------------

namespace {

bool in_blocks(const amp::Exchange& e) { return e.quantizer && !per_tensor(e.quantizer->scaling.kind); }

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
  return s.kind == ScalingKind::tensor  ? scales_[piece.parameter]
         : s.kind == ScalingKind::fixed ? static_cast<float>(s.value)
                                        : 1;
}

void RankSum::encode_piece(const Piece& piece, const float* values, RandomKey key, std::byte* out) {
  const std::int64_t n = piece.range.size();
  if (exchange_.sign) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(std::fabs(values[i]));
    const auto mean = static_cast<float>(sum / static_cast<double>(n));
    std::memcpy(out, &mean, sizeof mean);
    std::memset(out + sizeof mean, 0, static_cast<std::size_t>((n + 7) / 8));
    for (std::int64_t i = 0; i < n; ++i)
      if (std::signbit(values[i])) out[sizeof mean + static_cast<std::size_t>(i / 8)] |= std::byte{1} << (i % 8);
    counts_.elements += static_cast<std::uint64_t>(n);
    return;
  }
  if (!exchange_.quantizer) return void(std::memcpy(out, values, static_cast<std::size_t>(n) * sizeof(float)));
  const Quantizer& q = *exchange_.quantizer;
  if (in_blocks(exchange_)) {
    key.seed += 0x9E3779B97F4A7C15u * static_cast<std::uint64_t>(piece.range.first + 1);  // elements count from 0
    const Tensor x = from_data(std::vector<float>(values, values + n), {n});
    for_tensors(quantize(x, q, {.key = key, .stats = {counts_on_ ? &counts_ : nullptr, nullptr}}),
                [&](const Tensor& t) {
                  std::memcpy(out, t.raw(), t.nbytes());
                  out += t.nbytes();
                });
    return;
  }
  std::vector<float> scaled(values, values + n);
  const float scale = scale_of(piece);
  if (scale != 1)
    for (float& v : scaled) v *= scale;
  const Rounder rounder{q.format, q.rounding, q.overflow, key};
  const CastStats stats{counts_on_ ? &counts_ : nullptr, nullptr};
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
    for (std::int64_t i = 0; i < n; ++i) {
      const bool negative =
          (in[sizeof mean + static_cast<std::size_t>(i / 8)] >> (i % 8) & std::byte{1}) != std::byte{0};
      values[i] = negative ? -mean : mean;
    }
    return;
  }
  if (!exchange_.quantizer) return void(std::memcpy(values, in, static_cast<std::size_t>(n) * sizeof(float)));
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

// The elements whose sum a rank has in the end.
Range RankSum::owned(int rank) const {
  if (exchange_.algorithm == ExchangeAlgorithm::tree) return rank == 0 ? Range{0, total_} : Range{};
  return segment(exchange_.algorithm == ExchangeAlgorithm::ring ? (rank + 1) % ranks_ : rank);
}

float* RankSum::lost_at(Held& lost, int rank, Range range) const {
  if (!exchange_.error_feedback) return nullptr;
  return of(lost, rank).data() + range.first;
}

void RankSum::gather(Held& values, RandomKey key, Held& lost) {
  std::vector<Parcel> sent, expected;
  for (int r = static_cast<int>(held_.first); r < held_.last; ++r)
    for (int j = 0; j < ranks_; ++j) {
      const float* from = of(values, r).data() + segment(j).first;
      sent.push_back({r, j, encode(segment(j), from, key, r, lost_at(lost, r, segment(j)))});
      expected.push_back({j, r, Bytes(bytes_of(segment(r)))});
    }
  const std::vector<Parcel> came = deliver(std::move(sent), expected);
  for (std::size_t k = 0; k < came.size();) {
    const int r = came[k].to;
    TreeSum<float> tree;
    for (int p = 0; p < ranks_; ++p, ++k) {
      Values part(static_cast<std::size_t>(segment(r).size()));
      decode(segment(r), came[k].bytes, part.data());
      tree.add(0, p, std::move(part));
    }
    std::ranges::copy(tree.total(), of(values, r).begin() + segment(r).first);
  }
}

void RankSum::ring(Held& values, RandomKey key, Held& lost) {
  for (int hop = 0; hop + 1 < ranks_; ++hop) {
    std::vector<Parcel> sent, expected;
    for (int r = static_cast<int>(held_.first); r < held_.last; ++r) {
      const Range out = segment((r - hop + ranks_) % ranks_), in = segment((r - 1 - hop + 2 * ranks_) % ranks_);
      const float* from = of(values, r).data() + out.first;
      sent.push_back({r, (r + 1) % ranks_, encode(out, from, key, r, lost_at(lost, r, out))});
      expected.push_back({(r - 1 + ranks_) % ranks_, r, Bytes(bytes_of(in))});
    }
    for (const Parcel& p : deliver(std::move(sent), expected)) {
      const Range in = segment((p.from - hop + ranks_) % ranks_);
      add_decoded(in, p.bytes, of(values, p.to));
    }
  }
}

void RankSum::tree(Held& values, RandomKey key, Held& lost) {
  const Range all{0, total_};
  for (int step = 1; step < ranks_; step *= 2) {
    std::vector<Parcel> sent, expected;
    for (int r = step; r < ranks_; r += 2 * step) {
      if (holds(r)) sent.push_back({r, r - step, encode(all, of(values, r).data(), key, r, lost_at(lost, r, all))});
      if (holds(r - step)) expected.push_back({r, r - step, Bytes(bytes_of(all))});
    }
    for (const Parcel& p : deliver(std::move(sent), expected)) add_decoded(all, p.bytes, of(values, p.to));
  }
}

// The owners send their sums to all.
RankSum::Values RankSum::share(Held& values, double factor, RandomKey key, Held& lost) {
  amp::Exchange back = exchange_;
  if (!exchange_.round_result) back.quantizer.reset(), back.sign = false;
  const Scoped on_the_way_back(exchange_, std::move(back));
  std::vector<Bytes> codes(static_cast<std::size_t>(ranks_));
  std::vector<Message> sent, received;
  for (int r = 0; r < ranks_; ++r) {
    const Range range = owned(r);
    Bytes& own = codes[static_cast<std::size_t>(r)];
    if (!holds(r)) {
      own.resize(bytes_of(range));
      received.push_back({r, own.data(), own.size()});
      continue;
    }
    float* sums = of(values, r).data() + range.first;
    for (std::int64_t i = 0; i < range.size(); ++i) sums[i] = static_cast<float>(static_cast<double>(sums[i]) * factor);
    own = encode(range, sums, key, kMostShards + r, lost_at(lost, r, range));
    for (int p = 0; p < ranks_; ++p)
      if (p != r) bytes_sent_ += own.size(), sent.push_back({p, own.data(), own.size()});
  }
  if (communicator_.size() > 1) communicator_.transfer(sent, received);
  Values out(static_cast<std::size_t>(total_));
  for (int r = 0; r < ranks_; ++r) decode(owned(r), codes[static_cast<std::size_t>(r)], out.data() + owned(r).first);
  return out;
}

RankSum::Values RankSum::sum(std::vector<Values> values, double factor, RandomKey key, double unit) {
  const bool feedback = exchange_.error_feedback, gathers = exchange_.algorithm == ExchangeAlgorithm::gather;
  const auto n = static_cast<std::size_t>(total_);
  const auto by = static_cast<float>(unit);
  Held lost(values.size()), lost_sums(values.size());
  for (std::size_t k = 0; k < values.size() && feedback; ++k) {
    lost[k].resize(n), lost_sums[k].resize(n);
    residuals_[k].gradient.resize(n), residuals_[k].sums.resize(gathers ? n : 0);
    for (std::size_t i = 0; i < n; ++i) values[k][i] += residuals_[k].gradient[i] * by;
  }
  const bool of_sum = !gathers;
  agree_on_scales(values, of_sum, 1);
  const Held contributions = gathers ? values : Held{};  // the scales of the sum follow from them
  constexpr decltype(&RankSum::gather) kAlgorithms[] = {&RankSum::gather, &RankSum::ring, &RankSum::tree};
  (this->*kAlgorithms[static_cast<int>(exchange_.algorithm)])(values, key, lost);
  if (gathers && exchange_.round_result) agree_on_scales(contributions, true, factor);
  // In a ring and a tree an owner's residual is of the sum, before the factor.
  for (std::size_t k = 0; k < values.size() && feedback && gathers; ++k) {
    const Range own = owned(static_cast<int>(held_.first) + static_cast<int>(k));
    for (auto i = static_cast<std::size_t>(own.first); i < static_cast<std::size_t>(own.last); ++i)
      values[k][i] += residuals_[k].sums[i] * by;
  }
  Values out = share(values, factor, key, gathers ? lost_sums : lost);
  for (std::size_t k = 0; k < values.size() && feedback; ++k) {
    const Range own = owned(static_cast<int>(held_.first) + static_cast<int>(k));
    Values& of_sums = gathers ? lost_sums[k] : lost[k];
    for (auto i = static_cast<std::size_t>(own.first); i < static_cast<std::size_t>(own.last); ++i)
      of_sums[i] = static_cast<float>(static_cast<double>(of_sums[i]) / factor);
    for (std::size_t i = 0; i < n; ++i) {
      residuals_[k].gradient[i] = lost[k][i] / by;
      if (gathers) residuals_[k].sums[i] = lost_sums[k][i] / by;
    }
  }
  return out;
}

}  // namespace gradual::dist
