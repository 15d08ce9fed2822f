#include "../../amp/policy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "../../core/ops/ops.h"
#include "support.h"

using namespace gradual;
using amp::CastPolicy;
using amp::PolicyTable;

namespace {

// The default table by hand; what is not here passes, as its row in tests/op_table must say too.
const std::map<std::string, std::string> kListed{{"matmul", "lower"},
                                                 {"linear", "lower"},
                                                 {"linear_relu", "lower"},
                                                 {"linear_gelu", "lower"},
                                                 {"conv2d", "lower"},
                                                 {"scaled_dot_product_attention", "lower"},
                                                 {"conv2d_backward_input", "lower"},
                                                 {"exp", "fp32"},
                                                 {"log", "fp32"},
                                                 {"log1p", "fp32"},
                                                 {"log10", "fp32"},
                                                 {"asin", "fp32"},
                                                 {"acos", "fp32"},
                                                 {"exp2", "fp32"},
                                                 {"expm1", "fp32"},
                                                 {"log2", "fp32"},
                                                 {"rsqrt", "fp32"},
                                                 {"reciprocal", "fp32"},
                                                 {"pow", "fp32"},
                                                 {"softplus", "fp32"},
                                                 {"sum", "fp32"},
                                                 {"logsumexp", "fp32"},
                                                 {"norm", "fp32"},
                                                 {"softmax", "fp32"},
                                                 {"log_softmax", "fp32"},
                                                 {"layer_norm", "fp32"},
                                                 {"rms_norm", "fp32"},
                                                 {"cross_entropy", "fp32"},
                                                 {"mse_loss", "fp32"},
                                                 {"l1_loss", "fp32"},
                                                 {"bce_with_logits_loss", "fp32"},
                                                 {"add", "promote"},
                                                 {"sub", "promote"},
                                                 {"mul", "promote"},
                                                 {"div", "promote"},
                                                 {"atan2", "promote"},
                                                 {"floor_divide", "promote"},
                                                 {"trunc_divide", "promote"},
                                                 {"remainder", "promote"},
                                                 {"fmod", "promote"},
                                                 {"maximum", "promote"},
                                                 {"minimum", "promote"},
                                                 {"eq", "promote"},
                                                 {"ne", "promote"},
                                                 {"lt", "promote"},
                                                 {"le", "promote"},
                                                 {"gt", "promote"},
                                                 {"ge", "promote"},
                                                 {"where", "promote"},
                                                 {"cat", "promote"},
                                                 {"scatter_add", "promote"},
                                                 {"bce_loss", "banned"}};

}  // namespace

TEST_CASE("every op's default policy is the one listed here") {
  const PolicyTable table;
  std::size_t listed = 0;
  for (int i = 0; i < kOpCount; ++i) {
    const auto op = static_cast<OpId>(i);
    const std::string title(to_string(op));
    CAPTURE(title);
    const auto found = kListed.find(title);
    CHECK(to_string(table[op]) == (found == kListed.end() ? "pass" : found->second));
    listed += found != kListed.end();
  }
  CHECK(listed == kListed.size());  // each names an op
}

TEST_CASE("a table is a value: editing a copy leaves the original and the default alone") {
  PolicyTable mine;
  PolicyTable copy = mine;
  copy.set("softmax", CastPolicy::lower()).set(OpId::add, CastPolicy::cast(DType::bf16));
  CHECK(to_string(copy[OpId::softmax]) == "lower");
  CHECK(to_string(copy[OpId::add]) == "bf16");
  CHECK(to_string(mine[OpId::softmax]) == "fp32");
  CHECK(to_string(PolicyTable()[OpId::softmax]) == "fp32");
}

TEST_CASE("a table prints a line for each policy") {
  PolicyTable table;
  table.set("erf", CastPolicy::cast(DType::bf16));
  const std::string text = to_string(table);
  CHECK(
      text.starts_with("lower: matmul linear linear_relu linear_gelu conv2d conv2d_backward_input "
                       "scaled_dot_product_attention\nfp32: exp "));
  CHECK(text.find("\nbanned: bce_loss\nbf16: erf\npass: neg ") != std::string::npos);
}

