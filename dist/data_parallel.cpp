#include "data_parallel.h"

#include <gradual/version.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../nn/norm.h"
#include "histories.h"
#include "lockstep.h"

namespace gradual::dist {
namespace {

// Streams of the seed that no other code uses: 2^24 for each shard of a step.
Generator generator_of(RandomKey step, std::int64_t shard) {
  const std::uint64_t number = step.stream * kMostShards + static_cast<std::uint64_t>(shard);
  return Generator(RandomKey{step.seed, (std::uint64_t{1} << 61) + (number << 24)});
}

Tensor rows(const Tensor& t, Range range) { return t.defined() ? t.narrow(0, range.first, range.size()) : t; }

template <class T> Tensor on_host(const Tensor& t) { return contiguous(cast(t.to(Device::cpu()), dtype_of<T>)); }

template <class T> Tensor like(const Tensor& t, const T* values) {
  return from_data(std::vector<T>(values, values + t.numel()), t.sizes(), {.dtype = dtype_of<T>})
      .to(t.device(), t.dtype());
}

std::string parameter_list(const std::vector<std::pair<std::string, Tensor>>& parameters) {
  std::string text;
  for (const auto& [name, p] : parameters)
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", name, to_string(p.dtype()), to_string(p.sizes()));
  return text;
}

std::string text_of(const amp::Recipe& recipe) {
  try {
    return amp::to_json(recipe);
  } catch (const Error&) { return recipe.name; }  // a rewrite is code
}

}  // namespace

int shards_of(const DataParallelOptions& o, int ranks) {
  const int all = std::max(ranks, o.ranks_emulated), shards = o.shards ? o.shards : std::max(8, all);
  if (shards < all || shards > kMostShards)
    throwf("data-parallel training: {} shards for {} ranks; allowed are {} to {}", shards, all, all, kMostShards);
  return shards;
}

DataParallel::DataParallel(Communicator& ranks, amp::RecipeRun& run, DataParallelOptions options)
    : DataParallel(ranks, run.model(),
                   (options.facts.insert(options.facts.begin(), {"recipe", text_of(run.recipe())}), options),
                   run.recipe().exchange) {
  run_ = &run;
  if (ranks.size() > 1) copy_state();
}

DataParallel::DataParallel(Communicator& ranks, nn::Module& model, DataParallelOptions options,
                           std::optional<amp::Exchange> exchange)
    : ranks_(ranks),
      model_(model),
      options_(std::move(options)),
      shards_(shards_of(options_, ranks.size())),
      emulated_(options_.ranks_emulated ? options_.ranks_emulated : ranks.size()),
      parameters_(model.named_parameters()),
      buffers_(model.named_buffers()) {
  if (options_.sum != DType::f32 && options_.sum != DType::f64)
    throwf("data-parallel training: sums over shards are f32 or f64, not {}", to_string(options_.sum));
  if (options_.ranks_emulated < 0 || (ranks.size() > 1 && emulated_ != ranks.size()))
    throwf("data-parallel training: {} ranks cannot emulate {}; one process can", ranks.size(), emulated_);
  std::vector<std::int64_t> sizes;
  for (const auto& [name, p] : parameters_) {
    sizes.push_back(p.numel());
    if (p.dtype() == DType::f64) options_.sum = DType::f64;
  }
  about_ += static_cast<std::int64_t>(parameters_.size());
  for (const auto& [name, b] : buffers_) about_ += b.numel();
  if (exchange) {
    exchange_.emplace(ranks_, *exchange, emulated_, sizes);
    exchange_->count(options_.count);
    if (exchange->average == Averaging::after) factor_ = 1.0 / emulated_;
  }
  options_.facts.insert(options_.facts.end(),
                        {{"the number of shards", std::to_string(shards_)},
                         {"the type of sums", std::string(to_string(options_.sum))},
                         {"batch norm", options_.synchronized_batch_norm ? "synchronised" : "per shard"},
                         {"the exchange", exchange ? describe(*exchange) : "none"},
                         {"their parameters", parameter_list(parameters_)},
                         {"the version", GRADUAL_VERSION}});
  check_same(ranks_, options_.facts);
  if (ranks_.size() == 1) return;
  check_same(ranks_, {{"the program (its checksum)", program_checksum()}});
  copy_state();
}

// Rank 0's to all.
void DataParallel::copy_state() {
  const NoGrad off;
  const StateDict mine = run_ ? run_->state_dict() : model_.state_dict();
  StateDict state;
  for (const StateDict::Entry& entry : mine) {
    if (!std::holds_alternative<Tensor>(entry.value)) {
      std::visit([&](const auto& v) { state.set(entry.name, v); }, entry.value);
      continue;
    }
    const Tensor& own = std::get<Tensor>(entry.value);
    const Tensor copy = contiguous(own.to(Device::cpu())).detach().clone();
    ranks_.broadcast(copy.raw(), copy.nbytes(), 0);
    state.set(entry.name, copy.to(own.device()));
  }
  if (ranks_.rank() == 0) return;
  if (run_) run_->load_state_dict(state);
  else model_.load_state_dict(state);
}

amp::RunStep DataParallel::step(const data::Batch& batch, const Loss& loss) {
  if (!run_)
    throw_error("DataParallel: step() is for a RecipeRun; with a model alone call backward() and your optimizer");
  const Tensor mean = backward(batch, loss);
  return {mean, run_->update()};
}

Tensor DataParallel::backward(const data::Batch& batch, const Loss& loss) {
  return options_.sum == DType::f64 ? backward_as<double>(batch, loss) : backward_as<float>(batch, loss);
}

Tensor DataParallel::run_shard(const data::Batch& batch, Range samples, const Loss& loss) {
  const Range here{samples.first - batch.first, samples.last - batch.first};
  const data::Batch part{rows(batch.inputs, here), rows(batch.targets, here)};
  Tensor value = run_ ? run_->forward([&] { return loss(part); }) : loss(part);
  if (run_) run_->backward(value);
  else value.backward();
  return value;
}

template <class T> std::vector<T> DataParallel::flat(const Tensor& loss, double share, double weight) const {
  const NoGrad off;
  std::vector<T> out = {static_cast<T>(loss.item() * share), 0};
  for (const auto& [name, p] : parameters_) out.push_back(p.grad().defined() ? 1 : 0);
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const Tensor now = on_host<T>(buffers_[i].second), then = on_host<T>(before_[i]);
    for (std::int64_t k = 0; k < now.numel(); ++k)
      out.push_back(static_cast<T>(share) * (now.template data<T>()[k] - then.template data<T>()[k]));
  }
  bool finite = true;
  for (const auto& [name, p] : parameters_) {
    const auto begin = static_cast<std::ptrdiff_t>(out.size());
    if (const Tensor g = p.grad(); g.defined()) {
      const Tensor values = on_host<T>(g);
      out.insert(out.end(), values.template data<T>(), values.template data<T>() + values.numel());
    } else {
      out.insert(out.end(), static_cast<std::size_t>(p.numel()), 0);
    }
    for (auto v = out.begin() + begin; v != out.end(); ++v)
      *v *= static_cast<T>(weight), finite = finite && std::isfinite(*v);
  }
  out[1] = finite ? 0 : 1;
  return out;
}

