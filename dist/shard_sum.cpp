#include "shard_sum.h"

#include <cstddef>

namespace gradual::dist {
namespace {

template <class T> Message message(int peer, std::vector<T>& values, Range range) {
  return {peer, reinterpret_cast<std::byte*>(values.data() + range.first),
          static_cast<std::size_t>(range.size()) * sizeof(T)};
}

// The nodes that a rank with these shards ends up with: level and index.
std::vector<std::pair<int, int>> nodes_of(Range shards) {
  TreeSum<float> tree;
  for (std::int64_t k = shards.first; k < shards.last; ++k) tree.add(0, static_cast<int>(k), {});
  std::vector<std::pair<int, int>> out;
  for (const auto& node : tree.nodes()) out.emplace_back(node.level, node.index);
  return out;
}

}  // namespace

template <class T> std::vector<T> sum_shards(Communicator& ranks, int shards, TreeSum<T> own) {
  if (ranks.size() == 1) return own.total();
  std::vector<typename TreeSum<T>::Node> nodes = own.nodes(), all;
  const auto n = static_cast<std::int64_t>(nodes.at(0).values.size());
  const Range mine = part_of(n, ranks.size(), ranks.rank());

  std::vector<Message> sent, received;
  for (int p = 0; p < ranks.size(); ++p) {
    for (auto& node : nodes) sent.push_back(message(p, node.values, part_of(n, ranks.size(), p)));
    for (const auto& [level, index] : nodes_of(part_of(shards, ranks.size(), p))) {
      all.push_back({level, index, std::vector<T>(static_cast<std::size_t>(mine.size()))});
      received.push_back(message(p, all.back().values, {0, mine.size()}));  // growth of `all` keeps this memory
    }
  }
  ranks.transfer(sent, received);

  TreeSum<T> tree;
  for (auto& node : all) tree.add(node.level, node.index, std::move(node.values));
  std::vector<T> part = tree.total();
  std::vector<T> sum(static_cast<std::size_t>(n));
  sent.clear();
  received.clear();
  for (int p = 0; p < ranks.size(); ++p) {
    sent.push_back(message(p, part, {0, mine.size()}));
    received.push_back(message(p, sum, part_of(n, ranks.size(), p)));
  }
  ranks.transfer(sent, received);
  return sum;
}

template std::vector<float> sum_shards(Communicator&, int, TreeSum<float>);
template std::vector<double> sum_shards(Communicator&, int, TreeSum<double>);

}  // namespace gradual::dist
