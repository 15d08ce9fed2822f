// The shadow of a training step runs every op once more in f64. It tells how much of an error an op makes and how much
// it inherits.
//
//   inspect::Shadow shadow(model, &run.optimizer(), {.attribution = true});
//   { const ObserverScope scope(shadow); run.step([&] { return cross_entropy(model(x), y); }); }
//   std::puts(shadow.to_string().c_str());
//   std::puts(to_string(shadow.attribution()).c_str());      // which op's error moves the loss
//
// For an op with input x and output y, and F the op in f64:
//   local error      y - F(x)      what this op loses on its actual inputs
//   inherited error  F(x) - F(x')  the effect of the errors of its inputs; x' are the inputs of the shadow
//   total error      y - F(x')     their sum
// The shadow starts from the same data and from FP32 masters if the optimizer has them. It makes the same random draws
// and has its own batch statistics. A quantised contraction is one row, with the errors of its quantisers and products
// as parts of its local error; a user's function is one row, too. The shadow observes the steps of this thread and
// continues from its own parameters; make a new one to restart from the program's. It reads numbers and changes none.
// Its memory counts as workspace, apart from the program's categories. A program that writes numbers without ops
// (data<T>()) must bump the tensor's version, or the shadow misses the write. If an exception leaves a step, its rows
// remain incomplete; the next step is observed as any other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../autograd/autograd.h"
#include "../optim/optimizer.h"
#include "error_source.h"
#include "mirror.h"
#include "names.h"
#include "numbers.h"
#include "op_row.h"

namespace gradual::inspect {

// A part of a contraction's local error, with its share of the error in the loss.
struct ErrorPart {
  ErrorSource source = ErrorSource::whole;
  double squares = 0;
  double share = 0;
};

// The errors of the first output (Comparison), and the op (OpRow).
struct ShadowRow : OpRow, Comparison {
  bool quantised = false;               // a quantiser, or a contraction of quantised operands
  std::optional<Product> product = {};  // of such a contraction
  double decided_otherwise = 0;         // share of elements: a relu's other side, a pool's other maximum, another index
  std::vector<ErrorPart> parts = {};
  // The share of the error in the loss: <local error, gradient of the output>, in units of the loss. The gradient is
  // the mean of the shadow's and of the same ops in f64 on the step's own numbers, which is correct to second order in
  // the errors. first_order uses only the shadow's gradient.
  double share = 0;
  double first_order = 0;
  std::string not_exact = {};  // why the op has no f64 form; its shadow then starts from its own results
};

struct Attribution {
  double loss = 0;                          // the loss of the step and of its shadow
  double exact_loss = 0;                    // without the loss scale
  double explained = 0;                     // sum of the shares
  double first_order = 0;                   // sum of the first_order shares
  std::int64_t decisions = 0;               // elements of forward that f64 decides otherwise
  std::vector<const ShadowRow*> rows = {};  // rows with a share, by |share|, largest first

  double difference() const { return loss - exact_loss; }
};
std::string to_string(const Attribution& attribution, std::size_t rows = 12, const LayerNames& name = {});

struct ShadowOptions {
  bool attribution = false;  // follows gradients for attribution(), at about twice the cost
};

class Shadow final : public Observer, private autograd::GradientObserver {
 public:
  // optimizer: the shadow's parameters start from its FP32 masters. Null: from the parameters themselves.
  explicit Shadow(const nn::Module& model, optim::Optimizer* optimizer = nullptr, const ShadowOptions& options = {});
  explicit Shadow(const ShadowOptions& options = {});
  ~Shadow() override;

  void before(const OpCall& call, const CallRecord& record) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  const std::vector<ShadowRow>& rows() const { return rows_; }
  // The shadow's numbers of a tensor that still has its numbers of the step: a parameter, its gradient, the loss.
  Tensor exact(const Tensor& t) { return mirror_.of(t); }
  // The attribution of the last backward. That must begin from the loss: a tensor of one element whose gradient is 1 or
  // the loss scale. Only first outputs have shares. The rows are valid until the next op is observed. Error before any
  // backward, for a backward that began otherwise, and without the option.
  Attribution attribution() const;
  // Called with the errors of each row's first output, f64 in its sizes, for tests and plots.
  std::function<void(const ShadowRow&, const Tensor& local, const Tensor& inherited, const Tensor& total)> tensors = {};