namespace {

// The sum of numbers over shards. A shard's gradients are of its own loss, whose weight in the batch's is `share`.
struct SumOfShards final : Function {
  SumOfShards(const Meet& m, double s) : meet(m), share(s) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& own) override { return {meet(own[0])}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override {
    return {div(apply(std::make_shared<SumOfShards>(meet, share), {mul(g[0], share)})[0], share)};
  }
  std::string name() const override { return "sum over shards"; }
  const Meet& meet;
  double share;
};

}  // namespace

// Runs this rank's shards in lockstep. Gradients and buffers are those of the shard that runs.
void DataParallel::run_together(std::int64_t whole, const std::function<void(std::int64_t)>& shard) {
  if (whole < shards_)
    throwf("DataParallel: a batch of {} samples for {} shards; synchronised batch norm needs one each", whole, shards_);
  const Range own = own_shards();
  std::vector<Tensor> start(parameters_.size());  // no gradient
  start.insert(start.end(), before_.begin(), before_.end());
  std::vector<std::vector<Tensor>> kept(static_cast<std::size_t>(own.size()), start);  // of the shards that wait
  const auto swap = [&](int i) {
    const NoGrad off;
    auto mine = kept[static_cast<std::size_t>(i)].begin();
    for (const auto& [name, p] : parameters_) {
      const Tensor now = p.grad();
      p.set_grad(std::exchange(*mine++, now));
    }
    for (const auto& [name, b] : buffers_) {
      const Tensor now = b.detach().clone();
      b.copy_(std::exchange(*mine++, now));
    }
  };
  const auto join = [&](const std::vector<Tensor>& brought) {
    const NoGrad off;
    TreeSum<double> tree;
    int k = static_cast<int>(own.first);
    for (const Tensor& t : brought) tree.add(0, k++, on_host<double>(t).to_vector<double>());
    return like(brought[0], sum_shards(ranks_, shards_, std::move(tree)).data());
  };
  const auto run = [&](int i, const Meet& meet) {
    const std::int64_t k = own.first + i;
    const double share = static_cast<double>(part_of(whole, shards_, k).size()) / static_cast<double>(whole);
    const Meet sum = [&](const Tensor& t) { return apply(std::make_shared<SumOfShards>(meet, share), {t})[0]; };
    const Scoped scope(nn::sum_over_parts, &sum);
    shard(k);
  };
  in_lockstep(static_cast<int>(own.size()), run, join, swap);
}

