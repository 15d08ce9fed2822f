#include "data_parallel.h"

#include <gradual/version.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <future>
#include <map>

#include "../amp/before_step.h"
#include "../autograd/function.h"
#include "../autograd/grad_mode.h"
#include "../autograd/tape.h"
#include "../core/ops/ops.h"
#include "../core/support/throwf.h"
#include "../core/tensor/modes.h"
#include "../nn/norm.h"
#include "histories.h"
#include "lockstep.h"
#include "shard_weights.h"

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

// trained: says which of them are frozen.
std::string tensor_list(const std::vector<std::pair<std::string, Tensor>>& named, bool trained) {
  std::string text;
  for (const auto& [name, p] : named)
    text += fmt::format("{}{} {} {}{}", text.empty() ? "" : ", ", name, to_string(p.dtype()), to_string(p.sizes()),
                        !trained || p.requires_grad() ? "" : " frozen");
  return text;
}

std::vector<Tensor> tensors_of(const std::vector<std::pair<std::string, Tensor>>& named) {
  std::vector<Tensor> all;
  for (const auto& [name, t] : named) all.push_back(t);
  return all;
}

std::string text_of(const amp::Recipe& recipe) {
  try {
    return amp::to_json(recipe);
  } catch (const Error&) { return recipe.name; }  // a rewrite is code
}

// Header fields of a shard, in this order. Then come what its loss divided by, two numbers for each shard of the batch,
// of which a shard sets its own; for each parameter 1 if it has a gradient; what buffers gained; and, if the recipe's
// schedule asks for it, for each parameter two numbers of its gradient's noise.
enum About : std::size_t { kLoss, kNonfinite, kHidden, kCounted };

std::string text_of(const StateValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return fmt::format("{}", *number);
  if (const auto* number = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *number);
  return gradual::describe(value);
}

// The optimizer's kind and choices, its groups with their rates and parameters, and how it updates half parameters.
Facts facts_of(optim::Optimizer& optimizer) {
  Facts facts;
  for (const StateDict::Entry& entry : optimizer.state_dict())
    if (entry.name == "kind" || entry.name == "seed" || entry.name.starts_with("groups"))
      facts.emplace_back("the optimizer's " + entry.name, text_of(entry.value));
  for (const auto& [name, value] : optimizer.choices()) facts.emplace_back("the optimizer's " + name, value);
  std::string names;  // through the groups in order
  for (std::size_t i = 0; i < optimizer.param_count(); ++i) names += (i > 0 ? ", " : "") + optimizer.param_name(i);
  facts.emplace_back("the optimizer's parameters", names);
  const optim::UpdateOptions& how = optimizer.update_options();
  for (std::size_t k = 0; k < std::size(how.moments); ++k)
    facts.emplace_back(fmt::format("the optimizer's moments[{}]", k),
                       how.moments[k] ? describe(*how.moments[k]) : "unset");
  facts.emplace_back("the optimizer's update", to_string(how.update));
  facts.emplace_back("the optimizer's state_dtype", how.state_dtype ? to_string(*how.state_dtype) : "unset");
  facts.emplace_back("the optimizer's pure_arithmetic", how.pure_arithmetic ? "true" : "false");
  return facts;
}

// What a training depends on besides the model and the options: the recipe, the optimizer.
DataParallelOptions with_facts(DataParallelOptions options, amp::RecipeRun& run) {
  Facts facts = facts_of(run.optimizer());
  facts.insert(facts.begin(), {"recipe", text_of(run.recipe())});
  facts.emplace_back("clip_norm", fmt::format("{}", run.options().clip_norm));
  facts.emplace_back("steps", fmt::format("{}", run.options().steps));
  options.facts.insert(options.facts.begin(), facts.begin(), facts.end());
  return options;
}

// Of the bytes of all parameters.
std::string checksum_of(const std::vector<std::pair<std::string, Tensor>>& parameters) {
  uLong crc = 0;
  for (const auto& [name, p] : parameters) {
    const Tensor values = contiguous(p.detach().to(Device::cpu()));
    if (values.numel() > 0) crc = crc32_z(crc, static_cast<const Bytef*>(values.raw()), values.nbytes());
  }
  return fmt::format("{:08x}", crc);
}

