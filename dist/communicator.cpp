#include "communicator.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "../core/files/input_file.h"
#include "../core/support/throwf.h"
#include "backends.h"

namespace gradual::dist {
namespace {

std::byte* at(const void* data, std::size_t offset) {  // what is sent is only read
  return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + offset;
}

class Single : public Communicator {
 public:
  Single() : Communicator(0, 1, "single") {}
  std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received) override {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (sent[i].bytes != received[i].bytes)
        throwf("a rank sends itself {} bytes and expects {}", sent[i].bytes, received[i].bytes);
      if (sent[i].bytes > 0) std::memmove(received[i].data, sent[i].data, sent[i].bytes);
    }
    return std::make_unique<Transfer>();
  }
  void abort(int status) override { std::exit(status); }
};

}  // namespace

Communicator::Started Communicator::start_broadcast(void* data, std::size_t bytes, int root) {
  std::vector<Message> sent, received;
  if (rank() != root) received.push_back({root, at(data, 0), bytes});
  for (int p = 0; p < size() && rank() == root; ++p)
    if (p != root) sent.push_back({p, at(data, 0), bytes});
  return start(sent, received);
}

// What goes to rank p begins at p * step; what came from it, at p * bytes.
Communicator::Started Communicator::start_blocks(const void* from, std::size_t step, std::size_t bytes, void* to) {
  std::vector<Message> sent, received;
  for (int p = 0; p < size(); ++p) {
    sent.push_back({p, at(from, static_cast<std::size_t>(p) * step), bytes});
    received.push_back({p, at(to, static_cast<std::size_t>(p) * bytes), bytes});
  }
  return start(sent, received);
}

std::vector<std::string> Communicator::all_gather(const std::string& own) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t length = own.size();
  std::vector<std::size_t> lengths(ranks);
  all_gather(&length, sizeof length, lengths.data());
  const std::size_t longest = std::ranges::max(lengths);
  std::string padded = own;
  std::string all(longest * ranks, '\0');
  padded.resize(longest);
  all_gather(padded.data(), longest, all.data());
  std::vector<std::string> texts;
  for (std::size_t p = 0; p < ranks; ++p) texts.push_back(all.substr(p * longest, lengths[p]));
  return texts;
}

std::vector<float> Communicator::reduce_scatter(std::span<const float> values) {
  const auto ranks = static_cast<std::size_t>(size());
  const auto n = values.size() / ranks;
  if (values.size() % ranks != 0)
    throwf("reduce_scatter: {} numbers do not part into equal blocks for {} ranks", values.size(), ranks);
  std::vector<float> blocks(values.size());
  all_to_all(values.data(), n * sizeof(float), blocks.data());
  for (std::size_t i = n; i < blocks.size(); ++i) blocks[i % n] += blocks[i];
  blocks.resize(n);
  return blocks;
}

void Communicator::all_reduce(std::span<float> values) {
  std::vector<float> padded(values.begin(), values.end());
  while (padded.size() % static_cast<std::size_t>(size()) != 0) padded.push_back(0);
  const std::vector<float> own = reduce_scatter(padded);
  all_gather(own.data(), own.size() * sizeof(float), padded.data());
  std::copy_n(padded.begin(), values.size(), values.begin());
}

bool Communicator::any(bool own) {
  std::vector<char> all(static_cast<std::size_t>(size()));
  const char mine = own ? 1 : 0;
  all_gather(&mine, 1, all.data());
  return std::ranges::any_of(all, [](char c) { return c != 0; });
}

namespace {

// Each text behind its length: "6 recipe4 fp32".
std::string packed(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts)
    for (const std::string& part : {name, value}) text += fmt::format("{} {}", part.size(), part);
  return text;
}

Facts unpacked(const std::string& text) {
  std::size_t at = 0;
  const auto next = [&] {
    const std::size_t space = text.find(' ', at);
    const std::size_t length = std::stoul(text.substr(at, space - at));
    at = space + 1 + length;
    return text.substr(space + 1, length);
  };
  Facts facts;
  while (at < text.size()) {
    const std::string name = next();
    facts.emplace_back(name, next());
  }
  return facts;
}

// Each white space, such as the ends of lines of JSON, as one blank.
std::string in_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\n';
    if (!blank) line += c;
    else if (!line.ends_with(' ')) line += ' ';
  }
  return line;
}

// Long values from a little before their first difference.
std::string excerpt(const std::string& value, std::size_t difference) {
  constexpr std::size_t kLong = 160;
  constexpr std::size_t kBefore = 40;
  constexpr std::size_t kShown = 100;
  if (value.size() <= kLong) return value;
  const std::size_t from = difference < kBefore ? 0 : difference - kBefore;
  const std::string middle = value.substr(std::min(from, value.size()), kShown);
  return (from > 0 ? ".." : "") + in_one_line(middle) + (from + kShown < value.size() ? ".." : "");
}

