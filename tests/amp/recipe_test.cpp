#include "../../amp/recipe.h"

#include <doctest/doctest.h>

#include <cmath>

#include "../../core/tensor/memory.h"
#include "../../nn/linear.h"
#include "../../nn/norm.h"
#include "../../optim/adam.h"
#include "../../optim/sgd.h"
#include "recorder.h"
#include "support.h"

using namespace gradual;
using amp::Recipe;
using amp::RecipeRun;

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = register_module("fc1", nn::Linear(8, 16));
  nn::LayerNorm& norm = register_module("norm", nn::LayerNorm(16));
  nn::Linear& fc2 = register_module("fc2", nn::Linear(16, 4));
  Tensor forward(const Tensor& x) override { return fc2(relu(norm(fc1(x)))); }
};

Net make_net() {
  manual_seed(7);
  return {};
}

const amp::MakeOptimizer kAdamW = [](auto groups, const optim::UpdateOptions& precision) {
  return std::make_unique<optim::AdamW>(std::move(groups), optim::AdamWOptions{.lr = 1e-2, .precision = precision});
};

struct Batch {
  Tensor x = random({12, 8}, 3);
  Tensor y = from_data(std::vector<std::int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}, {12});
};

// Six steps of a recipe on one batch; the losses.
std::vector<double> train(RecipeRun& run, int steps = 6) {
  const Batch b;
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i)
    losses.push_back(run.step([&] { return cross_entropy(run.model()(b.x), b.y); }).loss.item());
  return losses;
}

}  // namespace

TEST_CASE("what each recipe keeps in which dtype, and that it trains") {
  struct Row {
    const char* name;
    DType weight, norm, loss, grad;
    bool master, scales;
  };
  using enum DType;
  const Row rows[] = {
      {"fp32", f32, f32, f32, f32, false, false},          {"tf32", f32, f32, f32, f32, false, false},
      {"fp16-pure", f16, f16, f16, f16, false, false},     {"bf16-pure", bf16, bf16, bf16, bf16, false, false},
      {"fp16-master", f16, f32, f32, f16, true, true},     {"bf16-master", bf16, f32, f32, bf16, true, false},
      {"amp-fp16", f32, f32, f32, f32, false, true},       {"amp-bf16", f32, f32, f32, f32, false, false},
      {"fp16-static:128", f16, f32, f32, f16, true, true},
  };
  const Batch b;
  for (const Row& row : rows) {
    CAPTURE(row.name);
    Net net = make_net();
    const Tensor initial = net.fc1.weight.detach().clone();
    RecipeRun run(amp::recipe(row.name), net, kAdamW);
    CHECK(net.fc1.weight.dtype() == row.weight);
    CHECK(net.norm.weight.dtype() == row.norm);
    CHECK(run.scales() == row.scales);
    const Tensor loss = run.forward([&] { return cross_entropy(net(b.x), b.y); });
    CHECK(loss.dtype() == row.loss);
    run.backward(loss);
    CHECK(net.fc1.weight.grad().dtype() == row.grad);
    CHECK(net.norm.weight.grad().dtype() == row.norm);
    const Tensor master = run.optimizer().master(net.fc1.weight);
    CHECK(master.is_same(net.fc1.weight) != row.master);
    if (row.master) CHECK(same_bits(master, initial));  // the values from before the cast
    run.update();
    CHECK_FALSE(net.fc1.weight.grad().defined());
    const std::vector<double> losses = train(run, 12);
    // Adam's eps 1e-8 is 0 in f16, and where the second moment vanished too the update divides by it.
    if (row.name == std::string("fp16-pure")) {
      CHECK_FALSE(std::isfinite(losses.back()));
    } else {
      CHECK(losses.back() < 0.7 * losses.front());
    }
    CHECK(run.evaluate([&] { return net(b.x); }).requires_grad() == false);
    CHECK(run.master_state_dict().tensor("fc1.weight").dtype() == DType::f32);
  }
  CHECK_FALSE(amp::is_autocast_enabled());
}