// The sum of numbers over shards. A shard's gradients are of its own loss, whose weight in the batch's is `share`. That
// is known once forward has run.
struct SumOfShards final : Function {
  SumOfShards(const Meet& m, const double& s) : meet(m), share(s) {}
  std::vector<Tensor> forward(const std::vector<Tensor>& own) override { return {meet(own[0])}; }
  std::vector<Tensor> backward(const std::vector<Tensor>& g) override {
    return {div(apply(std::make_shared<SumOfShards>(meet, share), {mul(g[0], share)})[0], share)};
  }
  std::string name() const override { return "sum over shards"; }
  const Meet& meet;
  const double& share;
};

// The number of operands in which a quantiser hid Inf or NaN since the last call.
std::int64_t take_hidden(amp::RecipeRun* run) {
  const Tensor hidden = run && run->quantization() ? run->quantization()->take_hidden() : Tensor();
  return hidden.defined() ? static_cast<std::int64_t>(hidden.item()) : 0;
}

void put_hidden(amp::QuantizationState& quantization, std::int64_t count, Device device) {
  static_cast<void>(quantization.take_hidden());
  if (count > 0)
    quantization.put_hidden(full({1}, static_cast<double>(count), {.dtype = DType::i64, .device = device}));
}

// A parameter's own node; null: it requires no gradient.
const Node* leaf_of(const Tensor& parameter) {
  return needs_grad(parameter) ? grad_meta(parameter)->edge.node.get() : nullptr;
}

// The sequence number of each parameter's first use, whose backward completes its gradient.
std::vector<std::uint64_t> first_uses(const Tensor& loss,
                                      const std::vector<std::pair<std::string, Tensor>>& parameters) {
  std::vector<std::uint64_t> out(parameters.size(), ~std::uint64_t{0});  // unused
  std::map<const Node*, std::uint64_t*> use;
  for (std::size_t i = 0; i < out.size(); ++i)
    if (const Node* leaf = leaf_of(parameters[i].second)) use[leaf] = &out[i];
  const Tape tape = Tape::of(loss);
  for (auto node = tape.nodes().rbegin(); node != tape.nodes().rend(); ++node) {
    const Node& n = **node;
    for (int k = 0; k < n.input_count; ++k)
      if (const auto leaf = use.find(n.input(k).edge.node.get()); leaf != use.end()) *leaf->second = n.sequence;
    // A checkpointed segment may use any parameter: its tape is made in backward.
    if (n.function && n.function->records_in_backward()) std::ranges::fill(out, n.sequence);
  }
  return out;
}

}  // namespace

int shards_of(const DataParallelOptions& o, int ranks) {
  const int all = std::max(ranks, o.ranks_emulated);
  const int shards = o.shards ? o.shards : std::max(8, all);
  if (shards < all || shards > kMostShards)
    throwf("data-parallel training: {} shards for {} ranks; allowed are {} to {}", shards, all, all, kMostShards);
  return shards;
}

DataParallel::DataParallel(Communicator& ranks, amp::RecipeRun& run, DataParallelOptions options)
    : DataParallel(ranks, run.model(), with_facts(std::move(options), run), run.recipe().exchange) {
  run_ = &run;
  noise_ = amp::measures_noise(run.recipe());
  if (noise_) about_ += 2 * static_cast<std::int64_t>(parameters_.size());
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
  if (options_.bucket_bytes < 0)
    throwf("data-parallel training: bucket_bytes is {}; it must be 0 or more", options_.bucket_bytes);
  if (ranks.size() == 1 || options_.synchronized_batch_norm) options_.bucket_bytes = 0;
  std::vector<std::int64_t> sizes;
  for (const auto& [name, p] : parameters_) {
    order_.insert(order_.begin(), sizes.size());  // backward often completes the last one first
    sizes.push_back(p.numel());
    if (p.dtype() == DType::f64) options_.sum = DType::f64;
  }
  fill_buckets();
  about_ += static_cast<std::int64_t>(kCounted) + 2 * shards_ + static_cast<std::int64_t>(parameters_.size());
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
                         {"the bytes of a bucket", std::to_string(options_.bucket_bytes)},
                         {"the exchange", exchange ? describe(*exchange) : "none"},
                         {"their parameters", tensor_list(parameters_, true)},
                         {"their buffers", tensor_list(buffers_, false)},
                         {"the seed of the default generator", std::to_string(default_generator().state().seed)},
                         {"the position of the default generator", std::to_string(default_generator().state().stream)},
                         {"the version", GRADUAL_VERSION}});
  if (ranks_.size() > 1) options_.facts.emplace_back("the program (its checksum)", program_checksum());
  check_same(ranks_, options_.facts);
  if (ranks_.size() > 1) copy_state();
}

