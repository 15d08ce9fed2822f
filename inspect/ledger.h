// The ledger of a training step: a row for each op of forward, backward and optimizer, with what rounding did to its
// results and what stands in them.
//
//   inspect::Ledger ledger(model);
//   { const ObserverScope scope(ledger); run.step([&] { return cross_entropy(model(x), y); }); }
//   std::puts(ledger.to_string().c_str());
//   ledger.first_nonfinite();     // the row that made the first NaN or Inf, or null
//
// A call of an optimizer has a row for each parameter, by name: "adam_step_ of fc2.weight". Quantisers have rows as
// well, within the contraction whose operands they round. Reading the numbers of every result costs a pass over them:
// nothing else differs.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/observe/observer.h"
#include "numbers.h"
#include "parameter_names.h"

namespace gradual::inspect {

struct LedgerRow {
  std::int64_t number = 0;  // of the row, from 0
  Phase phase = Phase::forward;
  OpKind kind = OpKind::Elementwise;
  std::string op = {};           // "linear"; of a user's function its own name
  std::string parameter = {};    // that an optimizer's row is of, or that the op reads first: "fc2.weight"
  std::string backward_of = {};  // in backward: the op whose gradient this computes
  std::string module = {}, line = {}, cause = {};
  std::string inputs = {}, results = {};     // "[32, 784] f32 x [512, 784] f32", "[32, 512] f32"
  DType from = DType::f32, to = DType::f32;  // of the first input and of the first result
  CastCounts counts = {};                    // of the op's narrowing stores: elements is 0 where it made none
  Numbers numbers = {};                  // of all floating results; of an optimizer's row: the parameter's new values
  bool nonfinite_inputs = false;         // known where the results are not finite
  std::vector<std::int64_t> reads = {};  // the rows that made the inputs, as far as this ledger has them
  bool nonfinite_number = false;         // an operand that is a number, not a tensor, is NaN or Inf
  // Of a cast and a quantiser: 10 log10(sum x^2 / sum (x - y)^2), Inf: exact. NaN for every other op.
  double sqnr_db = 0;
  // Of a product or a sum in an AccumulatorScope: the accumulator, and the SQNR of the result against f32 sums.
  std::string accumulator = {};
  double accumulation_db = 0;  // NaN for every other op
  // Of an addition that stores f16 or bf16: elements to which a number other than 0 of a tensor is added, and those of
  // them that it leaves as they were, for it is below half an ulp.
  std::int64_t added = 0, swamped = 0;
  // Of an optimizer's row: the state tensors, after the update, in the optimizer's order, and their dtype; of Adam's
  // also its eps, of a step in the parameter's own dtype (UpdateOptions::pure_arithmetic) whether it is 0 there, and
  // how many second moments are 0 while the first is not.
  std::vector<Numbers> state = {};
  DType state_dtype = DType::f32;
  double eps = 0;
  bool eps_is_zero = false;
  std::int64_t lost_moments = 0;

  bool finite() const;  // the results, and of an optimizer's row the state

  // "adam_step_ of fc2.weight", "matmul (backward of linear) in layer fc1".
  std::string site() const;
};

// Where a row is, for people: LedgerRow::site() of these fields.
std::string site_text(const std::string& op, const std::string& parameter, const std::string& backward_of,
                      const std::string& module);

class Ledger final : public Observer {
 public:
  // Names of parameters come from the model, which must have the parameters that the optimizer has. Without one they
  // have none.
  Ledger() = default;
  explicit Ledger(const nn::Module& model) : names_(model) {}

  bool wants_counts() const override { return true; }
  void before(const OpCall& call) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  const std::vector<LedgerRow>& rows() const { return rows_; }
  void clear() { rows_.clear(), made_by_.clear(); }
  // The first row whose results hold NaN or Inf while its inputs held none; null where there is none. A mask of -Inf is
  // none: where, fill_ or pad with that number.
  const LedgerRow* first_nonfinite() const;
  // Where the NaN or Inf of a row came from: the first row on the way to it, through what each op reads, that has them
  // and reads no row that has. Its nonfinite_inputs are false if it made them, and true if no op did (data,
  // parameters). A row that made them is preferred. Null for a finite row.
  const LedgerRow* origin(const LedgerRow& row) const;

  std::string to_string() const;  // a table for people
  std::string to_csv() const;     // RFC 4180, a header line first
  std::string to_jsonl() const;   // an object a line

 private:
  void add_parameters(const OpCall& call, const CallRecord& record);
  LedgerRow row(const OpCall& call, const CallRecord& record) const;
  LedgerRow row(const Context& c, std::string_view op, OpKind kind, const SourceLocation& line) const;
  void reads(LedgerRow& row, const Tensor& t) const;
  void add(LedgerRow row, const Tensor& result);

  ParameterNames names_;
  // Of the call that runs, for ops that overwrite their inputs.
  bool nonfinite_inputs_ = false;
  std::vector<bool> nonfinite_parameters_;                   // of each parameter of an optimizer's call
  std::unordered_map<std::uint64_t, std::int64_t> made_by_;  // the row that wrote a storage last
  std::vector<LedgerRow> rows_;
};

}  // namespace gradual::inspect
