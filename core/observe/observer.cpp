#include "observer.h"

#include <algorithm>
#include <chrono>

#include "../formats/cast_counts.h"
#include "update_event.h"

namespace gradual {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The device of a call: that of its first input, or the destination of to_device.
Device computed_on(const OpCall& call) {
  if (call.op == OpId::to_device && call.get<Device>().is_cuda()) return call.get<Device>();
  return device_of(call);
}

struct Installed {
  std::vector<Observer*> observers;
  double inside = 0;                    // seconds spent in observed calls within the current one, observers included
  const CustomAttrs* custom = nullptr;  // the running custom op
};
thread_local Installed here;

template <class F> void tell(const std::vector<Observer*>& observers, const F& f) {
  const StageScope mask(chain().observe, nullptr);
  for (Observer* o : observers) f(*o);
}

template <class F> void tell_update(const F& f) {
  if (!chain().observe) return;
  const StageScope exact(chain().results, nullptr);
  tell(std::vector(here.observers), f);
}

// What the call itself says about it.
void describe(const OpCall& call, CallRecord& record) {
  record.op = call.op;
  record.within = here.custom;
  record.node = call.node;
  if (call.op != OpId::custom) return;
  record.replaced = call.get<CustomAttrs>().replaces;
  if (record.replaced) record.op = record.replaced->op;
}

struct Observe final : Interceptor {
  Outputs call(const OpCall& call) override {
    const std::vector<Observer*> observers = here.observers;  // an observer may be removed during the call
    CallRecord record;
    record.context = context();
    // The ops inside a user's function are observed and counted one by one.
    const bool custom = op_info(call.op).kind == OpKind::Custom;
    describe(call, record);
    const bool counting = !custom && std::ranges::any_of(observers, &Observer::wants_counts);
    const Clock::time_point began = Clock::now();
    const double outer = std::exchange(here.inside, 0);  // 0 for this call; later its whole time is added to `outer`
    tell(observers, [&](Observer& o) { o.before(call, record); });
    Outputs out;
    {
      const Scoped inner(here.custom, custom ? &call.get<CustomAttrs>() : here.custom);
      const CountScope counts(counting ? &record.counts : cast_counts());
      const Scoped by_parameter(cast_counts_by_tensor(), counting ? &record.counts_by_parameter : nullptr);
      std::optional<device::Watch> watch;
      if (const Device device = computed_on(call); device.is_cuda() && !custom) watch.emplace(device);
      const Clock::time_point start = Clock::now();
      out = next_below_observe(call);
      record.seconds = seconds_since(start) - here.inside;
      if (watch) {
        device::Work work = watch->stop();
        record.seconds = work.seconds;
        record.kernels = std::move(work.kernels);
      }
    }
    if (CastCounts* around = cast_counts(); around && counting) *around += record.counts;
    tell(observers, [&](Observer& o) { o.after(call, out, record); });
    here.inside = outer + seconds_since(began);
    return out;
  }
};

}  // namespace

std::string_view called(const OpCall& call) {
  const bool named = call.op == OpId::custom && *call.get<CustomAttrs>().name;
  return named ? call.get<CustomAttrs>().name : to_string(call.op);
}

const CustomAttrs* running_custom_op() { return here.custom; }

void UpdateEvent::tell_before() const {
  tell_update([this](Observer& o) { o.before_update(*this); });
}
void UpdateEvent::tell_after() const {
  tell_update([this](Observer& o) { o.after_update(*this); });
}

ObserverScope::ObserverScope(Observer& observer) : observer_(&observer) {
  static Observe stage;
  here.observers.push_back(&observer);
  chain().observe = &stage;
}

const std::vector<Observer*>& ObserverScope::installed() { return here.observers; }

ObserverScope::~ObserverScope() {
  const auto last = std::find(here.observers.rbegin(), here.observers.rend(), observer_);
  if (last != here.observers.rend()) here.observers.erase(std::next(last).base());
  if (here.observers.empty()) chain().observe = nullptr;
}

}  // namespace gradual