void DataParallel::fill_buckets() {
  buckets_.assign(1, {});
  std::int64_t bytes = 0;
  for (const std::size_t i : order_) {
    if (options_.bucket_bytes > 0 && bytes >= options_.bucket_bytes) {
      buckets_.emplace_back();
      bytes = 0;
    }
    buckets_.back().push_back(i);
    bytes += parameters_[i].second.numel() * static_cast<std::int64_t>(size_of(options_.sum));
  }
  for (std::vector<std::size_t>& bucket : buckets_) std::ranges::sort(bucket);
}

// Rank 0's to all.
void DataParallel::copy_state() {
  const NoGrad off;
  const StateDict mine = run_ ? run_->state_dict() : model_.state_dict();
  StateDict state;
  for (StateDict::Entry entry : mine) {
    if (Tensor* t = std::get_if<Tensor>(&entry.value)) {
      const Tensor copy = contiguous(t->to(Device::cpu())).detach().clone();
      ranks_.broadcast(copy.raw(), copy.nbytes(), 0);
      *t = copy.to(t->device());
    }
    std::visit([&](const auto& v) { state.set(entry.name, v); }, entry.value);
  }
  if (ranks_.rank() == 0) return;
  if (run_) run_->load_state_dict(state);
  else model_.load_state_dict(state);
}

amp::RunStep DataParallel::step(const data::Batch& batch, const Loss& loss) {
  if (!run_)
    throw_error("DataParallel: step() is for a RecipeRun; with a model alone call backward() and your optimizer");
  check_batch(batch);
  const Tensor value = backward(batch, loss);
  amp::RunStep done{value, run_->update()};
  check_step();
  return done;
}

// Of steps 1, 2, 4, 8 ..
void DataParallel::check_batch(const data::Batch& batch) const {
  if (ranks_.size() == 1 || !std::has_single_bit(steps_ + 1)) return;
  const std::int64_t samples = batch.whole ? batch.whole : batch.size();
  check_same(ranks_, {{"the number of samples in a batch", std::to_string(samples)}});
}

// Finds what no fact names, such as the options of an optimizer of the user's own. The steps become rare, since reading
// all parameters takes time.
void DataParallel::check_step() {
  ++steps_;
  if (ranks_.size() == 1 || !std::has_single_bit(steps_)) return;
  check_same(ranks_, {{fmt::format("their parameters after step {} (a checksum)", steps_), checksum_of(parameters_)}});
}

