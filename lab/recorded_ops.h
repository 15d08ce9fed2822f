// The ops of a part of a program, with all numbers that they start from: they can be run again, in f64, with errors or
// in other orders, without the program.
//
//   RecordedOps ops(model);
//   { const UnfusedScope parts; const ObserverScope scope(ops); run.step([&] { return loss(); }); }
//   for (const RecordedOp& op : ops.all()) ...
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/formats/accumulator.h"
#include "../core/observe/observer.h"
#include "../core/quantize/quantizer.h"
#include "../core/quantize/quantizer_call.h"
#include "../inspect/names.h"
#include "../nn/module.h"

namespace gradual::lab {

// A view of numbers that are known by the id of their storage. 0: an undefined tensor.
struct RecordedTensor {
  std::uint64_t storage = 0;
  std::int64_t elements = 0;  // of the storage
  Shape sizes, strides;
  std::int64_t offset = 0;
  DType dtype = DType::f32;

  bool defined() const { return storage != 0; }
  bool is_floating() const { return defined() && gradual::is_floating(dtype); }
  std::int64_t numel() const;
};

// What a recorded op is: an op of the program; a quantizer's call, whose input is rounded and whose outputs are its
// values and, where they are apart, its scale; the beginning of a rewritten op (amp/rewrite.h) with its inputs, of
// which the ops that follow are the parts, and its end with its output.
enum class Recorded : std::uint8_t { op, quantizer, rewritten_begins, rewritten_ends };

// A quantizer's call on the CPU as it can be made again. A delayed scale has become the number that it was.
struct RecordedQuantizer {
  Quantizer quantizer;
  int axis = -1;
  QuantizerCall::Circumstances circumstances;
};

struct RecordedOp {
  Recorded kind = Recorded::op;
  OpId op = OpId::custom;  // no view; of a rewritten op the one that it replaces
  bool inside = false;     // it is a part of a rewritten op
  std::optional<RecordedQuantizer> quantizer = {};
  Attrs attrs;
  std::string module;  // path
  Phase phase = Phase::forward;
  std::optional<Accumulator> accumulator;
  bool tf32 = false;
  std::vector<RecordedTensor> inputs;
  std::array<RecordedTensor, kMaxOutputs> outputs;
  // Numbers that storages have before the op: at their first use, and where something other than an op wrote them.
  std::vector<std::pair<std::uint64_t, Tensor>> starts;
  std::array<Tensor, kMaxOutputs> given;  // what the program computed: f64, of floating outputs
  // Of an optimizer's op: the parameter's name, and its inputs after the op (f64 of floating ones, by their numbers).
  std::string parameter;
  std::vector<Tensor> inputs_after;

  const RecordedTensor& input(std::size_t i) const { return inputs.at(i); }
};

// Holds no tensor of the program, so that memory is used again as without it. Error for an op that updates several
// parameters (UnfusedScope), for user functions, for products of f8 instructions, and for a rewritten op that computes
// with numbers which neither an op nor a quantizer gave, such as the windows of a convolution that are rounded one by
// one.
class RecordedOps final : public Observer {
 public:
  explicit RecordedOps(const nn::Module& model) : names_(model) {}

  void before(const OpCall& call, const CallRecord& record) override;
  void after(const OpCall& call, const gradual::Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  const std::vector<RecordedOp>& all() const { return ops_; }

 private:
  RecordedTensor recorded(const Tensor& t);
  RecordedOp begun(const Context& where, Recorded kind, OpId op) const;
  void start(RecordedOp& op, const Tensor& t);
  bool is_known(const Tensor& t) const;
  void know(const Tensor& t);
  void decoded(const QuantizerCall& call);

  inspect::ParameterNames names_;
  std::map<std::uint64_t, std::uint32_t> versions_;  // of storages, after the last op that read or wrote them
  std::map<std::uint64_t, RecordedTensor> codes_;    // what codes of this step stand for; undefined: rounded numbers
  int rewritten_ = 0;                                // rewritten ops that are running
  std::vector<RecordedOp> ops_;
  std::vector<std::size_t> running_;  // the ops of ops_ that have begun and not ended
};

// Numbers by storage, as far as ops have run.
class RecordedNumbers {
 public:
  void start(const RecordedOp& op);
  void forget(const RecordedOp& op);  // the storages that start() would set
  bool knows(const RecordedTensor& t) const { return storages_.contains(t.storage); }
  // A copy in f64 (integers and bool keep their dtype), of t's sizes; undefined for an undefined tensor.
  Tensor read(const RecordedTensor& t) const;
  void write(const RecordedTensor& t, const Tensor& numbers);

 private:
  std::map<std::uint64_t, Tensor> storages_;
};

}  // namespace gradual::lab