std::string list_of(const std::vector<std::size_t>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {} has", ranks[0]);
  const std::vector<std::size_t> but_last(ranks.begin(), ranks.end() - 1);
  return fmt::format("ranks {} and {} have", fmt::join(but_last, ", "), ranks.back());
}

// "rank 0 has '0.1', ranks 1 and 3 have '0.5'"; empty if all are equal.
std::string difference_of(const std::vector<std::string>& values) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> by_value;  // in the order of the first rank
  std::size_t same = values[0].size();                                     // characters at the begin of all
  for (std::size_t r = 0; r < values.size(); ++r) {
    const auto known = std::ranges::find(by_value, values[r], &decltype(by_value)::value_type::first);
    if (known != by_value.end()) known->second.push_back(r);
    else by_value.push_back({values[r], {r}});
    const auto [other, end] = std::ranges::mismatch(values[r], values[0]);
    same = std::min(same, static_cast<std::size_t>(other - values[r].begin()));
  }
  if (by_value.size() == 1) return "";
  std::string text;
  for (const auto& [value, ranks] : by_value)
    text += fmt::format("{}{} '{}'", text.empty() ? "" : ", ", list_of(ranks), excerpt(value, same));
  return text;
}

}  // namespace

void check_same(Communicator& ranks, const Facts& facts) {
  std::vector<Facts> all;
  for (const std::string& text : ranks.all_gather(packed(facts))) all.push_back(unpacked(text));
  std::vector<std::string> names;
  for (const Facts& of_rank : all)
    for (const auto& [name, value] : of_rank)
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  std::string differences;
  for (const std::string& name : names) {
    std::vector<std::string> values;
    for (const Facts& of_rank : all) {
      const auto found = std::ranges::find(of_rank, name, &Facts::value_type::first);
      values.push_back(found == of_rank.end() ? "nothing" : found->second);
    }
    if (const std::string text = difference_of(values); !text.empty())
      differences += fmt::format("{}{}: {}", differences.empty() ? "" : "; in ", name, text);
  }
  if (!differences.empty()) throw_error("the ranks differ in " + differences);
}

std::string program_checksum() {
  const std::string file = read_file("/proc/self/exe");
  return fmt::format("{:08x}", crc32_z(0, reinterpret_cast<const Bytef*>(file.data()), file.size()));
}

double timeout() {
  const char* text = std::getenv("GRADUAL_RANK_TIMEOUT");
  if (!text) return 300;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end || !(seconds > 0))
    throwf("GRADUAL_RANK_TIMEOUT is '{}'; it is a number of seconds above 0", text);
  return seconds;
}

bool poll(const std::function<bool()>& done) {
  using Clock = std::chrono::steady_clock;
  const auto most = Clock::now() + std::chrono::duration<double>(timeout());
  for (int tries = 0; !done(); ++tries) {
    if (tries < 200) continue;
    const timespec pause{0, tries < 2000 ? 1000 : 100000};  // the other rank may need this core
    nanosleep(&pause, nullptr);
    if (tries % 64 == 0 && Clock::now() > most) return false;
  }
  return true;
}

std::unique_ptr<Communicator> single() { return std::make_unique<Single>(); }

std::unique_ptr<Communicator> world() {
  // Open MPI, MPICH and others that speak PMI, Slurm's PMIx
  int ranks = 1;
  bool launched = false;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    const char* value = std::getenv(name);
    if (!value) continue;
    launched = true;
    if (name != std::string_view("PMIX_RANK")) ranks = std::max(ranks, std::atoi(value));
  }
  if (!launched) return single();
  std::unique_ptr<Communicator> mpi = mpi_world();
  if ((mpi ? mpi->size() : 1) < ranks)
    throwf("the launcher started {} ranks, but {}", ranks,
           mpi ? "MPI sees 1: mpirun is of another MPI than the one that the program was built with"
               : "this program was built without MPI (GRADUAL_MPI)");
  return mpi ? std::move(mpi) : single();
}

int run(const std::function<int(Communicator&)>& f) {
  const std::unique_ptr<Communicator> ranks = world();
  if (ranks->size() == 1) return f(*ranks);
  try {
    return f(*ranks);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "rank %d of %d: %s\n", ranks->rank(), ranks->size(), e.what());
    ranks->abort(1);
    return 1;  // not reached
  }
}

}  // namespace gradual::dist