// The gradients of a step's shards in buckets. Each bucket has a tree for each held rank and a sum; in those of the
// last one, which waits for backward, the header fields of the shards come first.
template <class T> struct DataParallel::Buckets {
  DataParallel& all;
  RandomKey key;
  double unit = all.exchange_ && all.run_ ? all.run_->loss_scale() : 1;
  std::size_t last = all.buckets_.size() - 1;
  std::vector<std::vector<TreeSum<T>>> trees{
      last + 1, std::vector<TreeSum<T>>(all.exchange_ ? static_cast<std::size_t>(all.exchange_->held().size()) : 1)};
  std::vector<std::vector<T>> sums{last + 1};
  TreeSum<T> about = {};  // with an exchange, which needs to know before it that all numbers are finite
  RankSum::Kept kept = all.exchange_ ? all.exchange_->kept() : RankSum::Kept{};
  std::int64_t rank = 0;  // of the shard that closes, among the held ones
  std::size_t next = 0;   // the first bucket that it has not closed; shards in lockstep close all theirs without a stop
  bool finite = true;     // its gradients in those before
  // Exchanges all buckets but the last, one after the other, each once it is closed. If this step throws, those that
  // are closed are exchanged, for other ranks wait for them; the thread then finds a broken promise.
  std::future<void> thread = {};
  std::vector<std::promise<void>> closed = {};

  // What the losses of all shards divided by.
  double counted() const {
    double sum = 0;
    for (int k = 0; k < all.shards_; ++k) {
      const T* two = sums[last].data() + kCounted + 2 * k;
      sum += static_cast<double>(two[0]) + static_cast<double>(two[1]);
    }
    return sum;
  }

  // Adds the shard's gradients in the next bucket, after these numbers, to the tree.
  void close(const Shard& shard, std::vector<T> numbers = {}) {
    const NoGrad off;
    const std::int64_t k = shard.k;
    while (all.exchange_ && k >= part_of(all.shards_, all.emulated_, all.exchange_->held().first + rank).last) ++rank;
    for (const std::size_t i : all.buckets_[next]) {
      const Tensor& p = all.parameters_[i].second;
      const auto begin = static_cast<std::ptrdiff_t>(numbers.size());
      numbers.resize(numbers.size() + static_cast<std::size_t>(p.numel()));
      if (!p.grad().defined() || shard.weight == 0) continue;  // 0 / 0 has a gradient of NaN
      const Tensor values = on_host<T>(p.grad());
      std::transform(values.template data<T>(), values.template data<T>() + p.numel(), numbers.begin() + begin,
                     [weight = static_cast<T>(shard.weight / all.factor_)](T v) { return v * weight; });
      finite = finite && std::all_of(numbers.begin() + begin, numbers.end(), [](T v) { return std::isfinite(v); });
    }
    if (next == last) numbers[kNonfinite] = finite ? 0 : 1;
    if (next == last && all.exchange_)
      about.add(0, static_cast<int>(k), {numbers.begin(), numbers.begin() + all.about_});
    trees[next][static_cast<std::size_t>(rank)].add(0, static_cast<int>(k), std::move(numbers));
    if (next < closed.size()) closed[next].set_value();
    ++next;
  }

  // Closes the buckets that the shard's backward left open. The last bucket stays open.
  void close_rest(const Shard& shard) {
    while (next < last) close(shard);
  }

  void close_last(const Shard& shard, std::vector<T> numbers) {
    close(shard, std::move(numbers));
    next = 0;
    finite = true;
  }

  // Starts the thread. Buckets that are closed from now on are complete: they are of this rank's last shard.
  void exchange_on_the_way() {
    if (last == 0) return;
    std::vector<std::future<void>> turns;
    closed.resize(last);
    for (std::promise<void>& c : closed) turns.push_back(c.get_future());
    thread = std::async(std::launch::async, [this, turns = std::move(turns)]() mutable {
      for (std::size_t b = 0; b < turns.size(); ++b) {
        turns[b].get();
        sum(b, all.exchange_.has_value());
      }
    });
  }

  // Closes buckets on the way, if there is a thread for them.
  void run_backward(const Shard& shard, const Tensor& value) {
    autograd::GradOptions options;
    std::map<std::size_t, std::uint32_t> sent;  // how many gradients a parameter had received then
    const auto received = [&](std::size_t i) { return autograd::gradients_received(all.parameters_[i].second); };
    if (!closed.empty() && value.requires_grad()) {
      const std::vector<std::uint64_t> uses = first_uses(value, all.parameters_);
      if (!all.ordered_) std::ranges::stable_sort(all.order_, std::greater(), [&](std::size_t i) { return uses[i]; });
      options.between = [&, uses](autograd::Engine& engine) {
        const auto complete = [&](std::size_t i) { return uses[i] > engine.newest(); };
        for (; next < last && std::ranges::all_of(all.buckets_[next], complete); close(shard))
          for (const std::size_t i : all.buckets_[next]) {
            if (const Node* leaf = leaf_of(all.parameters_[i].second)) engine.step(nullptr, leaf);
            sent[i] = received(i);
          }
      };
    }
    if (all.run_) all.run_->backward(value, options);
    else autograd::backward({value}, {}, options);
    for (const auto& [i, then] : sent)
      if (received(i) != then)
        throwf(
            "DataParallel: a function's backward changed the gradient of '{}' when it was on its way to other ranks, "
            "after its uses on the tape; set bucket_bytes to 0",
            all.parameters_[i].first);
  }

  // Exact sums, or in low precision without the header fields of the shards.
  void sum(std::size_t bucket, bool low) {
    const std::int64_t first = bucket == last ? all.about_ : 0;
    if (low) {
      std::vector<RankSum::Values> contributions;
      for (TreeSum<T> tree : trees[bucket]) {  // a copy: the exact sum may be needed
        const std::vector<T> total = tree.total();
        contributions.emplace_back(total.begin() + first, total.end());
      }
      const auto out = all.exchange_->sum(std::move(contributions), all.factor_, key, unit, all.buckets_[bucket]);
      sums[bucket].insert(sums[bucket].end(), out.begin(), out.end());
      return;
    }
    TreeSum<T> joined = std::move(trees[bucket][0]);
    for (std::size_t r = 1; r < trees[bucket].size(); ++r)
      for (const auto& node : trees[bucket][r].nodes()) joined.add(node.level, node.index, node.values);
    sums[bucket] = sum_shards(all.ranks_, all.shards_, std::move(joined));
    for (auto v = sums[bucket].begin() + first; all.factor_ != 1 && v != sums[bucket].end(); ++v)
      *v *= static_cast<T>(all.factor_);
  }

  // What the thread has not summed. With Inf or NaN all sums are exact: all ranks see them.
  void sum_rest() {
    const bool exchanges = all.exchange_.has_value();
    if (exchanges) sums[last] = sum_shards(all.ranks_, all.shards_, std::move(about));
    const bool low = exchanges && sums[last][kNonfinite] == 0;
    if (exchanges && !low) all.exchange_->kept() = std::move(kept);
    for (std::size_t b = exchanges && !low ? 0 : last; b <= last; ++b) sum(b, low);
  }
};

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

