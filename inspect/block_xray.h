// X-rays the scales of blocks: what they clip and lose, and what other rules and block sizes would give for the same
// numbers.
//
//   const inspect::BlockXray x = inspect::xray(weight, amp::recipe("mxfp4").quantization->forward_w.value());
//   x.of("rceil", 16).sqnr_db();
//
//   inspect::XrayObserver xrays;                        // the same for every operand of a step
//   { const ObserverScope scope(xrays); run.step([&] { return cross_entropy(model(x), y); }); }
//   std::puts(xrays.to_string().c_str());               // or to_csv()
//
// Each row has the results of the library's quantizer with another rule or size.
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
#include "layer_names.h"
#include "names.h"
#include "numbers.h"

namespace gradual::inspect {

// One rule and one size. Coded scales to nearest have the name of their format as a rule, "ue6m2". Blocks of zeros and
// blocks with NaN or Inf are counted, but not measured.
struct XrayRow {
  std::string rule = {};  // of a ScaleRule or a CodedRule; "f32" (max / amax), "nvfp4", "ms-eden"
  int block = 0;          // elements along the contracted axis; for a square quantizer the side of a tile
  bool runs = false;      // the quantizer itself
  std::int64_t blocks = 0;
  std::int64_t zero_blocks = 0;
  std::int64_t nonfinite_blocks = 0;
  std::int64_t clipped_blocks = 0;  // blocks with an element that exceeds the format's range after scaling
  std::int64_t elements = 0;        // nonzero elements of measured blocks
  std::int64_t clipped = 0;         // those that exceed the format's largest value after scaling
  std::int64_t made_zero = 0;       // those that become zero
  double squares = 0;               // sums of squares over measured blocks: of elements
  double error = 0;                 // of rounding errors
  double best_error = 0;            // sum of each block's smallest error with a power of two as scale
  double error_sum = 0;             // of rounding errors, with their signs
  double along = 0;                 // of rounding error * element
  double along_squares = 0;         // of (rounding error * element)^2
  double zeroed_squares = 0;        // of the squares of elements that become zero
  // Measured blocks by floor(log2(scale)), of parts the largest; scales of 0 are left out.
  std::map<int, std::int64_t> scales = {};

  double clipped_blocks_percent() const { return percent_of(clipped_blocks, blocks); }
  double made_zero_percent() const { return percent_of(made_zero, elements); }
  // Inf: nothing is lost.
  double sqnr_db() const { return 10 * std::log10((error == 0 ? 1 : squares) / error); }
  // The part of the elements in their errors: -0.02 if the rounded ones are 2% too small. Its 95% interval is the value
  // and half of it; of errors without a bias, such as those of stochastic rounding, 95% are within it.
  double gain() const { return squares > 0 ? along / squares : 0; }
  double gain_interval() const { return squares > 0 ? 1.96 * std::sqrt(along_squares) / squares : 0; }
  // What the squared error consists of, in percent: a common factor of all elements (1 + gain), the elements that
  // become zero, and the rest, the noise of the grid. The three sum to 100; 0 without errors.
  struct Parts {
    double scale = 0;
    double dead_zone = 0;
    double grid = 0;
  };
  Parts parts() const;
  // error / best_error: 1 if each block has its best power of two, less if finer scales gain. 1 without errors.
  double regret() const { return error == best_error ? 1 : error / best_error; }
  XrayRow& operator+=(const XrayRow& other);  // a row of the same rule and size
};

struct BlockXray {
  // One block as the quantizer itself scales it: the share of its elements that clip, its squared error, and the
  // smallest one with a power of two as scale. Blocks that are not measured have zeros.
  struct Block {
    double clipped = 0;
    double error = 0;
    double best_error = 0;
  };
  std::string quantizer = {};      // its describe() text
  std::vector<XrayRow> rows = {};  // by size, then by rule
  std::int64_t columns = 0;        // blocks in a row
  std::vector<Block> blocks = {};  // at most 1024, of whole rows that are evenly spaced; a sum keeps the first ones
  const XrayRow& running() const;  // the quantizer's own row; std::out_of_range without rows
  // Error that lists the rules and sizes if there is no such row.
  const XrayRow& of(std::string_view rule, int block) const;
};

// X-rays a floating tensor x on any device along the contracted `axis`. There are rows for blocks of 8, 16, 32, 64, 128
// and the quantizer's own size. Each size has the four ScaleRules (scales e8m0, or the quantizer's powers of two), and
// the quantizer's own kind if its scales are not powers of two. nvfp4 also has "four-over-six" (arXiv 2512.02010): a
// block's amax becomes 6 or 4, whichever gives the smaller squared error (other formats: the largest value or 2/3 of
// it). The tensor's scale is then 256 / 448 of nvfp4's, which leaves room for both. Stochastic rounding draws its own
// random numbers, and so do random scales. Blocks with parts, coded, searched and random scales have the rules and
// sizes that check_valid() allows them, and rows of the quantizer's own bits. Of coded scales its own rule comes
// first.
// others: false leaves only the quantizer's own row. Error if the quantizer has no scales of blocks, or has a Hadamard
// transform.
BlockXray xray(const Tensor& x, const Quantizer& quantizer, int axis = -1, bool others = true);

// The elements of x that exceed the largest number of the quantizer's format after scaling, bool, in the sizes of x.
// `scaled`: x divided by its scale, for quantizers without scales of blocks.
Tensor beyond_range(const Tensor& x, const Quantizer& quantizer, int axis, const Tensor& scaled);

// X-rays every operand with scales of blocks that is rounded while this observes. Sums the results by site.
class XrayObserver final : public Observer {
 public:
  struct Site {
    std::string layer;    // a module's path; for tensors kept between steps, the parameter's name
    std::string operand;  // its name in recipes: "forward_x"; "kept" between steps, "" in a user's function
    BlockXray xray;
  };
  XrayObserver() = default;
  explicit XrayObserver(const nn::Module& model, bool others = true) : names_(model), others_(others) {}

  void before(const OpCall& call, const CallRecord& record) override;
  void after(const OpCall& call, const Outputs& out, const CallRecord& record) override;
  void quantized(const QuantizerCall& call) override;

  const std::vector<Site>& sites() const { return sites_; }  // in the order of their first rounding
  void clear() { sites_.clear(); }

  // A line per site, with the SQNR of other rules and sizes.
  std::string to_string(const LayerNames& name = {}) const;
  std::string to_csv() const;  // RFC 4180 with a header line: one line per row of each site

 private:
  void add(Site site);

  ParameterNames names_;
  bool others_ = true;                            // X-rays other rules and sizes, too
  std::vector<std::pair<Tensor, Site>> rounded_;  // of the running rewritten op, until its product names the operand
  std::vector<Site> sites_;
};

}  // namespace gradual::inspect
