// Data-parallel training: every process computes a part of each batch, and all end with the same parameters, to the
// bit, for any number of processes. The last line of data_parallel and of mpirun -n 4 data_parallel is the same.
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/data/digits.h>
#include <gradual/dist/data_parallel.h>
#include <gradual/gradual.h>

#include "example.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Data-parallel training of a small network; try mpirun -n 4 data_parallel.\n"
    "  data_parallel [--recipe NAME] [--epochs N] [--exchange NAME, of the gradients: bf16/ring]\n"
    "  [--ranks-emulated N, with --exchange] [--checkpoint FILE, read if it exists, written after each epoch]\n"
    "  [--bucket-bytes N, of gradients that are exchanged while backward goes on]\n";

std::uint64_t checksum(const nn::Module& model) {
  std::uint64_t sum = 0xcbf29ce484222325u;  // FNV-1a
  for (const auto& [name, p] : model.named_parameters())
    for (const double v : p.to_vector<double>()) sum = (sum ^ std::bit_cast<std::uint64_t>(v)) * 0x100000001b3u;
  return sum;
}

int train(dist::Communicator& ranks, example::Arguments& arguments) {
  amp::Recipe recipe = amp::recipe(arguments.text("--recipe", "amp-bf16"));
  const long epochs = arguments.number("--epochs", 2);
  const long emulated = arguments.number("--ranks-emulated", 1);
  if (arguments.has("--exchange")) recipe.exchange = amp::exchange_from_name(arguments.text("--exchange", ""));
  const std::string checkpoint = arguments.text("--checkpoint", "");
  const long bucket_bytes = arguments.has("--bucket-bytes") ? arguments.number("--bucket-bytes", 1) : 0;
  arguments.done();
  // the same bits for any number of threads
  set_deterministic(true);
  manual_seed(1);
  nn::Sequential model{nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Dropout(0.2), nn::Linear(128, 10)};
  model.to(example::device());
  amp::RecipeRun run(recipe, model, optim::AdamWOptions{.lr = 2e-3}, {.clip_norm = 1});
  const auto [train, test] = data::split(data::digits(), 1437);
  data::DataLoader loader(train, {.batch = 64, .shuffle = true, .device = example::device()});
  dist::DataParallel parallel(
      ranks, run, {.ranks_emulated = emulated > 1 ? static_cast<int>(emulated) : 0, .bucket_bytes = bucket_bytes});
  const auto loss_of = [&](const data::Batch& part) { return cross_entropy(model(part.inputs), part.targets); };

  long done = 0;
  if (std::FILE* file = checkpoint.empty() ? nullptr : std::fopen(checkpoint.c_str(), "r")) {
    std::fclose(file);
    const Checkpoint saved = load_checkpoint(checkpoint);
    run.load_state_dict(saved.part("run"));
    parallel.load_state_dict(saved.part("parallel"));
    loader.load_state_dict(saved.part("loader"));
    load_state_dict(default_generator(), saved.part("generator"));
    done = saved.part("epochs").integer("done");
  }
  while (done < epochs) {
    double loss = 0;
    for (const data::Batch& batch : loader) loss += parallel.step(batch, loss_of).loss.item();
    StateDict position;
    position.set("done", ++done);
    const StateDict residuals = parallel.state_dict();  // of all ranks
    if (ranks.rank() != 0) continue;
    std::printf("epoch %ld: mean loss %.4f\n", done, loss / static_cast<double>(loader.size()));
    if (!checkpoint.empty())
      save_checkpoint(checkpoint, {{"run", run.state_dict()},
                                   {"parallel", residuals},
                                   {"loader", loader.state_dict()},
                                   {"generator", state_dict(default_generator())},
                                   {"epochs", position}});
  }
  model.eval();
  const Tensor scores = run.evaluate([&] { return model(test.inputs.to(example::device())); });
  const double right = eq(argmax(scores, 1).to(Device::cpu()), test.targets).to(DType::f32).mean().item();
  if (ranks.rank() == 0)
    std::printf("accuracy %.4f, parameters %016llx\n", right, static_cast<unsigned long long>(checksum(model)));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto body = [](example::Arguments& a) {
    dist::run([&](dist::Communicator& ranks) { return train(ranks, a); });
  };
  return example::run(argc, argv, body, kUsage);
}