// Exchanges the gradients of the parameters and the numbers in the buffers with those that are kept.
static void swap_tensors(std::vector<Tensor>& kept, const NamedTensors& parameters, const NamedTensors& buffers) {
  const NoGrad off;
  auto mine = kept.begin();
  for (const auto& [name, p] : parameters) {
    const Tensor now = p.grad();
    p.set_grad(std::exchange(*mine++, now));
  }
  for (const auto& [name, b] : buffers) {
    const Tensor now = b.detach().clone();
    b.copy_(std::exchange(*mine++, now));
  }
}

// The sum over all shards of a tensor that each brings, of which these are the ones of this rank's, from shard `first`.
static Tensor sum_over_shards(Communicator& ranks, int shards, std::int64_t first, const std::vector<Tensor>& own) {
  const NoGrad off;
  TreeSum<double> tree;
  int k = static_cast<int>(first);
  for (const Tensor& t : own) tree.add(0, k++, on_host<double>(t).to_vector<double>());
  return like(own[0], sum_shards(ranks, shards, std::move(tree)).data());
}

static data::Batch part_of(const data::Batch& batch, Range samples) {
  data::Batch part{rows(batch.inputs, samples), rows(batch.targets, samples)};
  for (const auto& [field, values] : batch.fields) part.fields.emplace_back(field, rows(values, samples));
  return part;
}

// What a buffer's numbers gained in a shard, times the shard's share of the batch.
template <class T>
static void append_gains(std::vector<T>& out, const Tensor& buffer, const Tensor& before, double share) {
  const Tensor now = on_host<T>(buffer);
  const Tensor then = on_host<T>(before);
  for (std::int64_t k = 0; k < now.numel(); ++k)
    out.push_back(static_cast<T>(share) * (now.template data<T>()[k] - then.template data<T>()[k]));
}
// Writes a buffer's numbers from before the step and what they gained, rounded in a buffer of integers. A buffer that
// gained nothing is not written.
template <class T> static void add_gains(const Tensor& buffer, const Tensor& before, std::vector<T> gains) {
  if (std::ranges::all_of(gains, [](T gain) { return gain == 0; })) return;
  if (!buffer.is_floating())
    for (T& g : gains) g = std::round(g);
  buffer.copy_(add(before, like(buffer, gains.data())));
}

// A parameter's gradient from before the step, which may be undefined, and factor * sum.
template <class T>
static Tensor added(const Tensor& earlier, const Tensor& parameter, const std::vector<T>& sum, double factor) {
  const autograd::GradientSums how = autograd::gradient_sums(parameter);
  const bool wide = is_half(parameter.dtype()) && how == autograd::GradientSums::f32;
  Tensor fresh = from_data(sum, parameter.sizes(), {.dtype = dtype_of<T>});
  if (factor != 1) fresh.mul_(factor);
  Tensor gradient = fresh.to(parameter.device(), wide ? DType::f32 : parameter.dtype());
  if (earlier.defined() && how == autograd::GradientSums::stochastic)
    gradient = autograd::add_gradient(earlier, gradient, how);
  else if (earlier.defined()) gradient = add(earlier, gradient);
  gradient.set_category(Category::gradients);
  return gradient;
}

