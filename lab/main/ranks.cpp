#include "ranks.h"

#include <fmt/format.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/threads.h>
#include <gradual/lab/share.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "terminal.h"

namespace gradual::lab {
namespace {

namespace fs = std::filesystem;

int local_ranks(const dist::Communicator& ranks) {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"})
    if (const char* value = std::getenv(name); value && std::atoi(value) > 0) return std::atoi(value);
  return ranks.size();
}

// The same program and arguments as a worker that ends with this process.
pid_t start_worker(char** argv, const std::string& out, int threads) {
  std::vector<std::string> words;
  bool named = false;  // --out
  for (char** a = argv; *a; ++a) {
    words.emplace_back(*a);
    named = named || words.back().starts_with("--out");
  }
  if (!named) words.insert(words.end(), {"--out", out});
  words.insert(words.end(), {"--worker", std::to_string(threads)});
  std::vector<char*> pointers;
  for (std::string& w : words) pointers.push_back(w.data());
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) throw_error("--jobs: the system starts no more processes");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    execv("/proc/self/exe", pointers.data());
    _exit(127);
  }
  return pid;
}

void run_jobs(const RankOptions& how, const std::string& out, char** argv) {
  std::vector<pid_t> workers;
  try {
    for (int k = 0; k < how.jobs; ++k) workers.push_back(start_worker(argv, out, num_threads()));
  } catch (...) {  // the folder's lock ends with this process, so no worker may go on
    for (const pid_t w : workers) kill(w, SIGKILL);
    for (const pid_t w : workers) waitpid(w, nullptr, 0);
    throw;
  }
  bool told = false;
  while (!workers.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      std::erase(workers, ended);
      if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && !stop_signal())
        say(stderr, "job {} ended with status {}\n", ended, WEXITSTATUS(status));
      if (WIFSIGNALED(status) && !stop_signal())
        say(stderr, "job {} was ended by signal {}; its run goes on from its last epoch\n", ended, WTERMSIG(status));
      continue;
    }
    if (stop_signal() && !std::exchange(told, true))
      for (const pid_t w : workers) kill(w, stop_signal());
    usleep(20000);
  }
}

// Another rank reads what it resumes from a copy, because rank 0 changes the folder meanwhile.
void resume_from_copy(SharedComparison& all, int rank) {
  const std::string out = std::exchange(all.out, all.copy.emplace(fmt::format("gradual-lab-rank{}", rank)).path());
  if (fs::exists(out)) fs::copy(out, all.out, fs::copy_options::recursive);
}

// Trains this rank's share. True if it is the one that writes the results, after the others have done theirs.
bool train_share(dist::Communicator& ranks, const SharedComparison& all) {
  ranks.barrier();  // the folder is there
  {
    const TakesPart here(all.out);
    ranks.barrier();
    train_shared(all.make, all.data, all.recipes, all.out, all.options);
  }
  if (ranks.rank() > 0) return false;
  await_shared(all.out);
  return true;
}

}  // namespace

void share_threads(const dist::Communicator& ranks, const RankOptions& how) {
  if (how.worker) return set_num_threads(how.worker);
  const int processes = std::max(how.jobs, ranks.size() > 1 ? local_ranks(ranks) : 1);
  if (how.threads || processes == 1) return;
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  set_num_threads(std::max(1, std::min(num_threads(), cores / processes)));
}

bool prepare(dist::Communicator& ranks, const RankOptions& how, SharedComparison& all, char** argv) {
  Options& o = all.options;
  if (how.parallel == "data" || o.ranks_emulated) set_deterministic(true);  // ranks have other numbers of threads
  if (how.worker) {
    train_shared(all.make, all.data, all.recipes, all.out, o);
    return false;
  }
  if (how.parallel == "data") {
    o.ranks = &ranks;
    if (ranks.size() == 1) return true;
    o.stop = [&ranks] { return ranks.any(stop_signal() != 0); };
    if (ranks.rank() > 0) {
      o.progress = {};
      o.note = {};
      o.started = {};
    }
    if (ranks.rank() > 0 && o.resume) resume_from_copy(all, ranks.rank());
    else if (ranks.rank() > 0) all.out.clear();
    ranks.barrier();
    return true;
  }
  if (ranks.size() == 1 && how.jobs == 1) return true;
  if (ranks.rank() == 0) {
    check(all.make, all.recipes, all.out, o);
    all.lock.emplace(all.out);
    begin_shared(all.out, o);
    if (o.started) o.started();
  }
  if (ranks.size() > 1) {
    if (!train_share(ranks, all)) return false;
  } else {
    run_jobs(how, all.out, argv);
    remove_locks(all.out);
  }
  // Runs that are trained already are not reported again.
  o.progress = [report = o.progress, training = -1](const Progress& p) mutable {
    if (!p.finished) training = p.run;
    if (p.run == training && report) report(p);
  };
  o.resume = true;
  o.started = {};
  o.note = {};
  return true;
}

}  // namespace gradual::lab