  std::string to_string() const;                            // a table
  std::string to_csv() const;                               // RFC 4180 with a header line
  std::string by_layer(const LayerNames& name = {}) const;  // a table: layer, role, local error, share

 private:
  struct Frame;
  struct Codes {
    std::uint64_t storage = 0;
    Tensor numbers, slope;  // the mirrored numbers of a tensor stored as codes: of the shadow, of slope_
    bool scaled = false;
  };
  struct Part {  // of a local error: a - b
    ErrorSource source;
    Tensor a, b;
  };
  // The errors of an output of forward, until its gradient is known.
  struct Recorded {
    std::size_t row = 0;
    std::vector<Tensor> errors = {};  // f64: local, and by part
    double loss = 0;                  // the output
    double exact_loss = 0;            // if it has one element
  };
  struct Output {
    std::uint64_t storage = 0;  // its storage_id(); 0: none that is recorded
    std::uint64_t node = 0;
  };

  struct Gradient {
    Tensor exact, slope;  // of the shadow; of the same ops in f64 on the step's own numbers
  };

  void forget_freed();
  void open_frame(const OpCall& call, const CallRecord& record);
  void close_frame(const OpCall& call, const Outputs& out, const CallRecord& record);
  void each_mirror(const std::function<void(Mirror&)>& f);
  void run_on_mirrors(const OpCall& call, const Outputs& out);
  Tensor unrounded(const Tensor& t);
  Tensor run_alone(const OpCall& call, const Outputs& out, std::vector<Part>& parts);
  void add_parts_of_inputs(const OpCall& call, const Outputs& out, const std::vector<Tensor>& inputs,
                           const Tensor& exact, std::vector<Part>& parts);
  ShadowRow row_of(const OpCall& call, const Outputs& out, const CallRecord& record) const;
  void add_row(ShadowRow row, const Tensor& y, const Tensor& given, const Tensor& exact, const std::vector<Part>& parts,
               std::uint64_t node);
  void add_parameters(const OpCall& call, const CallRecord& record);
  void begin_backward(const Node& root);
  void gradient(const autograd::GradientEvent& event) override;
  void share(const Recorded& recorded, const Gradient& gradient);

  ShadowOptions options_;
  FreedStorages freed_;
  Mirror mirror_{&freed_};     // the shadow
  Mirror unrounded_{&freed_};  // the step's own numbers without the errors of ops off the tape
  Mirror slope_{&freed_};      // backward in f64 on the step's own numbers
  ParameterNames names_;
  bool parameters_differ_ = false;              // the program's parameters differ from the shadow's
  std::vector<Tensor> written_;                 // the inputs of the running in-place op, after it, in f64
  std::string why_not_exact_;                   // of the running op
  std::vector<std::unique_ptr<Frame>> frames_;  // running custom ops
  std::map<const void*, Codes> codes_;          // by address
  std::vector<ShadowRow> rows_;
  // By the node that made the output: of its op, and of the rounding of the op's result (Quantization::result).
  std::map<std::uint64_t, std::vector<Recorded>> recorded_;
  std::map<std::uint64_t, Gradient> slices_;  // sums of the gradients of slices, by node
  std::uint64_t node_ = 0;                    // of the running call; 0: not recorded
  Output output_;                             // of the op before
  std::uint64_t root_ = 0;                    // the node from which backward began; 0: none yet
  std::string why_not_;                       // why this backward has no attribution; empty: it has one
  std::size_t first_row_ = 0;                 // of this step
  double loss_ = 0;
  double exact_loss_ = 0;
  double loss_scale_ = 1;
};

}  // namespace gradual::inspect
