#include "observer.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "counts.h"

namespace gradual {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Installed {
  std::vector<Observer*> observers;
  double inside = 0;  // seconds spent in observed calls within the current one, observers included
};
Installed& installed() {
  thread_local Installed all;
  return all;
}

// Starts a call's own account of `inside`; its whole time then goes to the account of the call around it.
class Inside {
 public:
  explicit Inside(double& inside) : inside_(inside), outer_(std::exchange(inside, 0)), start_(Clock::now()) {}
  ~Inside() { inside_ = outer_ + seconds_since(start_); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  double& inside_;
  double outer_;
  Clock::time_point start_;
};

class Observe final : public Interceptor {
 public:
  Outputs call(const OpCall& call) override {
    Installed& all = installed();
    const std::vector<Observer*> observers = all.observers;  // an observer may go while the call runs
    CallRecord record;
    record.context = context();
    // What a user's function runs is observed and counted call by call.
    const bool custom = info(call.op).kind == OpKind::Custom;
    const bool counting =
        !custom && std::any_of(observers.begin(), observers.end(), [](Observer* o) { return o->wants_counts(); });
    const Inside inside(all.inside);
    tell(observers, [&](Observer& o) { o.before(call); });
    Outputs out;
    {
      const CountScope counts(counting ? &record.counts : cast_counts());
      const Clock::time_point start = Clock::now();
      out = next_below_observe(call);
      record.seconds = seconds_since(start) - all.inside;
    }
    if (CastCounts* outer = cast_counts(); outer && counting) *outer += record.counts;
    tell(observers, [&](Observer& o) { o.after(call, out, record); });
    return out;
  }

 private:
  template <class F> static void tell(const std::vector<Observer*>& observers, const F& f) {
    const StageScope mask(chain().observe, nullptr);
    for (Observer* o : observers) f(*o);
  }
};

Interceptor* observe_stage() {
  static Observe stage;
  return &stage;
}

}  // namespace

ObserverScope::ObserverScope(Observer& observer) : observer_(&observer) {
  installed().observers.push_back(&observer);
  chain().observe = observe_stage();
}

ObserverScope::~ObserverScope() {
  auto& observers = installed().observers;
  const auto last = std::find(observers.rbegin(), observers.rend(), observer_);
  if (last != observers.rend()) observers.erase(std::next(last).base());
  if (observers.empty()) chain().observe = nullptr;
}

}  // namespace gradual