TEST_CASE("fp32 is the plain loop, bit for bit") {
  const Batch b;
  Net net = make_net();
  RecipeRun run(amp::recipe("fp32"), net, kAdamW);
  const std::vector<double> losses = train(run);
  Net plain = make_net();
  optim::AdamW adam(plain.parameters(), {.lr = 1e-2});
  for (int i = 0; i < 6; ++i) {
    const Tensor loss = cross_entropy(plain(b.x), b.y);
    CHECK(loss.item() == losses[static_cast<std::size_t>(i)]);
    loss.backward();
    adam.step();
    adam.zero_grad();
  }
  CHECK(same_bits(net.fc1.weight, plain.fc1.weight));
}

TEST_CASE("amp-fp16 and fp16-master are the loops written by hand, bit for bit") {
  const Batch b;
  for (const bool masters : {false, true}) {
    Net net = make_net();
    RecipeRun run(amp::recipe(masters ? "fp16-master" : "amp-fp16"), net, kAdamW);
    const std::vector<double> losses = train(run);
    Net hand = make_net();
    using Update = optim::LowPrecisionUpdate;
    optim::AdamW adam(hand.parameters(),
                      {.lr = 1e-2, .precision = {.update = masters ? Update::masters : Update::none}});
    optim::GradScaler scaler;
    if (masters) {
      hand.fc1.to(DType::f16);
      hand.fc2.to(DType::f16);
    }
    for (int i = 0; i < 6; ++i) {
      Tensor loss;
      if (masters) {
        loss = cross_entropy(hand(b.x.to(DType::f16)).to(DType::f32), b.y);
      } else {
        const amp::Autocast scope({.dtype = DType::f16});
        loss = cross_entropy(hand(b.x), b.y);
      }
      CHECK(loss.item() == losses[static_cast<std::size_t>(i)]);
      scaler.scale(loss).backward();
      scaler.step(adam);
      scaler.update();
      adam.zero_grad();
    }
    CHECK(same_bits(net.fc1.weight, hand.fc1.weight));
    CHECK(same_bits(net.norm.weight, hand.norm.weight));
  }
}

TEST_CASE("flat masters give the same bits, clipping and accumulation work on unscaled gradients") {
  const Batch b;
  std::vector<Tensor> weights;
  for (const amp::Masters masters : {amp::Masters::per_tensor, amp::Masters::flat}) {
    Net net = make_net();
    Recipe r = amp::recipe("fp16-master");
    r.masters = masters;
    RecipeRun run(r, net, kAdamW, {.clip_norm = 0.05});
    for (int i = 0; i < 3; ++i) {
      for (int part = 0; part < 2; ++part)
        run.backward(
            run.forward([&] { return cross_entropy(net(b.x.narrow(0, 6 * part, 6)), b.y.narrow(0, 6 * part, 6)); }));
      CHECK(run.update().applied());
    }
    weights.push_back(net.fc1.weight);
  }
  CHECK(same_bits(weights[0], weights[1]));
}

TEST_CASE("a step that overflows is skipped, shown, and halves the scale") {
  Net net = make_net();
  RecipeRun run(amp::recipe("amp-fp16"), net, kAdamW);
  train(run, 1);
  const Tensor before = net.fc1.weight.detach().clone();
  const Batch b;
  const amp::RunStep step = run.step([&] { return cross_entropy(net(b.x * 1e6), b.y) * 1e30; });
  CHECK(step.result.skipped());
  CHECK_FALSE(step.result.param().empty());
  CHECK(same_bits(net.fc1.weight, before));
  CHECK(run.loss_scale() == 32768);
}

