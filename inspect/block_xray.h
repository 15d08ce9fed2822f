// The scales of blocks under an X-ray: what they clip and lose, and what another rule or another size of block would
// have given on the same numbers.
//
//   const inspect::BlockXray x = inspect::xray(weight, amp::recipe("mxfp4").quantization->forward_w.value());
//   x.of("rceil", 16).sqnr_db();
//
//   inspect::XrayObserver xrays;                        // the same of every operand of a step
//   { const ObserverScope scope(xrays); run.step([&] { return cross_entropy(model(x), y); }); }
//   std::puts(xrays.to_string().c_str());               // or to_csv()
//
// Each row has the numbers that the library's quantizer gives with its rule or size edited.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../core/observe/observer.h"
#include "../core/quantize/quantizer.h"
#include "numbers.h"
#include "parameter_names.h"

namespace gradual::inspect {

// One rule and one size. Blocks of zeros and blocks with NaN or Inf are counted, but not measured.
struct XrayRow {
  std::string rule = {};  // a ScaleRule's name, "f32" (max / amax), "nvfp4" or "4-over-6"
  int block = 0;          // elements along the contracted axis; of a square quantizer, the side of a tile
  bool runs = false;      // the quantizer's own
  std::int64_t blocks = 0, zero_blocks = 0, nonfinite_blocks = 0;
  std::int64_t clipped_blocks = 0;          // whose largest magnitude, scaled, exceeds the format's largest value
  std::int64_t elements = 0;                // not zero, in measured blocks
  std::int64_t clipped = 0;                 // of them: scaled, they exceed the format's largest value
  std::int64_t made_zero = 0;               // of them: zero afterwards
  double squares = 0, error = 0;            // sums over measured blocks: of the elements, of what rounding changes
  double best_error = 0;                    // the sum of each block's least error with a power of two as its scale
  std::map<int, std::int64_t> scales = {};  // measured blocks by floor(log2) of their own scale, where it is not 0

  double clipped_blocks_percent() const { return percent_of(clipped_blocks, blocks); }
  double clipped_percent() const { return percent_of(clipped, elements); }
  double made_zero_percent() const { return percent_of(made_zero, elements); }
  double sqnr_db() const { return 10 * std::log10(squares / error); }  // Inf: nothing is lost
  // error / best_error: 1 where each block has its best power of two, less where finer scales gain. 1 without errors.
  double regret() const { return error == best_error ? 1 : error / best_error; }
  XrayRow& operator+=(const XrayRow& other);  // of the same rule and size
};

struct BlockXray {
  std::string quantizer = {};      // describe() of it
  std::vector<XrayRow> rows = {};  // by size, then by rule
  const XrayRow& running() const;  // the quantizer's own row; std::out_of_range without rows
  // Error that lists the rules and sizes for another one.
  const XrayRow& of(std::string_view rule, int block) const;
};

// x: a floating tensor on any device. Rows: the quantizer's own kind where its scales are no powers of two, and the
// four ScaleRules (scales e8m0, or the quantizer's own powers of two), for blocks of 8, 16, 32, 64, 128 and the
// quantizer's own. With nvfp4 also "4-over-6" (arXiv 2512.02010): a block's amax becomes 6 or 4, whichever gives the
// smaller squared error (any format: its largest value or 2/3 of it); the tensor's scale is 256 / 448 of nvfp4's, which
// leaves room for both.
// axis: the contracted one. Stochastic rounding draws random numbers of its own. Error if the quantizer has no scales
// of blocks, or transforms.
BlockXray xray(const Tensor& x, const Quantizer& quantizer, int axis = -1);

// X-rays every operand with scales of blocks that is rounded while it observes, and adds up those of a site.
class XrayObserver final : public Observer {
 public:
  struct Site {
    std::string layer;    // a module's path; of what is kept between steps, the parameter's name (see the constructor)
    std::string operand;  // as a recipe names it: "forward_x"; "kept" between steps, "" in a program's own function
    BlockXray xray;
  };
  XrayObserver() = default;
  explicit XrayObserver(const nn::Module& model) : names_(model) {}

  void before(const OpCall& call) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  const std::vector<Site>& sites() const { return sites_; }  // in the order of their first rounding
  void clear() { sites_.clear(); }

  std::string to_string() const;  // a line a site, with the SQNR of other rules and sizes
  std::string to_csv() const;     // RFC 4180, a header line first; a line for each row of each site

 private:
  void add(Site site);

  ParameterNames names_;
  std::vector<bool> custom_ops_;                  // that run: whether they are rewritten
  std::vector<std::pair<Tensor, Site>> rounded_;  // of the rewritten op that runs: its product says which operand it is
  std::vector<Site> sites_;
};

}  // namespace gradual::inspect