// One backward over all shards of all ranks.
template <class T> struct DataParallel::Step {
  DataParallel& all;
  const data::Batch& batch;
  const Loss& loss;
  RandomKey key;
  RandomKey start;  // of default_generator(), before the step
  std::int64_t whole = batch.whole ? batch.whole : batch.size();
  Range own = all.own_shards();
  amp::BeforeStep before{tensors_of(all.buffers_), tensors_of(all.parameters_), amp::BeforeStep::Gradients::dropped,
                         all.run_ ? all.run_->quantization() : nullptr, start};
  amp::NoiseOfGradients earlier_noise = {};  // of earlier calls, the same on all ranks
  std::int64_t earlier_hidden = 0;           // operands in which earlier calls hid Inf or NaN, on all ranks
  ShardWeights weights{all.ranks_, all.shards_, whole};
  Buckets<T> buckets{all, key};

  std::vector<T> numbers_about(const Shard& shard) const {
    const NoGrad off;
    std::vector<T> out(kCounted + 2 * static_cast<std::size_t>(all.shards_));
    if (shard.loss.defined() && shard.weight != 0) out[kLoss] = static_cast<T>(shard.loss.item() * shard.weight);
    const std::int64_t hidden = take_hidden(all.run_);
    if (shard.weight != 0) out[kHidden] = static_cast<T>(hidden);
    T* const counted = out.data() + kCounted + 2 * shard.k;
    counted[0] = static_cast<T>(shard.divisor.counted);
    counted[1] = static_cast<T>(shard.divisor.counted - static_cast<double>(counted[0]));
    const double share = shard.share;
    for (const auto& [name, p] : all.parameters_) out.push_back(p.grad().defined() ? 1 : 0);
    for (std::size_t i = 0; i < before.buffers().size(); ++i)
      append_gains(out, all.buffers_[i].second, before.buffers()[i], share);
    if (!all.noise_) return out;
    const amp::NoiseOfGradients noise = all.run_->quantization()->take_noise();
    for (const auto& [name, p] : all.parameters_) {
      const auto of_weight = noise.find(amp::storage_id(p));
      const bool counts = of_weight != noise.end() && shard.weight != 0;
      const double by = counts ? shard.weight * shard.weight : 0;
      const amp::GradientNoise measured = counts ? of_weight->second : amp::GradientNoise{};
      out.push_back(static_cast<T>(measured.squares * by));
      out.push_back(static_cast<T>(measured.excess * by));
    }
    return out;
  }

  // Squares of independent shards add up.
  amp::NoiseOfGradients noise_of_batch(double factor) const {
    amp::NoiseOfGradients sum = earlier_noise;
    const double by = factor * factor;
    const T* numbers = buckets.sums[buckets.last].data() + all.about_ - 2 * all.parameters_.size();
    for (const auto& [name, p] : all.parameters_) {
      if (numbers[0] != 0) sum[amp::storage_id(p)] += {by * numbers[0], by * numbers[1]};
      numbers += 2;
    }
    return sum;
  }

  void run_shard(Shard& shard) {
    const std::int64_t k = shard.k;
    const Range samples = weights.samples_of(k);
    for (const auto& [name, p] : all.parameters_) p.zero_grad();
    before.restore_buffers();
    if (k + 1 == own.last) buckets.exchange_on_the_way();
    if (samples.size() > 0) {
      Generator generator = generator_of(key, k);
      const GeneratorScope scope(generator);
      const Range here{samples.first - batch.first, samples.last - batch.first};
      weights.weigh(shard, loss_of(part_of(batch, here)));
      const Tensor seed = seed_of(shard);
      buckets.run_backward(shard, seed);
    }
    buckets.close_rest(shard);
    buckets.close_last(shard, numbers_about(shard));
  }

  ShardLoss loss_of(const data::Batch& part) const {
    if (!all.run_) return loss(part);
    std::optional<ShardLoss> computed;
    all.run_->forward([&] { return computed.emplace(loss(part)).value; });
    return *computed;
  }

  // What backward starts from. In lockstep a shard that counts nothing still hands on the gradients of the others'
  // losses, in the unit of its samples; its own is 0.
  Tensor seed_of(Shard& shard) const {
    if (!all.options_.synchronized_batch_norm || shard.weight != 0) return shard.loss;
    shard.weight = shard.share;
    const Tensor nothing = mul(shard.loss, 0.0);
    shard.loss = Tensor();
    return nothing;
  }

  // Runs this rank's shards in lockstep. Gradients and buffers are those of the shard that runs.
  void run_together() {
    if (whole < all.shards_)
      throwf("DataParallel: a batch of {} samples for {} shards; synchronised batch norm needs one each", whole,
             all.shards_);
    std::vector<Tensor> beginning(all.parameters_.size());  // no gradient
    beginning.insert(beginning.end(), before.buffers().begin(), before.buffers().end());
    // of the shards that wait
    std::vector<std::vector<Tensor>> waiting(static_cast<std::size_t>(own.size()), beginning);
    std::vector<amp::NoiseOfGradients> waiting_noise(waiting.size());
    const auto swap = [&](int i) {
      const auto k = static_cast<std::size_t>(i);
      swap_tensors(waiting[k], all.parameters_, all.buffers_);
      if (!all.noise_) return;
      amp::NoiseOfGradients now = all.run_->quantization()->take_noise();
      all.run_->quantization()->put_noise(std::exchange(waiting_noise[k], std::move(now)));
    };
    const auto join = [&](const std::vector<Tensor>& brought) {
      return sum_over_shards(all.ranks_, all.shards_, own.first, brought);
    };
    const auto run = [&](int i, const Meet& meet) {
      Shard shard = weights.shard(own.first + i);
      const Meet sum = [&](const Tensor& t) {
        return apply(std::make_shared<SumOfShards>(meet, shard.weight), {t})[0];
      };
      const Scoped scope(modes().sum_over_parts, &sum);
      run_shard(shard);
    };
    in_lockstep(static_cast<int>(own.size()), run, join, swap);
  }

  // Buffers gain what they gained in all shards, and parameters get the sum of the shards' gradients.
  void give_back() const {
    const NoGrad off;
    const std::size_t last = buckets.last;
    const std::vector<std::vector<T>>& sums = buckets.sums;
    const std::size_t flags = kCounted + 2 * static_cast<std::size_t>(all.shards_);
    const std::optional<double> factor = weights.factor(buckets.counted());
    const T* from = sums[last].data() + flags + all.parameters_.size();
    for (std::size_t i = 0; i < before.buffers().size(); ++i) {
      const Tensor& b = all.buffers_[i].second;
      add_gains(b, before.buffers()[i], std::vector<T>(from, from + b.numel()));
      from += b.numel();
    }
    for (std::size_t bucket = 0; bucket <= last; ++bucket) {
      from = sums[bucket].data() + (bucket == last ? all.about_ : 0);
      for (const std::size_t i : all.buckets_[bucket]) {
        const Tensor& p = all.parameters_[i].second;
        const Tensor earlier = before.gradients()[i];
        const bool has_gradient = sums[last][flags + i] > 0;
        std::vector<T> sum(from, from + p.numel());
        p.set_grad(has_gradient ? added(earlier, p, sum, factor.value_or(1)) : earlier);
        from += p.numel();
      }
    }
  }

  Tensor run() {
    earlier_hidden = take_hidden(all.run_);
    if (all.noise_) earlier_noise = all.run_->quantization()->take_noise();
    return before.whole([&] { return sum_of_shards(); });
  }

  Tensor sum_of_shards() {
    amp::QuantizationState* const quantization = all.run_ ? all.run_->quantization() : nullptr;
    std::optional<Scoped<amp::QuantizationState::Purpose>> purpose;
    if (quantization) purpose.emplace(quantization->purpose, amp::QuantizationState::Purpose::part_of_step);
    if (!weights.own_samples()) weights.agree_without_samples();
    if (all.options_.synchronized_batch_norm) run_together();
    for (std::int64_t k = own.first; k < own.last && !all.options_.synchronized_batch_norm; ++k) {
      Shard shard = weights.shard(k);
      run_shard(shard);
    }
    if (buckets.thread.valid()) buckets.thread.get();
    if (quantization) advance_histories(*quantization, all.ranks_);
    before.restore_buffers();
    buckets.sum_rest();
    give_back();
    const std::vector<T>& total = buckets.sums[buckets.last];  // of the header fields
    if (quantization)
      put_hidden(*quantization, earlier_hidden + static_cast<std::int64_t>(total[kHidden]),
                 all.parameters_[0].second.device());
    if (buckets.last > 0 && !std::exchange(all.ordered_, true)) {
      all.ranks_.broadcast(all.order_.data(), all.order_.size() * sizeof(std::size_t), 0);
      all.fill_buckets();
    }
    const std::optional<double> factor = weights.factor(buckets.counted());
    if (all.noise_) quantization->put_noise(noise_of_batch(factor.value_or(1)));
    const double mean = factor ? static_cast<double>(total[kLoss]) * *factor : std::nan("");
    return full({}, mean, {.dtype = all.options_.sum});
  }
};

