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
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS ||
        level < MPI_THREAD_SERIALIZED)
      throw_error("MPI did not start, or not with MPI_THREAD_SERIALIZED");
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

struct MpiTransfer : Communicator::Transfer {
  explicit MpiTransfer(int r) : rank(r) {}
  ~MpiTransfer() override {
    if (std::uncaught_exceptions() == 0) wait();
  }
  void wait() override {
    const auto done = [this] {
      int all = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE);
      return all != 0;
    };
    const bool all = poll(done);
    for (std::size_t i = 0; i < requests.size() && !all; ++i) {  // names the first that is silent
      int came = 0;
      MPI_Test(&requests[i], &came, MPI_STATUS_IGNORE);
      if (!came)
        throwf("rank {} waited {} s (GRADUAL_RANK_TIMEOUT) for rank {}, which is silent or gone", rank, timeout(),
               peers[i]);
    }
    requests.clear();
  }
  int rank;
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
};

std::unique_ptr<Communicator::Transfer> Mpi::start(std::span<const Message> sent, std::span<const Message> received) {
  auto out = std::make_unique<MpiTransfer>(rank_);
  for (const bool in : {true, false})
    for (const Message& m : in ? received : sent)
      for (std::size_t done = 0; done < m.bytes; done += kLargest) {
        const int n = static_cast<int>(std::min(kLargest, m.bytes - done));
        MPI_Request* const request = &out->requests.emplace_back(MPI_REQUEST_NULL);
        out->peers.push_back(m.peer);
        if (in) MPI_Irecv(m.data + done, n, MPI_BYTE, m.peer, 0, MPI_COMM_WORLD, request);
        else MPI_Isend(m.data + done, n, MPI_BYTE, m.peer, 0, MPI_COMM_WORLD, request);
      }
  return out;
}

}  // namespace

std::unique_ptr<Communicator> mpi_world() { return std::make_unique<Mpi>(); }

}  // namespace gradual::dist

#else
std::unique_ptr<gradual::dist::Communicator> gradual::dist::mpi_world() { return nullptr; }
#endif