void DataParallel::restore_buffers() const {
  const NoGrad off;
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].second.copy_(before_[i]);
}

template <class T> Tensor DataParallel::backward_as(const data::Batch& batch, const Loss& loss) {
  const std::int64_t whole = batch.whole ? batch.whole : batch.size();
  if (whole < 1) throw_error("DataParallel: the batch has no samples");
  const RandomKey key = default_generator().next();
  std::vector<Tensor> earlier;  // gradients that are added to
  earlier.reserve(parameters_.size());
  for (const auto& [name, p] : parameters_) earlier.push_back(p.grad());
  before_.clear();
  for (const auto& [name, b] : buffers_) before_.push_back(b.detach().clone());
  amp::QuantizationState* const quantization = run_ ? run_->quantization() : nullptr;
  std::optional<Scoped<bool>> held;
  if (quantization) held.emplace(quantization->held(), true);

  std::vector<TreeSum<T>> by_rank(exchange_ ? static_cast<std::size_t>(exchange_->held().size()) : 1);
  TreeSum<T> about;
  const Range own = own_shards();
  std::size_t at = 0;  // the rank, in by_rank
  const auto shard = [&](std::int64_t k) {
    const Range samples = part_of(whole, shards_, k);
    const double share = static_cast<double>(samples.size()) / static_cast<double>(whole);
    for (const auto& [name, p] : parameters_) p.zero_grad();
    restore_buffers();
    Tensor value = zeros({});
    if (samples.size() > 0) {
      Generator generator = generator_of(key, k);
      const GeneratorScope scope(generator);
      value = run_shard(batch, samples, loss).detach();
    }
    std::vector<T> numbers = flat<T>(value, share, share / factor_);
    if (exchange_) {
      about.add(0, static_cast<int>(k), {numbers.begin(), numbers.begin() + about_});
      while (k >= part_of(shards_, emulated_, exchange_->held().first + static_cast<std::int64_t>(at)).last) ++at;
    }
    by_rank[at].add(0, static_cast<int>(k), std::move(numbers));
  };
  if (options_.synchronized_batch_norm) run_together(whole, shard);
  for (std::int64_t k = own.first; k < own.last && !options_.synchronized_batch_norm; ++k) shard(k);
  if (quantization) advance_histories(*quantization, ranks_);
  restore_buffers();
  const std::vector<T> sum = exchanged(std::move(by_rank), std::move(about), key);
  give_back(sum, earlier);
  return full({}, static_cast<double>(sum[0]), {.dtype = options_.sum});
}

// The sum over all ranks and shards, in low precision if the recipe says so and all numbers are finite. With Inf or NaN
// the sum is exact, so that all ranks see them.
template <class T>
std::vector<T> DataParallel::exchanged(std::vector<TreeSum<T>> by_rank, TreeSum<T> about, RandomKey key) {
  if (!exchange_) return sum_shards(ranks_, shards_, std::move(by_rank[0]));
  std::vector<T> sum = sum_shards(ranks_, shards_, std::move(about));
  if (!(sum[1] == 0)) {
    TreeSum<T> all;
    for (TreeSum<T>& tree : by_rank)
      for (const auto& node : tree.nodes()) all.add(node.level, node.index, node.values);
    sum = sum_shards(ranks_, shards_, std::move(all));
    for (auto v = sum.begin() + about_; v != sum.end(); ++v) *v *= static_cast<T>(factor_);
    return sum;
  }
  std::vector<RankSum::Values> contributions;
  for (TreeSum<T>& tree : by_rank) {
    const std::vector<T> total = tree.total();
    contributions.emplace_back(total.begin() + about_, total.end());
  }
  const RankSum::Values low = exchange_->sum(std::move(contributions), factor_, key, run_ ? run_->loss_scale() : 1);
  sum.insert(sum.end(), low.begin(), low.end());
  return sum;
}

