// NCCL moves bytes from GPU to GPU by sends and receives. Its own sums are not used.
#include "backends.h"

#ifdef GRADUAL_HAVE_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>

#include "../core/support/throwf.h"

namespace gradual::dist {
namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) throwf("NCCL: CUDA reports: {}", cudaGetErrorString(status));
}
void check(ncclResult_t status) {
  if (status != ncclSuccess && status != ncclInProgress) throwf("NCCL reports: {}", ncclGetErrorString(status));
}

class Nccl : public Communicator {
 public:
  Nccl(Communicator& over, Device device) : Communicator(over.rank(), over.size(), "nccl"), device_(device.index) {
    check(cudaSetDevice(device_));
    ncclUniqueId id;
    if (rank_ == 0) check(ncclGetUniqueId(&id));
    over.broadcast(&id, sizeof id, 0);
    check(ncclCommInitRank(&comm_, size_, id, rank_));
    check(cudaStreamCreate(&stream_));
  }
  ~Nccl() override {
    if (std::uncaught_exceptions() > 0) ncclCommAbort(comm_);
    else ncclCommDestroy(comm_);
    cudaStreamDestroy(stream_);
  }
  std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received) override;
  void abort(int status) override {
    ncclCommAbort(comm_);
    std::_Exit(status);
  }
  void wait() {
    const auto done = [this] {
      const cudaError_t state = cudaStreamQuery(stream_);
      if (state != cudaErrorNotReady) {
        check(state);
        return true;
      }
      ncclResult_t failure = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &failure));
      check(failure);
      return false;
    };
    if (!poll(done))
      throwf("rank {} waited {} s (GRADUAL_RANK_TIMEOUT) for NCCL: a rank is silent or gone", rank_, timeout());
  }

 private:
  int device_;
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

struct NcclTransfer : Communicator::Transfer {
  explicit NcclTransfer(Nccl& c) : communicator(c) {}
  ~NcclTransfer() override {
    if (staged) cudaFree(staged);  // waits
  }
  void wait() override { communicator.wait(); }
  Nccl& communicator;
  std::byte* staged = nullptr;
};

std::unique_ptr<Communicator::Transfer> Nccl::start(std::span<const Message> sent, std::span<const Message> received) {
  check(cudaSetDevice(device_));  // a device is each thread's own
  auto out = std::make_unique<NcclTransfer>(*this);
  std::size_t all = 0;
  for (const auto& messages : {sent, received})
    for (const Message& m : messages) all += m.bytes;
  if (all == 0) return out;
  void* memory = nullptr;
  check(cudaMalloc(&memory, all));
  out->staged = static_cast<std::byte*>(memory);
  std::byte* at = out->staged;
  for (const Message& m : sent) {
    check(cudaMemcpyAsync(at, m.data, m.bytes, cudaMemcpyDefault, stream_));
    at += m.bytes;
  }
  at = out->staged;
  check(ncclGroupStart());
  for (const Message& m : sent) {
    if (m.bytes > 0) check(ncclSend(at, m.bytes, ncclUint8, m.peer, comm_, stream_));
    at += m.bytes;
  }
  std::byte* const first_received = at;
  for (const Message& m : received) {
    if (m.bytes > 0) check(ncclRecv(at, m.bytes, ncclUint8, m.peer, comm_, stream_));
    at += m.bytes;
  }
  check(ncclGroupEnd());
  at = first_received;
  for (const Message& m : received) {
    check(cudaMemcpyAsync(m.data, at, m.bytes, cudaMemcpyDefault, stream_));
    at += m.bytes;
  }
  return out;
}

}  // namespace

std::unique_ptr<Communicator> nccl(Communicator& over, Device device) { return std::make_unique<Nccl>(over, device); }

}  // namespace gradual::dist

#else
std::unique_ptr<gradual::dist::Communicator> gradual::dist::nccl(Communicator&, Device) {
  throw_error("this program was built without NCCL, which needs CUDA and nccl.h");
}
#endif
