// The ledger of a training step: a row for each op of forward, backward and optimizer, with the effect of rounding on
// its results and the range of their numbers.
//
//   inspect::Ledger ledger(model);
//   { const ObserverScope scope(ledger); run.step([&] { return cross_entropy(model(x), y); }); }
//   std::puts(ledger.to_string().c_str());
//   ledger.first_nonfinite();     // the row that made the first NaN or Inf, or null
//
// A call of an optimizer has a row for each parameter, by name: "adam_step_ of fc2.weight". Quantisers have rows, too,
// before the contraction whose operands they round. The ledger costs one pass over the numbers of every result; nothing
// else changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "names.h"
#include "numbers.h"
#include "op_row.h"

namespace gradual::inspect {

struct LedgerRow : OpRow {
  OpKind kind = OpKind::Elementwise;
  std::string inputs = {};                  // "[32, 784] f32 x [512, 784] f32"
  DType from = DType::f32;                  // of the first input
  CastCounts counts = {};                   // the op's narrowing stores; elements is 0 if there are none
  Numbers numbers = {};                     // of all floating results; for an optimizer the parameter's new values
  bool nonfinite_inputs = false;            // set only if the results are not finite
  std::vector<std::int64_t> reads = {};     // the rows of this ledger that made the inputs
  std::vector<std::int64_t> operands = {};  // by input: the row that made it; -1: none did
  bool nonfinite_number = false;            // an operand that is a number, not a tensor, is NaN or Inf
  // For a cast and a quantiser: 10 log10(sum x^2 / sum (x - y)^2), Inf if exact. NaN for every other op.
  double sqnr_db = std::numeric_limits<double>::quiet_NaN();
  // Of the same errors: the mean error in units of the root mean square of x, and the part of x in it (ErrorSum), with
  // half their 95% intervals.
  double bias = std::numeric_limits<double>::quiet_NaN();
  double bias_interval = std::numeric_limits<double>::quiet_NaN();
  double gain = std::numeric_limits<double>::quiet_NaN();
  double gain_interval = std::numeric_limits<double>::quiet_NaN();
  // For a product or a sum in an AccumulatorScope: the accumulator, and the SQNR of the result against f32 sums.
  std::string accumulator = {};
  double accumulation_db = std::numeric_limits<double>::quiet_NaN();  // NaN for every other op
  // For an addition that stores f16 or bf16: the number of elements to which a nonzero number of a tensor is added, and
  // of those that do not change because that number is below half an ulp.
  std::int64_t added = 0;
  std::int64_t swamped = 0;
  // For an optimizer: the state tensors after the update, in the optimizer's order, and their dtype. For Adam also eps,
  // whether it is 0 in the arithmetic of the step (the parameter's dtype under UpdateOptions::pure_arithmetic), and the
  // number of second moments that are 0 while the first is not.
  std::vector<Numbers> state = {};
  DType state_dtype = DType::f32;
  double eps = 0;
  bool eps_is_zero = false;
  std::int64_t lost_moments = 0;

  // The results, and for an optimizer the state.
  bool finite() const { return numbers.finite() && std::ranges::all_of(state, &Numbers::finite); }
};

class Ledger final : public Observer {
 public:
  // The model gives the names of parameters; it must own the optimizer's parameters. Without a model, names are empty.
  Ledger() = default;
  explicit Ledger(const nn::Module& model) : names_(model) {}

  bool wants_counts() const override { return true; }
  void before(const OpCall& call, const CallRecord& record) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  const std::vector<LedgerRow>& rows() const { return rows_; }
  void clear() {
    rows_.clear();
    made_by_.clear();
  }
  // The first row whose results have NaN or Inf although its inputs have none; null if there is none. A mask of -Inf
  // (where, fill_ or pad with that number) does not count.
  const LedgerRow* first_nonfinite() const;
  // The origin of the NaN or Inf of a row: the first row among all that led to it which is not finite and reads no such
  // row. Its nonfinite_inputs are false if it made them, and true if no op did (data, parameters). A row that made them
  // is preferred. Null for a finite row.
  const LedgerRow* origin(const LedgerRow& row) const;

  std::string to_string() const;  // a table
  std::string to_csv() const;     // RFC 4180 with a header line
  std::string to_jsonl() const;   // one object per line

 private:
  void add_parameters(const OpCall& call, const CallRecord& record);
  LedgerRow row(const OpCall& call, const CallRecord& record) const;
  std::int64_t writer_of(const Tensor& t) const;  // the number of the row that wrote it last; -1: none
  void add(LedgerRow row, const Tensor& result);

  ParameterNames names_;
  std::vector<bool> nonfinite_;  // inputs of the running call, if it overwrites them; by parameter of an optimizer's
  std::unordered_map<std::uint64_t, std::int64_t> made_by_;  // the row that wrote a storage last
  std::vector<LedgerRow> rows_;
};

}  // namespace gradual::inspect
