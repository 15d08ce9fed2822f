// Sums of gradients over ranks in low precision (amp/exchange.h): every message holds codes.
//
//   gather   rank r rounds segment j of its gradient and sends it to rank j, for all j; rank j sums what came, in f32,
//            over a fixed tree of ranks. Each number is rounded once.
//   ring     segment j starts at rank j; each rank adds its own numbers and rounds before it sends to the next one. A
//            number is rounded size() - 1 times.
//   tree     rank 1 sends to 0, 3 to 2, ..; then 2 to 0, ..: about log2(size()) roundings of a sum.
//
// Then the owner of a sum rounds it (round_result) and sends it to all. With error feedback each rank keeps what its
// own roundings took, once for each element, and adds it to its next gradient.
//
// A process may hold all ranks: then nothing is sent, and the bits are those of as many processes.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "../amp/exchange.h"
#include "shard_sum.h"

namespace gradual::dist {

class RankSum {
 public:
  using Values = std::vector<float>;
  // ranks: the size of the communicator, or any number where that is 1 (an emulation). sizes: of the parameters, whose
  // gradients follow each other.
  RankSum(Communicator& communicator, const amp::Exchange& exchange, int ranks, const std::vector<std::int64_t>& sizes);

  // The ranks that this process holds.
  Range held() const { return held_; }
  // contributions: of the held ranks in order, finite. Returns factor times the sum over all ranks, the same on all.
  // key: of stochastic rounding, the same on all ranks. unit: residuals are kept divided by it (a loss scale).
  Values sum(std::vector<Values> contributions, double factor, RandomKey key, double unit = 1);

  // What error feedback keeps, for each held rank: of its gradient and (gather) of the sums that it owns. Empty at
  // first.
  struct Residual {
    Values gradient, sums;
  };
  std::vector<Residual>& residuals() { return residuals_; }
  void count(bool on) { counts_on_ = on; }
  // Counts of this process's roundings since the last call. sign: elements alone.
  CastCounts take_counts() { return std::exchange(counts_, {}); }
  // Sent by the held ranks to other ranks, with all scales, since the last call.
  std::uint64_t take_bytes() { return std::exchange(bytes_sent_, 0); }

 private:
  struct Parcel {
    int from, to;
    Bytes bytes;
  };
  struct Piece {
    Range range;
    std::size_t parameter;
  };
  Range segment(std::int64_t j) const { return part_of(total_, ranks_, j); }
  bool holds(int rank) const { return rank >= held_.first && rank < held_.last; }
  std::vector<Piece> pieces(Range range) const;
  std::size_t code_bytes(std::int64_t n) const;
  const QuantizedTensor& codes_of(std::int64_t n) const;
  std::size_t bytes_of(Range range) const;
  Bytes encode(Range range, const float* values, RandomKey key, int stream, float* lost);
  void add_decoded(Range range, const Bytes& bytes, Values& to) const;
  void decode(Range range, const Bytes& bytes, float* values) const;
  float scale_of(const Piece& piece) const;
  void encode_piece(const Piece& piece, const float* values, RandomKey key, std::byte* out);
  void decode_piece(const Piece& piece, const std::byte* in, float* values) const;
  std::vector<Parcel> deliver(std::vector<Parcel> sent, const std::vector<Parcel>& expected);
  void agree_on_scales(const std::vector<Values>& contributions, bool of_sum, double factor);

  using Held = std::vector<Values>;  // of each held rank
  Values& of(Held& held, int rank) const { return held[static_cast<std::size_t>(rank - held_.first)]; }
  // Each leaves the sums of the segments that a held rank owns at their places in that rank's values.
  void gather(Held& values, RandomKey key, Held& lost);
  void ring(Held& values, RandomKey key, Held& lost);
  void tree(Held& values, RandomKey key, Held& lost);
  Values share(Held& values, double factor, RandomKey key, Held& lost);
  Range owned(int rank) const;
  float* lost_at(Held& lost, int rank, Range range) const;

  Communicator& communicator_;
  amp::Exchange exchange_;
  int ranks_;
  std::vector<std::int64_t> starts_;  // of the parameters, and the end
  std::int64_t total_;
  Range held_;
  std::vector<float> scales_;  // agreed, of each parameter
  std::vector<Residual> residuals_;
  mutable std::map<std::int64_t, QuantizedTensor> codes_;  // by their number
  bool counts_on_ = false;
  CastCounts counts_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace gradual::dist
