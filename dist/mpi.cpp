// MPI moves bytes from rank to rank: only point-to-point calls of MPI 3, so that Open MPI and MPICH serve alike.
#include "backends.h"

#ifdef GRADUAL_HAVE_MPI
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <optional>

#include "../core/support/throwf.h"

namespace gradual::dist {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30;  // bytes of one call, which counts in int

// Tags: of the messages of a program, and of the last one from each rank to each other.
constexpr int kMessage = 0;
constexpr int kFarewell = 1;

// Says to all that this rank sends no more, and waits until all have said so: a rank that still waits for a message of
// this one learns why none comes.
void say_farewell(int rank, int size) {
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    MPI_Irecv(nullptr, 0, MPI_BYTE, peer, kFarewell, MPI_COMM_WORLD, &requests.emplace_back(MPI_REQUEST_NULL));
    MPI_Isend(nullptr, 0, MPI_BYTE, peer, kFarewell, MPI_COMM_WORLD, &requests.emplace_back(MPI_REQUEST_NULL));
  }
  int all = 0;
  while (MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, MPI_STATUSES_IGNORE) == MPI_SUCCESS &&
         all == 0) {
    const timespec pause{0, 1000000};
    nanosleep(&pause, nullptr);
  }
}

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
    say_farewell(rank_, size_);
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
    std::vector<MPI_Status> statuses(requests.size());
    const auto done = [&] {
      int all = 0;
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &all, statuses.data());
      if (all == 0) look_for_farewell();
      return all != 0;
    };
    if (!poll(done)) throw_silent();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      int bytes = 0;
      MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
      if (bytes != expected[i])
        throwf("rank {} sent rank {} {} bytes, which expects {}: the ranks run other code or other data", peers[i],
               rank, bytes, expected[i]);
    }
    requests.clear();
    expected.clear();
  }

 private:
  // Error if a rank that has said farewell a while ago still owes a message. Rarely looks: most waits are short.
  void look_for_farewell() {
    using Clock = std::chrono::steady_clock;
    constexpr std::size_t kBetween = 64;
    if (++looks % kBetween != 0 || looks < 32 * kBetween) return;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      int came = 0;
      int ended = 0;
      MPI_Request_get_status(requests[i], &came, MPI_STATUS_IGNORE);
      if (came == 0) MPI_Iprobe(peers[i], kFarewell, MPI_COMM_WORLD, &ended, MPI_STATUS_IGNORE);
      if (ended == 0) continue;
      if (!farewell) farewell = Clock::now();  // the message may be under way still
      if (Clock::now() - *farewell > std::chrono::seconds(1))
        throwf("rank {} waits for rank {}, which has ended without error: the ranks have other options or data", rank,
               peers[i]);
      return;
    }
    farewell.reset();
  }

  // Names the first rank that is silent.
  void throw_silent() {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      int came = 0;
      MPI_Test(&requests[i], &came, MPI_STATUS_IGNORE);
      if (!came)
        throwf("rank {} waited {} s (GRADUAL_RANK_TIMEOUT) for rank {}, which is silent or gone", rank, timeout(),
               peers[i]);
    }
  }

 public:
  int rank;
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  std::vector<int> expected;  // bytes of the messages that are received, which are the first

 private:
  std::size_t looks = 0;
  std::optional<std::chrono::steady_clock::time_point> farewell;  // when one was seen first
};

std::unique_ptr<Communicator::Transfer> Mpi::start(std::span<const Message> sent, std::span<const Message> received) {
  auto out = std::make_unique<MpiTransfer>(rank_);
  for (const bool in : {true, false})
    for (const Message& m : in ? received : sent)
      for (std::size_t done = 0; done < m.bytes; done += kLargest) {
        const int n = static_cast<int>(std::min(kLargest, m.bytes - done));
        MPI_Request* const request = &out->requests.emplace_back(MPI_REQUEST_NULL);
        out->peers.push_back(m.peer);
        if (in) out->expected.push_back(n);
        if (in) MPI_Irecv(m.data + done, n, MPI_BYTE, m.peer, kMessage, MPI_COMM_WORLD, request);
        else MPI_Isend(m.data + done, n, MPI_BYTE, m.peer, kMessage, MPI_COMM_WORLD, request);
      }
  return out;
}

}  // namespace

std::unique_ptr<Communicator> mpi_world() { return std::make_unique<Mpi>(); }

}  // namespace gradual::dist

#else
std::unique_ptr<gradual::dist::Communicator> gradual::dist::mpi_world() { return nullptr; }
#endif
