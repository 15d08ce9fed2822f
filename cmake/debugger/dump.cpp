// For a debugger: `call gradual_dump(x)` prints a tensor, statistics and its gradient to stderr. Works on any device.
// The call is neither cast, recorded nor observed. The section names the printers to gdb (docs/debugging.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "../../autograd/node.h"
#include "../../core/formats/format_table.h"
#include "../../core/ops/dispatch.h"

extern "C" void gradual_dump(const gradual::Tensor& x) try {
  const gradual::Scoped<gradual::Chain> bare(gradual::chain(), {});
  std::string text = to_string(x);
  std::vector<double> v = x.defined() ? x.to_vector<double>() : std::vector<double>();
  if (!v.empty()) {
    text += fmt::format("\nof {} elements {} are 0, ", v.size(), std::ranges::count(v, 0.0));
    text += fmt::format("{} are Inf or NaN; ", std::erase_if(v, [](double e) { return !std::isfinite(e); }));
    if (v.empty()) v = {NAN};
    const auto [low, high] = std::ranges::minmax(v);
    const double mean = std::reduce(v.begin(), v.end()) / static_cast<double>(v.size());
    text += fmt::format("the others have min {:g}, max {:g}, mean {:g}", low, high, mean);
  }
  if (gradual::needs_grad(x) && x.is_leaf()) text += "\ngradient: " + to_string(x.grad());
  std::fprintf(stderr, "%s\n", text.c_str());
} catch (const std::exception& e) { std::fprintf(stderr, "gradual_dump: %s\n", e.what()); }

// The printers read these types.
[[gnu::used]] static const std::pair<gradual::GradMeta*, gradual::ValueTable*> types_of_the_printers;

#ifdef __ELF__
[[gnu::used, gnu::section(".debug_gdb_scripts")]] extern const char gradual_gdb_scripts[] = "\x01" GRADUAL_GDB_SCRIPT;
#endif
