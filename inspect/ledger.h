// The ledger of a training step: a row for each op of forward, backward and optimizer, with what rounding did to its
// results and what stands in them.
//
//   inspect::Ledger ledger(model);
//   { const ObserverScope scope(ledger); run.step([&] { return cross_entropy(model(x), y); }); }
//   std::puts(ledger.to_string().c_str());
//   ledger.first_nonfinite();     // the row that made the first NaN or Inf, or null
//
// A call of an optimizer has a row for each parameter, by name: "adam_step_ of fc2.weight". Quantisers are ops
// (fake_quantize, quantize within a contraction), and have rows as well. Reading the numbers of every result costs a
// pass over them: nothing else differs.
#pragma once

#include <cstdint>
#include <string>
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
  Numbers numbers = {};  // of all floating results; of an optimizer's row: the parameter's new values
  bool nonfinite_inputs = false;
  double sqnr_db = 0;  // of a cast: 10 log10(sum x^2 / sum (x - y)^2), Inf: exact; NaN for every other op
  // Of an optimizer's row: the state tensors, after the update, in the optimizer's order; of Adam's also its eps, and
  // of a step in the parameter's own dtype (UpdateOptions::pure_arithmetic) whether it is 0 there.
  std::vector<Numbers> state = {};
  double eps = 0;
  bool eps_is_zero = false;

  // "adam_step_ of fc2.weight", "matmul (backward of linear) in layer fc1".
  std::string site() const;
};

class Ledger final : public Observer {
 public:
  // Names of parameters come from the model, which must have the parameters that the optimizer has. Without one they
  // have none.
  Ledger() = default;
  explicit Ledger(const nn::Module& model) : names_(model) {}

  bool wants_counts() const override { return true; }
  void before(const OpCall& call) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;

  const std::vector<LedgerRow>& rows() const { return rows_; }
  void clear() { rows_.clear(); }
  // The first row whose results hold NaN or Inf while its inputs held none; null where there is none.
  const LedgerRow* first_nonfinite() const;

  std::string to_string() const;  // a table for people
  std::string to_csv() const;     // RFC 4180, a header line first
  std::string to_jsonl() const;   // an object a line

 private:
  void add_parameters(const OpCall& call, const CallRecord& record);
  LedgerRow row(const OpCall& call, const CallRecord& record);

  ParameterNames names_;
  bool nonfinite_inputs_ = false;           // of the call that runs; in-place ops overwrite theirs
  std::vector<bool> nonfinite_parameters_;  // the same of each parameter of an optimizer's call
  std::vector<LedgerRow> rows_;
};

}  // namespace gradual::inspect