TEST_CASE("a run resumes to the bit") {
  for (const char* name : {"fp16-master", "amp-fp16", "bf16-pure"}) {
    CAPTURE(name);
    Net whole = make_net();
    RecipeRun straight(amp::recipe(name), whole, kAdamW);
    train(straight, 6);

    Net first = make_net();
    RecipeRun begun(amp::recipe(name), first, kAdamW);
    train(begun, 3);
    StateDict saved;
    for (const auto& [key, value] : begun.state_dict())
      saved.set(key, std::holds_alternative<Tensor>(value) ? StateValue(std::get<Tensor>(value).clone()) : value);
    train(begun, 2);  // goes on; the saved state must not

    Net second;
    RecipeRun resumed(amp::recipe(name), second, kAdamW);
    resumed.load_state_dict(saved);
    train(resumed, 3);
    CHECK(same_bits(second.fc1.weight, whole.fc1.weight));
    CHECK(
        same_bits(resumed.master_state_dict().tensor("fc2.weight"), straight.master_state_dict().tensor("fc2.weight")));
    Net other;
    RecipeRun wrong(amp::recipe("fp32"), other, kAdamW);
    CHECK(message_of([&] { wrong.load_state_dict(saved); }) ==
          "RecipeRun: the state is of a run of '" + std::string(name) + "'; this run's recipe is 'fp32'");
  }
}

TEST_CASE("masters with Adam take 16 bytes per parameter, as the allocator counts them") {
  const auto bytes = [] {
    const MemoryStats s = memory_stats();
    return s[Category::parameters].current + s[Category::gradients].current + s[Category::masters].current +
           s[Category::optimizer].current + s[Category::casts].current;
  };
  struct Row {
    const char* recipe;
    std::int64_t bytes;  // a parameter: weight, gradient, master, two moments
  };
  for (const Row& row : {Row{"fp32", 4 + 4 + 0 + 8}, Row{"fp16-master", 2 + 2 + 4 + 8}, Row{"amp-fp16", 4 + 4 + 0 + 8},
                         Row{"bf16-pure", 2 + 2 + 0 + 4}}) {
    CAPTURE(row.recipe);
    const std::int64_t before = bytes();
    nn::Linear layer(256, 256, {.bias = false});
    RecipeRun run(amp::recipe(row.recipe), layer, kAdamW);
    const Tensor x = random({4, 256}, 1);
    const auto loss = [&] { return mse_loss(layer(x), x); };
    CHECK(run.step(loss).result.applied());
    run.backward(run.forward(loss));
    CHECK(bytes() - before == row.bytes * 256 * 256);
  }
}

TEST_CASE("tf32 holds in forward and backward and nowhere else") {
  Net net = make_net();
  RecipeRun run(amp::recipe("tf32"), net, kAdamW);
  Net plain = make_net();
  RecipeRun exact(amp::recipe("fp32"), plain, kAdamW);
  const Batch b;
  const auto grad = [&](RecipeRun& r, Net& n, const Tensor& x) {
    r.backward(r.forward([&] { return cross_entropy(n(x), b.y); }));
    return n.fc1.weight.grad();
  };
  CHECK_FALSE(same_bits(grad(run, net, b.x), grad(exact, plain, b.x)));
  CHECK(matmul_precision() == MatmulPrecision::f32);
  const MatmulPrecisionScope around(MatmulPrecision::tf32);
  net.zero_grad();
  plain.zero_grad();
  const Tensor outside = exact.forward([&] { return plain(b.x); });
  const MatmulPrecisionScope back(MatmulPrecision::f32);
  CHECK(same_bits(outside, plain(b.x)));  // fp32 means f32 whatever is around it
}

TEST_CASE("a custom recipe: rewritten contractions in an f32 model") {
  Recipe mine{.name = "e4m3 operands", .description = "an emulation"};
  const auto q = [](const Tensor& t) { return t.to(DType::f8e4m3fn).to(DType::f32); };
  const auto rewrite = amp::CastPolicy::rewrite("e4m3", [q](const OpCall& call) {
    return Outputs{
        {call.op == OpId::linear ? linear(q(call[0]), q(call[1]), call[2]) : matmul(q(call[0]), q(call[1]))}};
  });
  mine.policy.emplace_back(OpId::linear, rewrite);
  Net net = make_net();
  RecipeRun run(mine, net, kAdamW);
  Recorder recorder;
  const std::vector<double> losses = train(run, 12);
  int forward = 0;
  int backward = 0;
  for (const Recorder::Seen& seen : recorder.seen) {
    forward += seen.op == OpId::custom && seen.phase == Phase::forward;
    backward += seen.op == OpId::custom && seen.phase == Phase::backward;
  }
  CHECK(forward == 12 * 2);
  CHECK(backward == 12 * 3);  // the first layer's input needs no gradient
  CHECK(losses.back() < 0.7 * losses.front());
  CHECK(message_of([&] { to_json(mine); }) ==
        "recipe 'e4m3 operands': linear is rewritten by 'e4m3', which is code and cannot be written to a file");
}

