// MPI moves bytes from rank to rank: only point-to-point calls of MPI 3, so that Open MPI and MPICH serve alike.
#include "backends.h"

#ifdef GRADUAL_HAVE_MPI
#include <mpi.h>

#include <algorithm>
#include <cstdlib>

#include "../core/support/throwf.h"

namespace gradual::dist {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30;  // bytes of one call, which counts in int

struct Mpi : Communicator {
  Mpi() : Communicator(0, 1, "mpi") {
    int level = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) throw_error("MPI did not start");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~Mpi() override {
    // Finalize would wait for ranks that still expect messages.
    if (std::uncaught_exceptions() > 0) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
  }
  std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received) override;
  void abort(int status) override {
    MPI_Abort(MPI_COMM_WORLD, status);
    std::_Exit(status);
  }
};

class MpiTransfer : public Communicator::Transfer {
 public:
  explicit MpiTransfer(int rank) : rank_(rank) {}
  ~MpiTransfer() override {
    if (std::uncaught_exceptions() == 0) wait();
  }
  // f(pointer, count, peer, request) starts one call.
  template <class F> void add(const Message& m, F f) {
    for (std::size_t done = 0; done < m.bytes; done += kLargest) {
      requests_.push_back(MPI_REQUEST_NULL);
      peers_.push_back(m.peer);
      f(m.data + done, static_cast<int>(std::min(kLargest, m.bytes - done)), m.peer, &requests_.back());
    }
  }
  void wait() override {
    const auto done = [this] {
      int all = 0;
      const int n = static_cast<int>(requests_.size());
      MPI_Testall(n, requests_.data(), &all, MPI_STATUSES_IGNORE);
      return all != 0;
    };
    const bool all = poll(done);
    for (std::size_t i = 0; i < requests_.size() && !all; ++i) {  // names the first that is silent
      int came = 0;
      MPI_Test(&requests_[i], &came, MPI_STATUS_IGNORE);
      if (!came)
        throwf("rank {} waited {} s (GRADUAL_RANK_TIMEOUT) for rank {}, which is silent or gone", rank_, timeout(),
               peers_[i]);
    }
    requests_.clear();
  }

 private:
  int rank_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
};

std::unique_ptr<Communicator::Transfer> Mpi::start(std::span<const Message> sent, std::span<const Message> received) {
  auto out = std::make_unique<MpiTransfer>(rank_);
  for (const Message& m : received)
    out->add(m, [](std::byte* data, int n, int peer, MPI_Request* request) {
      MPI_Irecv(data, n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, request);
    });
  for (const Message& m : sent)
    out->add(m, [](const std::byte* data, int n, int peer, MPI_Request* request) {
      MPI_Isend(data, n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, request);
    });
  return out;
}

}  // namespace

std::unique_ptr<Communicator> mpi_world() { return std::make_unique<Mpi>(); }

}  // namespace gradual::dist

#else
namespace gradual::dist {
std::unique_ptr<Communicator> mpi_world() { return nullptr; }
}  // namespace gradual::dist
#endif
