#include "graph.h"

#include <exception>
#include <optional>
#include <utility>

#include "../../core/support/throwf.h"
#include "../../core/tensor/device_recording.h"
#include "index_check.h"
#include "random.h"
#include "recording.h"
#include "runtime.h"

namespace gradual {

namespace cuda {

Recording*& recording() {
  thread_local Recording* current = nullptr;
  return current;
}

DeviceKey device_key(RandomKey key) {
  if (!recording()) return {key};
  recording()->keyed = true;
  return {key, recording()->key_shift};
}

struct Graph::State {
  int device = current_device();
  std::shared_ptr<PrivatePool> pool = std::make_shared<PrivatePool>(device);
  RandomKey* key_shift = nullptr;  // in memory of the pool
  RandomKey first{};               // state of the generator at the recording
  std::uint64_t draws = 0;         // draws per step
  bool keyed = false;  // a kernel reads key_shift; draws from a copy of the generator need it without `draws`
  std::vector<std::function<void()>> before_replay{};
  std::vector<std::shared_ptr<const void>> kept{};  // those of the Recording
  std::optional<Event> replayed{};                  // set if something is kept
  cudaGraphExec_t run = nullptr;
};

Graph::Graph() : state_(std::make_unique<State>()) {}

Graph::~Graph() {
  State& s = *state_;
  // Kept objects must live until the last replay is done. Nothing can be waited for during a recording.
  if (Recording* const r = recording()) r->kept.insert(r->kept.end(), s.kept.begin(), s.kept.end());
  else if (s.replayed) {
    try {
      s.replayed->synchronize();
    } catch (const Error&) {  // the driver and its work are gone
    }
  }
  if (s.run) cudaGraphExecDestroy(s.run);
  if (s.key_shift) give_back(s.key_shift);
}

namespace {

// Records the thread's stream from construction to end(). Without end(), as after an error, nothing remains.
class Capture : Pinned {
 public:
  explicit Capture(Recording& r) : scope_(stream_.get()), now_(recording(), &r) {
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  }
  ~Capture() {
    if (open_) {
      cudaGraph_t graph = nullptr;
      if (cudaStreamEndCapture(stream_.get(), &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
      cudaGetLastError();
    }
  }
  cudaGraphExec_t end() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t run = nullptr;
    open_ = false;
    check(cudaStreamEndCapture(stream_.get(), &graph), "cudaStreamEndCapture");
    const cudaError_t status = cudaGraphInstantiate(&run, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "cudaGraphInstantiate");
    return run;
  }

 private:
  Stream stream_;
  StreamScope scope_;
  Scoped<Recording*> now_;
  bool open_ = true;
};

// The first replay draws the numbers of the recorded step again.
struct KeepGenerator : Pinned {
  RandomKey before = default_generator().state();
  ~KeepGenerator() { default_generator().set_state(before); }
};

}  // namespace

void Graph::capture(const std::function<void()>& step) {
  State& s = *state_;
  if (recording()) throw_error("cuda::Graph: capture within capture");
  if (s.run) throw_error("cuda::Graph: it has captured a step already; make another Graph");
  device::select(Device::cuda(s.device));
  // Waits first: an error of earlier work is not an error of the step, and the pool can take blocks that earlier work
  // freed (private_pool.cpp).
  check(cudaStreamSynchronize(current_stream()), "cudaStreamSynchronize");
  raise_index_fault();
  if (!s.key_shift) s.key_shift = static_cast<RandomKey*>(s.pool->allocate(sizeof(RandomKey), true));
  Recording r{.device = s.device, .pool = s.pool, .key_shift = s.key_shift};
  cudaGraphExec_t run = nullptr;
  const KeepGenerator keep;
  std::exception_ptr error;
  try {
    Capture capture(r);
    step();
    run = capture.end();
  } catch (...) { error = std::current_exception(); }
  for (const Recording::Freed& f : r.freed) device::free(f.block, f.bytes, Device::cuda(s.device));
  if (error) std::rethrow_exception(error);
  const RandomKey after = default_generator().state();
  if (after.seed != keep.before.seed || after.stream < keep.before.stream) {
    cudaGraphExecDestroy(run);
    throw_error("cuda::Graph: the step seeds the default generator; do that before capture()");
  }
  s.first = keep.before;
  s.draws = after.stream - keep.before.stream;
  s.keyed = r.keyed;
  s.before_replay = std::move(r.before_replay);
  s.kept = std::move(r.kept);
  s.run = run;
}

void Graph::replay() {
  State& s = *state_;
  if (!s.run) throw_error("cuda::Graph: replay() needs a step; capture one first");
  device::need_no_capture("a replay");
  device::select(Device::cuda(s.device));
  for (const auto& f : s.before_replay) f();
  Generator& g = default_generator();
  const RandomKey shift{g.seed() ^ s.first.seed, g.stream() - s.first.stream};
  if (s.keyed) device::upload(s.key_shift, Device::cuda(s.device), &shift, sizeof shift);
  check(cudaGraphLaunch(s.run, current_stream()), "cudaGraphLaunch");
  if (!s.kept.empty()) (s.replayed ? *s.replayed : s.replayed.emplace()).record();
  g.set_state({g.seed(), g.stream() + s.draws});
}

std::int64_t Graph::memory() const { return state_->pool->bytes(); }

}  // namespace cuda

namespace device {

bool capturing() { return cuda::recording() != nullptr; }

void need_no_capture(const std::string& what) {
  if (capturing())
    throwf(
        "cuda::Graph: {} cannot be recorded: the host would wait for work that is not done yet. Move it out of "
        "capture()",
        what);
}

void before_replay(std::function<void()> f) {
  if (!capturing()) throw_error("before_replay: nothing is being recorded");
  cuda::recording()->before_replay.push_back(std::move(f));
}

KeptMemory::KeptMemory() : before_(capturing() && std::exchange(cuda::recording()->keeps_memory, true)) {}
KeptMemory::~KeptMemory() {
  if (capturing()) cuda::recording()->keeps_memory = before_;
}

}  // namespace device
}  // namespace gradual