TEST_CASE("a quantised recipe tells what each operand of each product becomes") {
  const auto lines = [](const char* name) {
    std::string text;
    for (const amp::OperandGroup& g : describe(*amp::recipe(name).quantization)) {
      for (const std::string& operand : g.operands) text += operand + " ";
      text += "= " + g.quantizer + "\n";
    }
    return text;
  };
  CHECK(lines("fp8-delayed") ==
        "forward_x forward_w dgrad_w wgrad_x = e4m3fn, one delayed scale per tensor (history 1024, max)\n"
        "dgrad_dy wgrad_dy = e5m2, one delayed scale per tensor (history 1024, max)\n");
  CHECK(lines("nvfp4") ==
        "forward_x = e2m1fn, blocks of 16 with e4m3fn scales under one of the tensor\n"
        "forward_w dgrad_w = e2m1fn, tiles of 16x16 with e4m3fn scales under one of the tensor\n"
        "dgrad_dy = e2m1fn stochastic, blocks of 16 with e4m3fn scales under one of the tensor\n"
        "wgrad_x = e2m1fn, blocks of 16 with e4m3fn scales under one of the tensor, Hadamard transform\n"
        "wgrad_dy = e2m1fn stochastic, blocks of 16 with e4m3fn scales under one of the tensor, Hadamard transform\n");
}

TEST_CASE("the names of recipes, in order, and their aliases") {
  CHECK(amp::recipe_names() == std::vector<std::string>{"fp32",
                                                        "tf32",
                                                        "fp16-pure",
                                                        "bf16-pure",
                                                        "fp16-master",
                                                        "bf16-master",
                                                        "amp-fp16",
                                                        "amp-bf16",
                                                        "fp8-delayed",
                                                        "fp8-current",
                                                        "fp8-rowwise",
                                                        "fp8-block128",
                                                        "mxfp8",
                                                        "mxfp6",
                                                        "mxfp4",
                                                        "nvfp4",
                                                        "msamp-o1",
                                                        "msamp-o2",
                                                        "nvfp4-4over6",
                                                        "mxint8",
                                                        "msfp12",
                                                        "msfp16",
                                                        "mx9",
                                                        "mx6",
                                                        "mx4",
                                                        "hif4",
                                                        "int8",
                                                        "int4",
                                                        "int8-asym",
                                                        "int4-asym",
                                                        "nf4",
                                                        "int8-rowwise",
                                                        "switchback",
                                                        "mxfp4-backward",
                                                        "mxfp4-centered",
                                                        "quartet2",
                                                        "int4-lsq",
                                                        "mxfp4-clipped",
                                                        "e2m1-dge",
                                                        "fp8-smooth",
                                                        "fp8-attention",
                                                        "fp8-attention-delayed",
                                                        "mxfp4-attention-hadamard",
                                                        "bf16-flash",
                                                        "bf16-flash-shifted",
                                                        "adam8",
                                                        "adam4",
                                                        "eco-fp8",
                                                        "unscaled-fp8",
                                                        "muon8",
                                                        "tetrajet-v2"});
  CHECK(amp::recipe("O0").name == "fp32");
  CHECK(amp::recipe("O1").name == "amp-fp16");
  CHECK(amp::recipe("O2").name == "fp16-master");
  CHECK(amp::recipe("O3").name == "fp16-pure");
  const Recipe fixed = amp::recipe("fp16-static:1024");
  CHECK(fixed.scaling->init_scale == 1024);
  CHECK_FALSE(fixed.scaling->dynamic);
  for (const char* bad : {"fp16-static:", "fp16-static:0", "fp16-static:-3", "fp16-static:12x", "fp16-static:inf"})
    CHECK(message_of([&] { amp::recipe(bad); }) ==
          "recipe '" + std::string(bad) +
              "': fp16-static: must be followed by a positive number, as in fp16-static:128");
}