template <class T> void DataParallel::give_back(const std::vector<T>& sum, const std::vector<Tensor>& earlier) {
  const NoGrad off;
  const T* from = sum.data() + 2 + parameters_.size();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const Tensor& b = buffers_[i].second;
    const bool changed = std::any_of(from, from + b.numel(), [](T gain) { return gain != 0; });
    std::vector<T> gains(from, from + b.numel());
    if (!b.is_floating())
      for (T& g : gains) g = std::round(g);
    if (changed) b.copy_(add(before_[i], like(b, gains.data())));
    from += b.numel();
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& p = parameters_[i].second;
    Tensor gradient = earlier[i];
    if (sum[2 + i] > 0) {
      const Tensor fresh = like(p, from);
      gradient = gradient.defined() ? add(gradient, fresh) : fresh;
      gradient.set_category(Category::gradients);
    }
    p.set_grad(gradient);
    from += p.numel();
  }
}

DataParallel::Exchanged DataParallel::take_exchanged() {
  const Exchanged own = exchange_ ? Exchanged{exchange_->take_counts(), exchange_->take_bytes()} : Exchanged{};
  std::vector<Exchanged> all(static_cast<std::size_t>(ranks_.size()));
  ranks_.all_gather(&own, sizeof own, all.data());
  Exchanged sum;
  for (const Exchanged& e : all) sum.lost += e.lost, sum.bytes += e.bytes;
  return sum;
}

StateDict DataParallel::state_dict() {
  StateDict state;
  if (!exchange_) return state;
  state.set("ranks", std::int64_t{emulated_});
  std::size_t r = 0;  // of emulated ranks this process has all, else one
  for (const RankSum::Residual& own : exchange_->residuals()) {
    for (const auto& [name, values] : {std::pair("gradient", &own.gradient), std::pair("sums", &own.sums)}) {
      std::size_t of = r;
      const std::string bytes(reinterpret_cast<const char*>(values->data()), values->size() * sizeof(float));
      for (const std::string& text : ranks_.all_gather(bytes)) {
        const auto* first = reinterpret_cast<const float*>(text.data());
        const auto n = static_cast<std::int64_t>(text.size() / sizeof(float));
        state.set(fmt::format("{}.{}", of++, name), from_data(RankSum::Values(first, first + n), {n}));
      }
    }
    ++r;
  }
  return state;
}

void DataParallel::load_state_dict(const StateDict& state) {
  if (!exchange_) return;
  if (const std::int64_t ranks = state.integer("ranks"); ranks != emulated_)
    throwf("DataParallel: the state is of {} ranks, here are {}; each keeps what its rounding took", ranks, emulated_);
  std::int64_t r = exchange_->held().first;
  for (RankSum::Residual& own : exchange_->residuals()) {
    own.gradient = state.tensor(fmt::format("{}.gradient", r)).to_vector<float>();
    own.sums = state.tensor(fmt::format("{}.sums", r++)).to_vector<float>();
  }
}

data::DataLoader::Fetch own_shards(const Communicator& ranks, int shards, data::DataLoader::Fetch fetch) {
  const Range own = part_of(shards, ranks.size(), ranks.rank());
  return [own, shards, fetch = std::move(fetch)](const std::vector<std::int64_t>& indices) {
    const auto whole = static_cast<std::int64_t>(indices.size());
    const RandomKey start = default_generator().state();
    data::Batch out{.inputs = {}, .targets = {}, .first = part_of(whole, shards, own.first).first, .whole = whole};
    std::vector<Tensor> inputs, targets;
    for (std::int64_t k = own.first; k < own.last; ++k) {
      const Range part = part_of(whole, shards, k);
      if (part.size() == 0) continue;
      Generator generator(RandomKey{start.seed, start.stream + (static_cast<std::uint64_t>(k) << 10)});
      const GeneratorScope scope(generator);
      const data::Batch one = fetch({indices.begin() + part.first, indices.begin() + part.last});
      inputs.push_back(one.inputs);
      if (one.targets.defined()) targets.push_back(one.targets);
    }
    if (!inputs.empty()) out.inputs = cat(inputs, 0);
    if (!targets.empty()) out.targets = cat(targets, 0);
    return out;
  };
}

}  // namespace gradual::dist
