// gradual-dist-step MODEL EXCHANGE STEPS [BUCKET_BYTES]: the median time of a data-parallel training step of one thread
// a rank, on random data. MODEL: mlp, mlp_medium or cnn, those of ./dev compare. EXCHANGE: exact (f32, no exchange), or
// as in docs/distributed.md. A batch has one shard for each rank. hosts.sh runs it between namespaces.
#include <fmt/format.h>
#include <gradual/core/support/threads.h>
#include <gradual/dist/data_parallel.h>
#include <gradual/gradual.h>
#include <gradual/lab/models.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

using namespace gradual;

namespace {

struct Workload {
  const char* name;
  Shape inputs;
  std::shared_ptr<nn::Module> (*make)();
};

const Workload kWorkloads[] = {{"mlp", {32, 64}, [] { return lab::make_mlp(64, 10); }},
                               {"mlp_medium",
                                {128, 784},
                                []() -> std::shared_ptr<nn::Module> {
                                  return std::make_shared<nn::Sequential>(nn::Linear(784, 512), nn::ReLU(),
                                                                          nn::Linear(512, 512), nn::ReLU(),
                                                                          nn::Linear(512, 10));
                                }},
                               {"cnn", {64, 1, 28, 28}, [] { return lab::make_cnn(1, 28, 28, 10); }}};

int measure(dist::Communicator& ranks, const std::string& name, const std::string& exchange, int steps,
            std::int64_t bucket_bytes) {
  const auto* work = std::ranges::find(kWorkloads, name, &Workload::name);
  if (work == std::end(kWorkloads)) throw_error("the models are mlp, mlp_medium and cnn, not '" + name + "'");
  if (steps < 1) throw_error("the number of steps must be at least 1");
  set_num_threads(1);
  manual_seed(1);
  amp::Recipe recipe = amp::recipe("fp32");
  if (exchange != "exact") recipe.exchange = amp::exchange_from_name(exchange);
  const auto model = work->make();
  amp::RecipeRun run(recipe, *model, optim::SGDOptions{.lr = 0.01});
  dist::DataParallel parallel(ranks, run, {.shards = ranks.size(), .bucket_bytes = bucket_bytes});
  const data::Batch batch{randn(work->inputs), zeros({work->inputs[0]}, DType::i64)};
  const auto loss = [&](const data::Batch& part) { return cross_entropy((*model)(part.inputs), part.targets); };
  std::vector<double> ms;
  for (int k = 0; k < steps; ++k) {
    ranks.barrier();
    const auto start = std::chrono::steady_clock::now();
    parallel.step(batch, loss);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::sort(ms);
  if (ranks.rank() == 0) fmt::print("{} {} {:.3f}\n", name, exchange, ms[ms.size() / 2]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) {
    fmt::print(stderr, "usage: gradual-dist-step MODEL EXCHANGE STEPS [BUCKET_BYTES]\n");
    return 2;
  }
  const std::int64_t bucket_bytes = argc == 5 ? std::atoll(argv[4]) : dist::DataParallelOptions{}.bucket_bytes;
  try {
    return dist::run(
        [&](dist::Communicator& ranks) { return measure(ranks, argv[1], argv[2], std::atoi(argv[3]), bucket_bytes); });
  } catch (const Error& e) {
    fmt::print(stderr, "gradual-dist-step: {}\n", e.what());
    return 1;
  }
}
