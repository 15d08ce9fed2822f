// Communicators carry bytes between ranks: the processes of mpirun, NCCL's GPUs, or one process alone. They compute
// nothing: sums are in dist/shard_sum.h and dist/rank_sum.h, in a fixed order, so that every backend gives the same
// bits.
//
//   int main() {
//     return dist::run([](dist::Communicator& ranks) {
//       ranks.broadcast(data, bytes, 0);
//       return 0;
//     });
//   }                                                             // mpirun -n 4 program
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/support/error.h"
#include "../core/support/scoped.h"
#include "../core/tensor/device.h"

namespace gradual::dist {

using Bytes = std::vector<std::byte>;

// A message in this rank's memory, to or from `peer`.
struct Message {
  int peer = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class Communicator : Pinned {
 public:
  virtual ~Communicator() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string_view backend() const { return backend_; }  // "single", "mpi", "nccl"

  // Messages that are under way. The destructor waits too, and ends the program where that fails.
  class Transfer : Pinned {
   public:
    virtual ~Transfer() = default;
    virtual void wait() {}  // Error that names a rank that was silent for timeout() seconds
  };
  // Starts to send and to receive, without waiting. The n-th message that a sends to b is the n-th one that b
  // receives from a; both name the same size. The memory is needed until wait() returns.
  virtual std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received) = 0;
  void transfer(std::span<const Message> sent, std::span<const Message> received) { start(sent, received)->wait(); }
  // Ends all ranks with this status. Does not return.
  [[noreturn]] virtual void abort(int status) = 0;

  // Any thread may call it, one at a time. Collective calls: every rank makes the same ones in the same order. Forms
  // with start_ do not wait.
  using Started = std::unique_ptr<Transfer>;
  Started start_broadcast(void* data, std::size_t bytes, int root);
  void broadcast(void* data, std::size_t bytes, int root) { start_broadcast(data, bytes, root)->wait(); }
  // Rank r's `bytes` come to all + r * bytes on every rank.
  Started start_all_gather(const void* own, std::size_t n, void* all) { return start_blocks(own, 0, n, all); }
  void all_gather(const void* own, std::size_t bytes, void* all) { start_all_gather(own, bytes, all)->wait(); }
  // Block p of `from` goes to rank p; block p of `to` came from rank p. Blocks have n bytes.
  Started start_all_to_all(const void* from, std::size_t n, void* to) { return start_blocks(from, n, n, to); }
  void all_to_all(const void* from, std::size_t n, void* to) { start_all_to_all(from, n, to)->wait(); }
  std::vector<std::string> all_gather(const std::string& own);  // texts of any length
  // Sums in the order of the ranks, the same bits on all. reduce_scatter: of `values`, cut into size() equal blocks,
  // this rank's block of the sum.
  void all_reduce(std::span<float> values);
  std::vector<float> reduce_scatter(std::span<const float> values);
  bool any(bool own);  // true on all if true on one
  void barrier() { static_cast<void>(any(false)); }

 protected:
  Communicator(int rank, int size, std::string_view backend) : rank_(rank), size_(size), backend_(backend) {}
  int rank_, size_;

 private:
  Started start_blocks(const void* from, std::size_t step, std::size_t bytes, void* to);
  std::string_view backend_;
};

// What must be equal on all ranks, by name: {"recipe", ".."}.
using Facts = std::vector<std::pair<std::string, std::string>>;
// Error on every rank that names each fact in which ranks differ, with the ranks and their values: "the ranks differ in
// lr: rank 0 has '0.1', ranks 1 and 3 have '0.5'". One exchange, so that ranks with other facts find it out too.
void check_same(Communicator& ranks, const Facts& facts);
// A checksum of the program's file.
std::string program_checksum();

// Seconds that a rank waits for another one: GRADUAL_RANK_TIMEOUT, or 300.
double timeout();

// One process.
std::unique_ptr<Communicator> single();
// The ranks that mpirun or srun started, else single(). Once in a process. Error if a launcher started several ranks of
// a program that was built without MPI, or with another one.
std::unique_ptr<Communicator> world();
// NCCL's ranks, one GPU each, which meet over another communicator (MPI's). It must outlive this one. Error in a build
// without NCCL.
std::unique_ptr<Communicator> nccl(Communicator& over, Device device);
// Calls f(world()) and returns its result. If a rank throws, its message goes to stderr and all ranks end with status
// 1; an exception of single() leaves this function.
int run(const std::function<int(Communicator&)>& f);

}  // namespace gradual::dist
