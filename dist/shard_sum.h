// Sums over the shards of a batch, with the same bits for any number of ranks.
//
// A batch is cut into a fixed number of shards, and each shard's gradient is computed alone. The sum is a binary tree
// over the shards: neighbours 2i and 2i + 1 of a level make node i of the next. Where the number of shards is no power
// of two, a node without a neighbour rises as it is. Rank r holds consecutive shards and sums what is whole in its part
// of the tree; the rest is summed by the rank that owns the elements. The tree does not know the ranks.
//
//   shard     0   1   2   3   4   5   6   7
//              \ /     \ /     \ /     \ /
//               +       +       +       +        2 ranks send one number per element, 3 ranks up to two
//                \     /         \     /
//                   +               +
//                     \           /
//                           +
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "communicator.h"

namespace gradual::dist {

inline constexpr int kMostShards = 1024;

struct Range {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t size() const { return last - first; }
};
// Part k of n things in `parts` parts, whose sizes differ by one at most.
constexpr Range part_of(std::int64_t n, std::int64_t parts, std::int64_t k) {
  return {n * k / parts, n * (k + 1) / parts};
}

// The nodes of a growing tree, left to right. T: float or double.
template <class T> class TreeSum {
 public:
  struct Node {
    int level, index;
    std::vector<T> values;
  };
  // Nodes come in the order of their shards and have one length.
  void add(int level, int index, std::vector<T> values) {
    nodes_.push_back({level, index, std::move(values)});
    while (nodes_.size() > 1) {
      const Node& left = nodes_[nodes_.size() - 2];
      const Node& right = nodes_.back();
      if (left.level != right.level || left.index + 1 != right.index || left.index % 2 != 0) break;
      add_last();
    }
  }
  const std::vector<Node>& nodes() const { return nodes_; }
  std::vector<T> total() {  // empties the tree
    while (nodes_.size() > 1) add_last();
    return nodes_.empty() ? std::vector<T>() : std::move(std::exchange(nodes_, {})[0].values);
  }

 private:
  void add_last() {  // to the node before it, whose parent it becomes
    Node& left = nodes_[nodes_.size() - 2];
    for (std::size_t i = 0; i < left.values.size(); ++i) left.values[i] += nodes_.back().values[i];
    ++left.level;
    left.index /= 2;
    nodes_.pop_back();
  }
  std::vector<Node> nodes_;
};

// `own`: the tree of this rank's shards, part_of(shards, size, rank). Returns the sum over all shards on every rank.
// Each rank sends and receives about 2 n numbers, if the tree's nodes are whole.
template <class T> std::vector<T> sum_shards(Communicator& ranks, int shards, TreeSum<T> own);

}  // namespace gradual::dist
