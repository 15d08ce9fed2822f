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
#include <string>
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
  // parameters: the gradients of these alone, in ascending order; empty: all. Parts have the bits of the whole.
  Values sum(std::vector<Values> contributions, double factor, RandomKey key, double unit = 1,
             const std::vector<std::size_t>& parameters = {});

  // What a sum leaves behind. Setting it to what it was before takes the sum back.
  struct Kept {
    // What error feedback keeps for each held rank, by name: "3.gradient", and "3.sums" of what the rank owns in a
    // gather. Empty at first.
    std::map<std::string, Values> residuals;
    CastCounts counts;        // of this process's roundings; sign: elements alone
    std::uint64_t bytes = 0;  // sent by the held ranks to other ranks, with all scales
  };
  Kept& kept() { return kept_; }
  void count(bool on) { counts_on_ = on; }

 private:
  // A part of a parameter's gradient: its place among all gradients, and among those of this sum.
  struct Piece {
    Range range;
    std::size_t parameter;
    std::int64_t at;
  };
  using Pieces = std::vector<Piece>;
  // What one rank sends to another.
  struct Hop {
    int from, to;
    Pieces pieces;
  };
  Pieces segment(std::int64_t j) const;  // what rank j owns, or (ring) what starts there
  bool holds(int rank) const { return rank >= held_.first && rank < held_.last; }
  std::size_t code_bytes(std::int64_t n) const;
  const QuantizedTensor& codes_of(std::int64_t n) const;
  std::size_t bytes_of(const Pieces& pieces) const;
  // lost: takes what rounding took, at the places among all gradients; or null.
  Bytes encode(const Pieces& pieces, const Values& values, RandomKey key, int stream, Values* lost);
  Values decode(const Pieces& pieces, const Bytes& bytes) const;  // the pieces' numbers alone
  float scale_of(const Piece& piece) const;
  void encode_piece(const Piece& piece, const float* values, RandomKey key, std::byte* out);
  void decode_piece(const Piece& piece, const std::byte* in, float* values) const;
  void agree_on_scales(const std::vector<Values>& contributions, bool of_sum, double factor);

  using Held = std::vector<Values>;  // of each held rank
  Values& of(Held& held, int rank) const { return held[static_cast<std::size_t>(rank - held_.first)]; }
  std::vector<std::vector<Hop>> rounds() const;
  void move(const std::vector<Hop>& hops, Held& values, RandomKey key);
  Values share(Held& values, double factor, RandomKey key);
  Pieces owned(int rank) const;
  Values* lost_at(int rank, bool of_sums);

  Communicator& communicator_;
  amp::Exchange exchange_;
  int ranks_;
  std::vector<std::int64_t> starts_;  // of the parameters, and the end
  std::int64_t total_;
  Range held_;
  bool gathers_ = exchange_.algorithm == ExchangeAlgorithm::gather;
  Pieces summed_;                                          // the parameters of this sum
  std::vector<float> scales_;                              // agreed, of each parameter
  mutable std::map<std::int64_t, QuantizedTensor> codes_;  // by their number
  bool counts_on_ = false;
  Kept kept_;
};

}  // namespace gradual::dist
