// The ops of a part of a program, with all numbers that they start from: they can be run again, in f64, with errors or
// in other orders, without the program.
//
//   RecordedOps ops(model);
//   { const UnfusedScope parts; const ObserverScope scope(ops); run.step([&] { return loss(); }); }
//   for (const RecordedOp& op : ops.all()) ...
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/formats/accumulator.h"
#include "../core/observe/observer.h"
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

struct RecordedOp {
  OpId op = OpId::custom;
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
// parameters (UnfusedScope), for user functions, and for quantised operands and results.
class RecordedOps final : public Observer {
 public:
  explicit RecordedOps(const nn::Module& model) : names_(model) {}

  void before(const OpCall& call, const CallRecord& record) override;
  void after(const OpCall& call, const gradual::Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  const std::vector<RecordedOp>& all() const { return ops_; }

 private:
  RecordedTensor recorded(const Tensor& t);
  void start(RecordedOp& op, const Tensor& t);

  inspect::ParameterNames names_;
  std::map<std::uint64_t, std::uint32_t> versions_;  // of storages, after the last op that read or wrote them
  std::vector<RecordedOp> ops_;
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