Tensor DataParallel::backward(const data::Batch& batch, const Loss& loss) {
  if ((batch.whole ? batch.whole : batch.size()) < 1) throw_error("DataParallel: the batch has no samples");
  const RandomKey start = default_generator().state();
  const RandomKey key = default_generator().next();
  return options_.sum == DType::f64 ? Step<double>{*this, batch, loss, key, start}.run()
                                    : Step<float>{*this, batch, loss, key, start}.run();
}

DataParallel::Exchanged DataParallel::take_exchanged() {
  Exchanged own;
  if (exchange_) own = {std::exchange(exchange_->kept().counts, {}), std::exchange(exchange_->kept().bytes, 0)};
  std::vector<Exchanged> all(static_cast<std::size_t>(ranks_.size()));
  ranks_.all_gather(&own, sizeof own, all.data());
  Exchanged sum;
  for (const Exchanged& e : all) {
    sum.lost += e.lost;
    sum.bytes += e.bytes;
  }
  return sum;
}

StateDict DataParallel::state_dict() {
  StateDict state;
  if (!exchange_) return state;
  state.set("ranks", std::int64_t{emulated_});
  for (const auto& [name, values] : exchange_->kept().residuals) {
    const std::string own(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    const std::vector<std::string> names = ranks_.all_gather(name);
    const std::vector<std::string> all = ranks_.all_gather(own);
    for (std::size_t r = 0; r < all.size(); ++r) {
      RankSum::Values theirs(all[r].size() / sizeof(float));
      std::ranges::copy(all[r], reinterpret_cast<char*>(theirs.data()));
      state.set(names[r], from_data(theirs, {static_cast<std::int64_t>(theirs.size())}));
    }
  }
  return state;
}

void DataParallel::load_state_dict(const StateDict& state) {
  if (!exchange_) return;
  if (const std::int64_t ranks = state.integer("ranks"); ranks != emulated_)
    throwf("DataParallel: the state is of {} ranks, here are {}; each keeps what its rounding took", ranks, emulated_);
  for (auto& [name, values] : exchange_->kept().residuals) values = state.tensor(name).to_vector<float>();
}

data::DataLoader::Fetch own_shards(const Communicator& ranks, int shards, data::DataLoader::Fetch fetch) {
  const Range own = part_of(shards, ranks.size(), ranks.rank());
  return [own, shards, fetch = std::move(fetch)](const std::vector<std::int64_t>& indices) {
    const auto whole = static_cast<std::int64_t>(indices.size());
    const RandomKey start = default_generator().state();
    data::Batch out{.inputs = {}, .targets = {}, .first = part_of(whole, shards, own.first).first, .whole = whole};
    std::vector<Tensor> inputs, targets;
    std::vector<std::vector<Tensor>> fields;
    for (std::int64_t k = own.first; k < own.last; ++k) {
      const Range part = part_of(whole, shards, k);
      if (part.size() == 0) continue;
      Generator generator(RandomKey{start.seed, start.stream + (static_cast<std::uint64_t>(k) << 10)});
      const GeneratorScope scope(generator);
      const data::Batch one = fetch({indices.begin() + part.first, indices.begin() + part.last});
      inputs.push_back(one.inputs);
      if (one.targets.defined()) targets.push_back(one.targets);
      fields.resize(one.fields.size());
      out.fields = one.fields;
      for (std::size_t i = 0; i < fields.size(); ++i) fields[i].push_back(one.fields[i].second);
    }
    if (!inputs.empty()) out.inputs = cat(inputs, 0);
    if (!targets.empty()) out.targets = cat(targets, 0);
    for (std::size_t i = 0; i < fields.size(); ++i) out.fields[i].second = cat(fields[i], 0);
    return out;
  };
}

}  // namespace gradual::dist
