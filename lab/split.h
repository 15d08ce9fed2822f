// Tensor-parallel and sequence-parallel splits of a model, emulated in one process: for the numbers they are groupings
// of sums, and places where amaxes are found.
//
//   const Split split{.kind = SplitKind::rows, .parts = 4, .exchange = amp::exchange_from_name("bf16/ring")};
//   { const SplitScope scope(split, model); run.step([&] { return cross_entropy(model(x), y); }); }
//
// Products are taken apart where the program calls them, above Amp, so that casts and quantizers see the parts as ranks
// do. Models and recipes stay as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../amp/exchange.h"
#include "../amp/quantization.h"
#include "../core/ops/dispatch.h"
#include "../core/ops/fusions.h"
#include "../core/ops/op.h"
#include "../nn/module.h"

namespace gradual {
namespace lab {

// Shoeybi et al. 2019 (columns, rows, heads), Korthikanti et al. 2022 (sequence).
enum class SplitKind : std::uint8_t {
  columns,   // each part has some output features, or channels, of each linear layer and convolution. The gradients of
             // its input are summed
  rows,      // each part has some input features or channels. The partial products of forward are summed
  heads,     // attention: columns of q, k and v by heads, each part's heads, rows of the output projection
  sequence,  // each part has some tokens of each linear layer and norm. The gradients of parameters are summed
  samples    // each part has some samples of each linear layer, convolution and norm of rows, as a data-parallel rank
             // has. The gradients of parameters are summed. A batch norm sees all samples, as a synchronised one does
};
// Whose amax the one scale of a tensor follows from. Scales of rows and blocks are always those of the part.
enum class SplitScales : std::uint8_t {
  agreed,  // that of all parts, by an all-reduce of amaxes, as Transformer Engine does
  own      // the part's own
};

struct Split {
  SplitKind kind = SplitKind::columns;
  int parts = 1;
  SplitScales scales = SplitScales::agreed;
  amp::Exchange exchange = {};           // of partial sums; by default f32
  std::vector<std::string> except = {};  // modules, by path and with their children, which every part has whole
};

}  // namespace lab

template <>
inline constexpr std::string_view kEnumNames<lab::SplitKind>[] = {"columns", "rows", "heads", "sequence", "samples"};
template <> inline constexpr std::string_view kEnumNames<lab::SplitScales>[] = {"agreed", "own"};

namespace lab {

// "columns=4". Error that lists the kinds.
Split split_from_name(std::string_view text);
SplitScales split_scales_from_name(std::string_view text);
// "columns=4; scales agreed; exchange bf16, gather": one line.
std::string describe(const Split& split);
// Error for less than one part, for an exchange that is not emulated (split_sum.h), and for scales of their own where
// the recipe keeps histories of amaxes, which parts do not have.
void check_valid(const Split& split, const std::optional<amp::Quantization>& quantization);

// The gradient of an input of a split op, of all parts.
struct SplitGradient {
  OpId op = OpId::custom;
  int input = 0;
  int dims = 0;  // of the op's first input
  Tensor gradient;
};

// Is told each op that is split, before its parts run and with its whole results, and of its backward the begin and the
// gradient of each input that needs one, in the order of inputs. All ops of its parts have run before the first one.
struct SplitWatcher {
  virtual ~SplitWatcher() = default;
  virtual void begins() = 0;
  virtual void ends(const OpCall& call, const gradual::Outputs& whole) = 0;
  virtual void backward_begins() = 0;
  virtual void backward_gives(const SplitGradient& gradient) = 0;
};

// While it lives, ops of this thread's forward passes run in parts: linear and matmul with a matrix; with columns, rows
// and samples also conv2d; with sequence and samples also layer_norm and rms_norm over the last dim; with heads every
// scaled_dot_product_attention, and of the products those of nn::MultiheadAttention. Their gradients follow, also those
// of segments that backward computes again. Fused ops run as their parts. A single part runs as without a split.
// An op's result has its usual dtype; partial sums are f32 before the exchange rounds them. A recipe that rounds the
// results of ops rounds that of all parts in forward, in backward also those of parts.
// Error naming the layer and the size for one that parts do not divide, for columns and rows of a grouped convolution,
// for heads without an nn::MultiheadAttention or with dropout in attention, whose mask the parts would repeat, and
// within another SplitScope.
class SplitScope : Pinned {
 public:
  // watcher: is told of no backward after the scope has ended.
  SplitScope(const Split& split, nn::Module& model, SplitWatcher* watcher = nullptr);
  ~SplitScope();

  std::int64_t ops() const;  // split so far, without those of segments that are computed again
  void check_used() const;   // Error if none

 private:
  struct State;
  struct Result;
  struct Input;
  class Stage;
  std::shared_ptr<State> state_;
  std::shared_ptr<Stage> stage_;
  UnfusedScope unfused_;
  std::optional<StageScope> installed_;
};

}  // namespace lab
}  // namespace gradual
