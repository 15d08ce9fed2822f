// gradual-lab exchange: what the exchange of gradients loses, against the number of ranks.
#include <fmt/format.h>
#include <gradual/autograd/grad_mode.h>
#include <gradual/core/files/atomic_file.h>
#include <gradual/core/ops/ops.h>
#include <gradual/core/support/error.h>
#include <gradual/core/support/message_text.h>
#include <gradual/dist/rank_sum.h>

#include <algorithm>

#include "command_line.h"
#include "commands.h"
#include "study_command.h"
#include "terminal.h"

namespace gradual::lab {
namespace {

constexpr const char* kExchanges =
    "f32/gather,f32/ring,bf16/gather,bf16/tree,bf16/ring,f16/gather,f16/ring,e5m2/gather,e5m2/ring,e4m3fn/gather,"
    "e4m3fn/tree,e4m3fn/ring,e4m3fn/ring/stochastic,mxfp8/gather,mxfp8/ring,int8/gather,int8/ring,mxfp4/gather,"
    "nvfp4/gather,sign/gather";

struct Gradients {
  Tensor samples;                   // [samples, numbers of all parameters], f32
  std::vector<std::int64_t> sizes;  // of the parameters
  // The sum over a range of samples, divided by `parts`, in f64.
  Tensor part(dist::Range range, double parts) const {
    return div(samples.narrow(0, range.first, range.size()).to(DType::f64).sum(0), parts);
  }
};

// Of the model as the study has trained it, of the first `count` samples of its training data.
Gradients gradients_of(Study& study, const LabData& task, std::uint64_t seed, int count) {
  const data::Dataset train = task.load(seed).train;
  if (train.size() < count)
    throw_error(fmt::format("exchange: {} ranks, but the data have {} samples", count, train.size()));
  Gradients out;
  for (const auto& [name, p] : study.model().named_parameters()) out.sizes.push_back(p.numel());
  std::vector<Tensor> samples;
  for (int k = 0; k < count; ++k) {
    study.run().optimizer().zero_grad();
    const data::Batch one = data::take(train, {k});
    study.run().backward(study.run().forward([&] { return study.loss_on(one); }));
    const NoGrad off;
    std::vector<Tensor> all;
    for (const auto& [name, p] : study.model().named_parameters())
      all.push_back((p.grad().defined() ? p.grad() : zeros(p.sizes())).to(DType::f32).reshape({p.numel()}));
    samples.push_back(mul(cat(all, 0), 1 / study.run().loss_scale()));
  }
  out.samples = stack(samples);
  return out;
}

// The relative error of the mean gradient in the 2-norm, in percent; the reference is summed in f64.
double error_percent(const Gradients& g, const Tensor& exact, const amp::Exchange& exchange, int ranks,
                     CastCounts& lost) {
  const auto communicator = dist::single();
  dist::RankSum sum(*communicator, exchange, ranks, g.sizes);
  const double factor = exchange.average == Averaging::before ? 1 : 1.0 / ranks;
  const double parts = static_cast<double>(g.samples.size(0)) * factor;
  std::vector<std::vector<float>> contributions;
  for (std::int64_t r = 0; r < ranks; ++r)
    contributions.push_back(g.part(dist::part_of(g.samples.size(0), ranks, r), parts).to_vector<float>());
  sum.count(true);
  const Tensor mean = from_data(sum.sum(std::move(contributions), factor, {.seed = 1}), exact.sizes());
  lost = sum.kept().counts;
  return 100 * norm(sub(mean, exact)).item() / norm(exact).item();
}

}  // namespace

int exchange_command(int argc, char** argv) {
  StudyArguments a;
  a.model = "mlp";
  std::string names = kExchanges;
  std::string recipe = "fp32";
  std::string csv;
  int most = 1024;
  OptionParser app(
      "Prints the error of the mean gradient after an exchange in low precision, against the number of ranks.\n"
      "The samples are the same for any number of ranks: each rank has an equal part of them. Error: 2-norm of the\n"
      "difference to the sum in f64, in percent of its norm.\n",
      "exchange");
  app.add_option("--exchanges", names, "names separated by commas: FORMAT/ALGORITHM and more (docs/distributed.md)");
  app.add_option("--ranks", most, "the largest number of ranks, and the number of samples").capture_default_str();
  app.add_option("--recipe", recipe, "trains up to the step and computes the gradients").capture_default_str();
  a.declare(app);
  app.add_option("--csv", csv, "write a line for each exchange and number of ranks to this file");
  if (const std::optional<int> status = app.parse(argc, argv)) return *status;
  a.check(app);
  if (most < 1 || most > dist::kMostShards)
    throw_error(fmt::format("--ranks is {}; it must be 1 to {}", most, dist::kMostShards));
  std::vector<std::pair<std::string, amp::Exchange>> exchanges;
  for (const std::string& name : split_names(names)) exchanges.emplace_back(name, amp::exchange_from_name(name));
  const LabData task = a.task();
  const MakeModel make = a.make_model(app);
  Study study(make, task, one_recipe("--recipe", recipe), a.options);
  const Gradients g = gradients_of(study, task, a.options.seed, most);
  const Tensor exact = g.part({0, most}, most);
  std::vector<std::vector<std::string>> rows = {{"exchange"}};
  std::string lines = "exchange,ranks,error_percent,underflow_percent,overflow_percent\n";
  for (int ranks = 1; ranks <= most; ranks *= 4) rows[0].push_back(fmt::format("{}", ranks));
  rows[0].emplace_back("lost to zero %");
  for (const auto& [name, exchange] : exchanges) {
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{name});
    CastCounts lost;
    for (int ranks = 1; ranks <= most; ranks *= 4) {
      const double error = error_percent(g, exact, exchange, ranks, lost);
      const double all = static_cast<double>(std::max<std::uint64_t>(1, lost.elements)) / 100;
      const double under = static_cast<double>(lost.underflow) / all;
      const double over = static_cast<double>(lost.overflow) / all;
      row.push_back(fmt::format("{:.3g}", error));
      lines += fmt::format("{},{},{:.6g},{:.6g},{:.6g}\n", name, ranks, error, under, over);
      if (ranks * 4 > most) row.push_back(fmt::format("{:.2f}", under));
    }
  }
  say(stdout, "error of the mean gradient in %, by number of ranks; {} numbers, {} samples\n\n{}", exact.numel(),
      g.samples.size(0), table_of(rows, rows[0].size() - 1));
  if (!csv.empty()) write_file_atomically(csv, lines);
  return 0;
}

}  // namespace gradual::lab
