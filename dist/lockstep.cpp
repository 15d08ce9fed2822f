#include "lockstep.h"

#include <algorithm>
#include <exception>
#include <list>
#include <semaphore>
#include <thread>
#include <utility>

#include "../amp/cast_stats.h"
#include "../autograd/autograd.h"
#include "../core/observe/observer.h"
#include "../core/support/throwf.h"

namespace gradual::dist {
namespace {

struct Runner {
  std::binary_semaphore go{0};
  std::binary_semaphore back{0};
  Tensor brought = {};
  bool ended = false;
  std::thread thread = {};
};

}  // namespace

void in_lockstep(int n, const std::function<void(int, const Meet&)>& f,
                 const std::function<Tensor(const std::vector<Tensor>&)>& join, const std::function<void(int)>& swap) {
  std::vector<Runner> runners(static_cast<std::size_t>(n));
  const ThreadState state = snapshot();
  const std::vector<Observer*> observers = ObserverScope::installed();
  const std::vector<autograd::GradientObserver*> of_gradients = autograd::GradientObserver::installed();
  amp::CastStatsTable* const casts = amp::cast_stats();
  Tensor joined;
  std::exception_ptr failure;
  const auto guarded = [&](const auto& part) {
    try {
      if (!failure) part();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  };
  const auto body = [&](int k) {
    Runner& me = runners[static_cast<std::size_t>(k)];
    const Meet meet = [&](const Tensor& own) {
      me.brought = own;
      me.back.release();
      me.go.acquire();
      if (failure) throw_error("another shard of the batch failed");
      return joined;
    };
    me.go.acquire();
    guarded([&] {
      const ThreadStateScope same(state);
      std::list<ObserverScope> scopes;
      for (Observer* o : observers) scopes.emplace_back(*o);
      const Scoped gradients(autograd::GradientObserver::installed(), of_gradients);
      const Scoped counts(amp::cast_stats(), casts);
      f(k, meet);
    });
    me.ended = true;
    me.back.release();
  };
  for (int k = 0; k < n; ++k) runners[static_cast<std::size_t>(k)].thread = std::thread(body, k);
  while (!std::ranges::all_of(runners, &Runner::ended)) {
    std::vector<Tensor> brought;
    for (int k = 0; k < n; ++k) {
      Runner& runner = runners[static_cast<std::size_t>(k)];
      if (runner.ended) continue;
      guarded([&] { swap(k); });
      runner.go.release();
      runner.back.acquire();
      guarded([&] { swap(k); });
      if (!runner.ended) brought.push_back(std::exchange(runner.brought, {}));
    }
    if (brought.empty()) break;
    guarded([&] {
      if (brought.size() != runners.size())
        throw_error("the shards of a batch ran batch norm unequally often; they cannot share its statistics");
      joined = join(brought);
    });
  }
  for (Runner& r : runners) r.thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace gradual::dist
