#include "shard_sum.h"

#include <cstddef>

namespace gradual::dist {
namespace {

template <class T> void add_to(std::vector<T>& sum, const std::vector<T>& other) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
}

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

template <class T> void TreeSum<T>::add(int level, int index, std::vector<T> values) {
  nodes_.push_back({level, index, std::move(values)});
  while (nodes_.size() > 1) {
    Node& right = nodes_.back();
    Node& left = nodes_[nodes_.size() - 2];
    if (left.level != right.level || left.index + 1 != right.index || left.index % 2 != 0) break;
    add_to(left.values, right.values);
    ++left.level;
    left.index /= 2;
    nodes_.pop_back();
  }
}

template <class T> std::vector<T> TreeSum<T>::total() {
  while (nodes_.size() > 1) {
    add_to(nodes_[nodes_.size() - 2].values, nodes_.back().values);
    nodes_.pop_back();
  }
  std::vector<T> out;
  if (!nodes_.empty()) out = std::move(nodes_[0].values);
  nodes_.clear();
  return out;
}

template <class T> std::vector<T> sum_shards(Communicator& ranks, int shards, TreeSum<T> own) {
  if (ranks.size() == 1) return own.total();
  std::vector<typename TreeSum<T>::Node> nodes = own.nodes();
  const auto n = static_cast<std::int64_t>(nodes.at(0).values.size());
  const Range mine = part_of(n, ranks.size(), ranks.rank());

  std::vector<Message> sent, received;
  std::vector<typename TreeSum<T>::Node> all;
  for (int p = 0; p < ranks.size(); ++p)
    for (const auto& [level, index] : nodes_of(part_of(shards, ranks.size(), p)))
      all.push_back({level, index, std::vector<T>(static_cast<std::size_t>(mine.size()))});
  std::size_t next = 0;
  for (int p = 0; p < ranks.size(); ++p) {
    for (auto& node : nodes) sent.push_back(message(p, node.values, part_of(n, ranks.size(), p)));
    for (std::size_t k = nodes_of(part_of(shards, ranks.size(), p)).size(); k > 0; --k, ++next)
      received.push_back(message(p, all[next].values, {0, mine.size()}));
  }
  ranks.transfer(sent, received);

  TreeSum<T> tree;
  for (auto& node : all) tree.add(node.level, node.index, std::move(node.values));
  std::vector<T> part = tree.total(), sum(static_cast<std::size_t>(n));
  sent.clear(), received.clear();
  for (int p = 0; p < ranks.size(); ++p) {
    sent.push_back(message(p, part, {0, mine.size()}));
    received.push_back(message(p, sum, part_of(n, ranks.size(), p)));
  }
  ranks.transfer(sent, received);
  return sum;
}

template class TreeSum<float>;
template class TreeSum<double>;
template std::vector<float> sum_shards(Communicator&, int, TreeSum<float>);
template std::vector<double> sum_shards(Communicator&, int, TreeSum<double>);

}  // namespace gradual::dist
