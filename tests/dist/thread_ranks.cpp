#include "thread_ranks.h"

#include <gradual/core/support/throwf.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

namespace gradual::dist {
namespace {

struct Mailbox {
  std::mutex mutex;
  std::condition_variable news;
  using Pair = std::pair<int, int>;                        // sender and receiver
  std::map<std::pair<Pair, std::size_t>, Bytes> messages;  // under way, numbered by the pair
  std::map<Pair, std::size_t> sent, expected;              // how many so far
  std::exception_ptr failure;                              // the first rank's
  int failed = -1;
};

class ThreadRank : public Communicator {
 public:
  ThreadRank(Mailbox& box, int rank, int size) : Communicator(rank, size, "threads"), box_(box) {}
  std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received) override;
  void abort(int status) override { std::_Exit(status); }
  void receive(const Message& m, std::size_t number);

 private:
  Mailbox& box_;
};

struct ThreadTransfer : Communicator::Transfer {
  explicit ThreadTransfer(ThreadRank& to) : rank(to) {}
  void wait() override {
    for (const auto& [message, number] : missing) rank.receive(message, number);
    missing.clear();
  }
  ThreadRank& rank;
  std::vector<std::pair<Message, std::size_t>> missing;
};

std::unique_ptr<Communicator::Transfer> ThreadRank::start(std::span<const Message> sent,
                                                          std::span<const Message> received) {
  auto out = std::make_unique<ThreadTransfer>(*this);
  {
    const std::lock_guard lock(box_.mutex);
    for (const Message& m : sent) {
      const Mailbox::Pair pair{rank_, m.peer};
      box_.messages.emplace(std::pair(pair, box_.sent[pair]++), Bytes(m.data, m.data + m.bytes));
    }
    for (const Message& m : received) out->missing.emplace_back(m, box_.expected[{m.peer, rank_}]++);
  }
  box_.news.notify_all();
  return out;
}

void ThreadRank::receive(const Message& m, std::size_t number) {
  std::unique_lock lock(box_.mutex);
  const std::pair key(Mailbox::Pair{m.peer, rank_}, number);
  const auto ready = [&] { return box_.messages.contains(key) || box_.failed >= 0; };
  if (!box_.news.wait_for(lock, std::chrono::duration<double>(timeout()), ready))
    throwf("rank {} waited {} s (GRADUAL_RANK_TIMEOUT) for rank {}, which is silent", rank_, timeout(), m.peer);
  auto found = box_.messages.extract(key);
  if (found.empty()) throwf("rank {} waits for rank {}, but rank {} failed", rank_, m.peer, box_.failed);
  if (found.mapped().size() != m.bytes)
    throwf("rank {} sent rank {} {} bytes, which expects {}", m.peer, rank_, found.mapped().size(), m.bytes);
  std::ranges::copy(found.mapped(), m.data);
}

}  // namespace

void run_threads(int n, const std::function<void(Communicator&)>& f) {
  Mailbox box;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(n));
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&box, &f, r, n] {
      ThreadRank rank(box, r, n);
      try {
        f(rank);
      } catch (...) {
        {
          const std::lock_guard lock(box.mutex);
          if (box.failed < 0) {
            box.failed = r;
            box.failure = std::current_exception();
          }
        }
        box.news.notify_all();
      }
    });
  for (std::thread& t : threads) t.join();
  if (box.failure) std::rethrow_exception(box.failure);
}

}  // namespace gradual::dist
