// A format that fails in one operand of attention: the explanations name that operand.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/explain.h>
#include <gradual/lab/explain.h>
#include <gradual/lab/lab.h>
#include <gradual/lab/tasks.h>
#include <gradual/nn/attention.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

using namespace gradual;

namespace {

// The rows of an image are a sequence.
struct Net : nn::Module {
  nn::TransformerBlock& block = register_module("block", nn::TransformerBlock(8, 1));
  nn::Linear& head = register_module("head", nn::Linear(64, 10));
  Tensor forward(const Tensor& x) override { return head(block(x.reshape({-1, 8, 8})).reshape({-1, 64})); }
};
std::shared_ptr<nn::Module> make_net() { return std::make_shared<Net>(); }

// Its numbers times a million leave e4m3fn, which makes them NaN.
amp::Recipe planted(std::optional<Quantizer> amp::AttentionPrecision::*operand) {
  amp::Recipe r = amp::recipe("bf16-flash");
  r.name = "planted";
  (*r.quantization->attention).*operand =
      Quantizer{.format = format("e4m3fn"), .overflow = Overflow::ieee, .scaling = FixedScale{.value = 1e6}};
  return r;
}

}  // namespace

TEST_CASE("explain: one operand of attention must be exact, forward or backward") {
  const lab::LabData data = lab::data_for("digits");
  const lab::Options options{.epochs = 1, .seeds = 1, .explain_steps = 300};
  for (const char* const name : {"v", "p", "do"}) {
    CAPTURE(name);
    const auto* const field = std::ranges::find(amp::kAttentionFields, std::string(name), &amp::AttentionField::name);
    const amp::Recipe recipe = planted(field->quantizer);
    const std::vector<lab::Result> runs = lab::compare(make_net, data, {amp::recipe("fp32"), recipe}, "", options);
    const lab::Explanation e = lab::explain_run(make_net, data, recipe, 0, options, runs[1], runs[0]);
    CAPTURE(to_string(e));
    CHECK(e.averts);
    CHECK(e.minimal);
    REQUIRE(e.change.exact.size() == 1);
    CHECK(e.change.exact[0].part == inspect::ExactPart::operand);
    CHECK(e.change.exact[0].site == std::string("block.self_attn.") + name);
  }
}

TEST_CASE("explain: a loop of one's own names the operand of attention, and its cure") {
  const auto loop = [](inspect::Collector& c) {
    default_generator() = Generator(3);
    Net net;
    amp::RecipeRun run(c.recipe(), net, optim::AdamOptions{.lr = 1e-3});
    const Tensor x = randn({32, 64});
    const Tensor y = randint(0, 10, {32});
    for (int i = 0; i < 10; ++i)
      if (!c.step(run, [&] { return cross_entropy(net(x), y); })) return;
  };
  const inspect::Explained why = inspect::explain(planted(&amp::AttentionPrecision::p), loop);
  CAPTURE(to_string(why));
  REQUIRE_FALSE(why.findings.empty());
  CHECK(why.findings[0].site == "block.self_attn.p");
  CHECK(why.findings[0].undone > 0.9);
  REQUIRE_FALSE(why.findings[0].cures.empty());
  CHECK(why.findings[0].cures[0].remedy == "attention's p in high precision");
}