TEST_CASE("why says in one sentence what happens and the reason") {
  PolicyTable table;
  CHECK(table.why(OpId::matmul, {DType::f32, DType::f32}) ==
        "matmul is in the lower list: runs in f16, exact products with f32 accumulation");
  CHECK(table.why("matmul", {DType::f32, DType::f32}, DType::bf16) ==
        "matmul is in the lower list: runs in bf16, exact products with f32 accumulation");
  CHECK(table.why("matmul", {DType::f64, DType::f16}) ==
        "matmul is in the lower list: f64 is not autocast and cannot meet f16, so this call is an Error");
  CHECK(table.why("matmul", {DType::f64, DType::f64}) ==
        "matmul runs as it is on f64, f64: autocast casts only f32, f16 and bf16; f64 and f8 tensors keep "
        "their dtype");
  CHECK(table.why("softmax", {DType::f16}) ==
        "softmax is in the fp32 list: runs in f32, since its sums and quotients need the range and precision "
        "of f32");
  CHECK(table.why("add", {DType::f16, DType::f32}) ==
        "add is in the promote list: runs in f32, the widest of its inputs f16, f32");
  CHECK(table.why("add", {DType::f16, DType::bf16}) ==
        "add is in the promote list: runs in f32, the widest of its inputs f16, bf16");
  CHECK(table.why("relu", {DType::f16}) == "relu is in no list: runs in its inputs' dtypes, f16");
  CHECK(table.why("add_", {DType::f16, DType::f32}) ==
        "add_ is never autocast: an explicit dtype wins, and a tensor written in place keeps its own");
  CHECK(table.why("bce_loss", {DType::f32, DType::f32}).starts_with("bce_loss is banned under autocast: it takes "));
  CHECK(table.why("bce_loss", {DType::f32}).find("use bce_with_logits_loss on the logits") != std::string::npos);
}

TEST_CASE("why tells of the parts of a fusion, and whether they run apart") {
  PolicyTable table;
  CHECK(table.why("linear_relu", {DType::f32, DType::f32}) ==
        "linear_relu is linear and relu. linear is in the lower list: runs in f16, exact products with f32 "
        "accumulation; relu "
        "is in no list: runs in its inputs' dtypes, f16");
  CHECK(table.why("dropout_add", {DType::f16, DType::f32}) ==
        "dropout_add is dropout and add. dropout is in no list: runs in its inputs' dtypes, f16; add is in the promote "
        "list: "
        "runs in f32, the widest of its inputs f32, f16");
  table.set("gelu", CastPolicy::fp32()).set("dropout", CastPolicy::fp32());
  CHECK(table.why("linear_gelu", {DType::f32, DType::f32}, DType::bf16)
            .starts_with("linear_gelu is linear and gelu, which run apart. linear is in the lower list: runs in bf16"));
  CHECK(table.why("dropout_add", {DType::f16, DType::f16}).find("add, which run apart. dropout is in the fp32 list") !=
        std::string::npos);
}

TEST_CASE("every fusion takes no policy of its own, and runs whole under the default table") {
  PolicyTable table;
  for (const Fusion& f : fusions()) {
    CHECK(table.runs_whole(f));
    if (!f.is_row()) continue;
    CHECK(to_string(table[f.whole]) == to_string(table[f.first]));
    CHECK(message_of([&] { table.set(f.whole, CastPolicy::fp32()); }).ends_with("which have theirs"));
    PolicyTable other;
    other.set(f.second, CastPolicy::cast(DType::f32));
    CHECK_FALSE(other.runs_whole(f));
  }
}

TEST_CASE("set: an invalid policy is an Error that names what is allowed") {
  PolicyTable table;
  CHECK(message_of([&] { table.set("sofmax", CastPolicy::pass()); }) == "no op 'sofmax'; did you mean 'softmax'?");
  CHECK(message_of([&] { table.set("add_", CastPolicy::lower()); }) ==
        "policy table: add_ takes no policy but pass: what is written in place keeps its dtype; use the "
        "functional form");
  CHECK(message_of([&] { table.set("cast", CastPolicy::fp32()); }) ==
        "policy table: cast takes no policy but pass: explicit casts are never changed");
  CHECK(message_of([&] { table.set("custom", CastPolicy::fp32()); }) ==
        "policy table: custom takes no policy but pass: a user function declares its amp_dtype()");
  const auto nothing = CastPolicy::rewrite("nothing", [](const OpCall&) { return Outputs{}; });
  CHECK(message_of([&] {
          table.set("softmax", nothing);
        }).starts_with("policy table: softmax cannot be rewritten; its gradient must be made of its inputs"));
  CHECK(message_of([&] { table.set("max_pool2d", nothing); }).find("cannot be rewritten") != std::string::npos);
  CHECK(message_of([] { CastPolicy::cast(DType::f8e4m3fn); }) ==
        "cast policy: casts to f32, f16 or bf16, not to f8e4m3fn; a rewrite computes in other formats");
  CHECK(message_of([] { CastPolicy::rewrite("empty", {}); }) == "cast policy: the rewrite 'empty' has no function");
  CHECK(message_of([] { CastPolicy::from_name("lowr"); }) ==
        "no cast policy 'lowr'; allowed are pass, lower, fp32, promote, banned, f32, f16, bf16; did you mean "
        "'lower'?");
  for (const char* text : {"pass", "lower", "fp32", "promote", "banned", "f32", "f16", "bf16"})
    CHECK(to_string(CastPolicy::from_name(text)) == text);
}