TEST_CASE("an unknown name is an error that proposes the nearest ones") {
  CHECK(
      message_of([] { amp::recipe("amp-fp61"); }) ==
      "no recipe 'amp-fp61'; there are fp32, tf32, fp16-pure, bf16-pure, fp16-master, bf16-master, amp-fp16, "
      "amp-bf16, fp8-delayed, fp8-current, fp8-rowwise, fp8-block128, mxfp8, mxfp6, mxfp4, nvfp4, msamp-o1, "
      "msamp-o2, nvfp4-4over6, mxint8, msfp12, msfp16, mx9, mx6, mx4, hif4, int8, int4, int8-asym, int4-asym, nf4, "
      "int8-rowwise, switchback, mxfp4-backward, mxfp4-centered, quartet2, int4-lsq, mxfp4-clipped, e2m1-dge, "
      "fp8-smooth, fp8-attention, fp8-attention-delayed, mxfp4-attention-hadamard, bf16-flash, "
      "bf16-flash-shifted, adam8, adam4, eco-fp8, unscaled-fp8, muon8, tetrajet-v2, eXmY, eXmY:ROUNDING, pure:FORMAT, "
      "mx16:FORMAT, "
      "fp16-static:SCALE, O0, O1, O2, O3; did you mean 'amp-fp16'?");
  const auto told = [](const char* name, const std::string& end) {
    CAPTURE(name);
    CHECK(message_of([&] { amp::recipe(name); }).ends_with(end));
  };
  told("fp8",
       "; did you mean 'fp8-delayed', 'fp8-current', 'fp8-rowwise', 'fp8-block128', 'fp8-smooth', 'fp8-attention', "
       "'fp8-attention-delayed', 'eco-fp8' or 'unscaled-fp8'?");
  told("fp4",
       "; did you mean 'mxfp4', 'nvfp4', 'nvfp4-4over6', 'mxfp4-backward', 'mxfp4-centered', 'mxfp4-clipped' or "
       "'mxfp4-attention-hadamard'?");
  told("mx",
       "; did you mean 'mxfp8', 'mxfp6', 'mxfp4', 'mxfp4-backward', 'mxfp4-centered', 'mxfp4-clipped' or "
       "'mxfp4-attention-hadamard'?");
  told("mixed", "; did you mean 'amp-fp16' or 'amp-bf16'?");
  told("bf16", "; did you mean 'bf16-pure', 'bf16-master', 'amp-bf16', 'bf16-flash' or 'bf16-flash-shifted'?");
  told("bfloat16", "; did you mean 'bf16-pure', 'bf16-master', 'amp-bf16', 'bf16-flash' or 'bf16-flash-shifted'?");
  told("half", "; did you mean 'fp16-pure', 'fp16-master', 'amp-fp16' or 'fp16-static:SCALE'?");
  told("fp16", "; did you mean 'fp16-pure', 'fp16-master', 'amp-fp16' or 'fp16-static:SCALE'?");
  told("fp16-static", "; did you mean 'fp16-static:SCALE'?");
  told("FP16-MASTR", "; did you mean 'fp16-master'?");
  for (const char* format : {"e4m3fn", "e4m3fn:stochastic"})
    CHECK(message_of([&] { amp::recipe(format); }) ==
          "no recipe '" + std::string(format) +
              "': e4m3fn is a format. e4m3 is a recipe, of products in 4 exponent and 3 mantissa bits; in a recipe's "
              "file "
              "an operand may be {\"format\": \"e4m3fn\"} (docs/precision.md)");
}

TEST_CASE("a registered recipe has a name of its own, and trains") {
  Recipe mine = amp::recipe("fp16-master");
  CHECK(message_of([&] { amp::register_recipe(mine); }) ==
        "register_recipe: the name 'fp16-master' belongs to another recipe already");
  mine.name = "e5m10";
  CHECK(message_of([&] { amp::register_recipe(mine); }) ==
        "register_recipe: the name 'e5m10' belongs to another recipe already");
  mine.name = "fp16-kahan";
  mine.masters = amp::Masters::none;
  mine.update = optim::LowPrecisionUpdate::kahan;
  amp::register_recipe(mine);
  CHECK(amp::recipe("fp16-kahan").update == optim::LowPrecisionUpdate::kahan);
  CHECK(amp::recipe_names().back() == "fp16-kahan");
  Recipe inner = amp::recipe("mxfp8");
  inner.name = "mxfp8-but-head";
  inner.quantization->modules = {{"head", "fp32"}};
  amp::register_recipe(inner);
  Recipe outer = amp::recipe("mxfp8");
  outer.quantization->modules = {{"first", "mxfp8-but-head"}};
  CHECK(message_of([&] { amp::check_valid(outer); }) ==
        "recipe 'mxfp8': quantization, modules, first: recipe 'mxfp8-but-head' has modules of its own, which only a "
        "model's recipe has");
  Net net = make_net();
  RecipeRun run(amp::recipe("fp16-kahan"), net, kAdamW);
  const std::vector<double> losses = train(run, 12);
  CHECK(losses.back() < 0.7 * losses.front());
}

TEST_CASE("contradictions are errors that name the field") {
  const auto message = [](const std::function<void(Recipe&)>& edit, const char* base = "fp16-master") {
    Recipe r = amp::recipe(base);
    r.name = "mine";
    edit(r);
    return message_of([&] { amp::check_valid(r); });
  };
  CHECK(message([](Recipe& r) { r.name = ""; }) == "recipe '': it needs a name");
  CHECK(message([](Recipe& r) { r.mode = amp::Mode::full; }) ==
        "recipe 'mine': mode full computes in f32, not f16; autocast, half and pure take f16 and bf16");
  CHECK(message([](Recipe& r) { r.dtype = DType::f8e5m2; }) ==
        "recipe 'mine': modes autocast, half and pure take the dtype f16 or bf16, not f8e5m2");
  CHECK(message([](Recipe& r) {
          r.mode = amp::Mode::autocast;
        }).starts_with("recipe 'mine': masters, kahan and stochastic updates are for half parameters"));
  CHECK(message([](Recipe& r) { r.update = optim::LowPrecisionUpdate::kahan; }) ==
        "recipe 'mine': masters and a kahan update exclude each other");
  CHECK(message([](Recipe& r) { r.optimizer_state = DType::i32; }) ==
        "recipe 'mine': optimizer_state is f32, f16 or bf16, not i32");
  CHECK(message([](Recipe& r) { r.scaling->growth_factor = 1; }).find("growth_factor") != std::string::npos);
  CHECK(message([](Recipe& r) {
          r.policy.emplace_back(OpId::add_, amp::CastPolicy::fp32());
        }).starts_with("recipe 'mine': policy table: add_ takes no policy but pass"));
  CHECK(message([](Recipe& r) { r.policy.emplace_back(OpId::matmul, amp::CastPolicy::lower()); }, "fp32") ==
        "recipe 'mine': mode full has no lower dtype for matmul; name one: f16 or bf16");
  Net net;
  CHECK(message_of([&] { RecipeRun(amp::recipe("fp32"), net, [](auto, auto&) { return nullptr; }); }) ==
        "RecipeRun: the function that makes the optimizer returned none");
  CHECK(message_of([&] { RecipeRun(amp::recipe("fp32"), net, nullptr); }) ==
        "RecipeRun: the function that makes the optimizer is null");
  nn::Module nothing;
  CHECK(message_of([&] { RecipeRun(amp::recipe("fp32"), nothing, kAdamW); }) ==
        "RecipeRun: the model Module has no parameters to train");
}
