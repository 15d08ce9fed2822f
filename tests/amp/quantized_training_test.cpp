// Quantised recipes in training: what is kept for backward, checkpointed segments, what a resumed run repeats.
#include <cmath>
#include <variant>

#include <doctest/doctest.h>

#include "../../amp/quantization.h"
#include "../../amp/recipe.h"
#include "../../autograd/activation_checkpoint.h"
#include "../../autograd/autograd.h"
#include "../../autograd/grad_mode.h"
#include "../../core/tensor/memory.h"
#include "../../data/digits.h"
#include "../../lab/models.h"
#include "../../nn/activation.h"
#include "../../nn/linear.h"
#include "../../nn/sequential.h"
#include "../../optim/sgd.h"
#include "quantized_run.h"
#include "support.h"

using namespace gradual;
using amp::Quantization;
using amp::Recipe;
using amp::RecipeRun;

namespace {

// Codes and high precision: y = relu(x) W, as bytes of saved activations and as gradients of x and W.
struct Kept {
  std::int64_t bytes;
  Tensor y, dx, dw;
};
Kept kept(Quantization q, bool save_codes) {
  q.save_codes = save_codes;
  const Tensor x = random({64, 256}, 1).set_requires_grad();
  const Tensor w = random({256, 128}, 2).set_requires_grad();
  const auto state = std::make_shared<amp::QuantizationState>(q);
  const Recipe recipe = with(q);
  const auto saved = [] { return memory_stats()[Category::activations].current; };
  Tensor h = x * 2;  // for whose product nothing is kept but a number
  const std::int64_t before = saved();
  Tensor y;
  {
    const amp::RecipeScope scope(recipe, Device::cpu(), state);
    y = matmul(h, w);
  }
  h = Tensor();
  const std::int64_t bytes = saved() - before;
  y.backward(random({64, 128}, 3));
  return {bytes, y.detach(), x.grad(), w.grad()};
}

}  // namespace

TEST_CASE("operands with one scale per tensor are kept as codes, others as they are; the gradients are the same") {
  // two scales, and sizes are rounded up
  constexpr std::int64_t kX = 64 * 256;
  constexpr std::int64_t kW = 256 * 128;
  constexpr std::int64_t kSlack = 512;
  for (const char* name : {"fp8-current", "fp8-delayed", "e3m4", "e2m3"}) {
    CAPTURE(name);
    const Quantization q = *amp::recipe(name).quantization;
    const Kept codes = kept(q, true);
    const Kept wide = kept(q, false);
    const std::int64_t bits = q.forward_x->format.storage_bits();
    CHECK(codes.bytes >= (kX + kW) * bits / 8);
    CHECK(codes.bytes <= (kX + kW) * bits / 8 + kSlack);
    CHECK(wide.bytes >= 4 * kX);  // the weight is there anyway
    CHECK(same_bits(codes.y, wide.y));
    CHECK(same_bits(codes.dx, wide.dx));
    CHECK(same_bits(codes.dw, wide.dw));
  }
  for (const char* name : {"mxfp8", "fp8-rowwise", "nvfp4"}) {
    CAPTURE(name);
    CHECK(kept(*amp::recipe(name).quantization, true).bytes >= 4 * kX);
  }
  // Another quantizer in backward takes the operand anew; W alone is kept as codes.
  Quantization q = *amp::recipe("fp8-current").quantization;
  q.wgrad_x->format = format("e5m2");
  const std::int64_t bytes = kept(q, true).bytes;
  CHECK(bytes >= 4 * kX + kW);
  CHECK(bytes <= 4 * kX + kW + kSlack);
}

TEST_CASE("checkpointed segments give the same bits, and advance histories once") {
  for (const char* name : {"fp8-delayed", "fp8-current", "mxfp8", "nvfp4", "e4m3:stochastic"}) {
    CAPTURE(name);
    const auto train = [&](bool checkpointed, std::vector<std::vector<float>>& histories) {
      manual_seed(3);
      nn::Sequential net(nn::Linear(32, 64), nn::ReLU(), nn::Linear(64, 64), nn::ReLU(), nn::Linear(64, 10));
      Generator g(7);
      const GeneratorScope scope(g);
      RecipeRun run(amp::recipe(name), net, adamw);
      const Tensor x = random({16, 32}, 1);
      const Tensor y = arange(0, 10, 0.625).to(DType::i64);
      for (int step = 0; step < 4; ++step)
        run.step([&] {
          return cross_entropy(checkpointed ? checkpoint([&](const Tensor& in) { return net(in); }, x) : net(x), y);
        });
      for (const auto& site : run.quantization()->sites())
        for (const AmaxHistory* h : {&site->x, &site->w, &site->dy}) histories.push_back(h->amax);
      std::vector<Tensor> parameters;
      for (const Tensor& p : net.parameters()) parameters.push_back(p.detach().clone());
      return parameters;
    };
    std::vector<std::vector<float>> plain_histories, histories;
    const auto plain = train(false, plain_histories);
    const auto again = train(true, histories);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], again[i]));
    CHECK(plain_histories == histories);
    if (std::string(name) == "fp8-delayed") CHECK(histories.at(0).size() == 4);
  }
}

TEST_CASE("second derivatives of a checkpointed segment are those of a program that calls it twice") {
  for (const char* name : {"mxfp8", "mxfp4", "fp8-rowwise"}) {
    CAPTURE(name);
    const Tensor x = random({8, 32}, 1).set_requires_grad();
    const Tensor w = random({32, 32}, 2).set_requires_grad();
    const auto segment = [&](const Tensor& in) { return gelu(linear(in, w)); };
    enum class How { once, checkpointed, twice };
    const auto second = [&](How how) {
      const amp::RecipeScope scope(amp::recipe(name));
      const autograd::GradOptions recorded{.create_graph = true};
      const Tensor y = how == How::checkpointed ? checkpoint(segment, x) : segment(x);
      const Tensor loss = sum(square(y));
      Tensor dx;
      if (how != How::twice) dx = autograd::grad({loss}, {x}, {}, recorded)[0];
      else dx = autograd::grad({segment(x)}, {x}, autograd::grad({loss}, {y}, {}, recorded), recorded)[0];
      return autograd::grad({sum(square(dx))}, {x, w});
    };
    const auto once = second(How::once);
    const auto checkpointed = second(How::checkpointed);
    const auto twice = second(How::twice);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(same_bits(checkpointed[i], twice[i]));
      CHECK_FALSE(same_bits(checkpointed[i], once[i]));
    }
  }
}

TEST_CASE(
    "errors that are rounded by chance are rounded anew in each step, product and operand, and right on average") {
  Quantization q;
  const Quantizer coarse{.format = format("e5m0"), .rounding = rounding_from_name("stochastic"), .scaling = {}};
  q.dgrad_dy = coarse;
  q.wgrad_dy = coarse;
  const Tensor eye64 = eye(64);            // to 1 three times of four
  const Tensor dy = full({64, 64}, 1.25);  // else to 2
  const auto state = std::make_shared<amp::QuantizationState>(q);
  manual_seed(2);
  // Gradients of x and of w, both of which are dy as it was rounded, of two products of a step.
  const auto step = [&](std::vector<Tensor>& gradients) {
    std::vector<Tensor> xs, ws;
    Tensor loss = scalar(0);
    {
      const amp::RecipeScope scope(with(q), Device::cpu(), state);
      for (int i = 0; i < 2; ++i) {
        xs.push_back(eye64.clone().set_requires_grad());
        ws.push_back(eye64.clone().set_requires_grad());
        loss = loss + (matmul(xs.back(), ws.back()) * dy).sum();
      }
    }
    loss.backward({}, true);
    for (int i = 0; i < 2; ++i)
      for (const Tensor& leaf : {xs.at(static_cast<std::size_t>(i)), ws.at(static_cast<std::size_t>(i))}) {
        gradients.push_back(leaf.grad().clone());
        leaf.zero_grad();
      }
    loss.backward();  // the same backward draws the same numbers
    CHECK(same_bits(xs[1].grad(), gradients.at(gradients.size() - 2)));
  };
  constexpr int kSteps = 16;
  std::vector<Tensor> gradients;
  for (int i = 0; i < kSteps; ++i) step(gradients);
  Tensor sum = zeros({64, 64});
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    sum.add_(gradients[i]);
    for (std::size_t j = 0; j < i; ++j) {
      // independent ones agree in 10 of 16 elements: 2560 of 4096, deviation 31
      const double agree = (gradients[i] == gradients[j]).to(DType::f32).sum().item();
      CHECK(std::abs(agree - 2560) < 6 * 31);
    }
  }
  // 64 draws per element: deviation 0.433 / 8; the largest of 4096 stays within 6 of them
  CHECK(abs(sum / (4.0 * kSteps) - 1.25).max().item() < 6 * 0.433 / 8);
}

TEST_CASE("evaluation draws no random numbers if forward rounds to nearest: training keeps its bits") {
  const auto train = [](bool evaluates) {
    manual_seed(3);
    nn::Sequential net(nn::Linear(32, 64), nn::ReLU(), nn::Linear(64, 10));
    RecipeRun run(amp::recipe("nvfp4"), net, adamw);
    const Tensor x = random({16, 32}, 1);
    const Tensor y = arange(0, 10, 0.625).to(DType::i64);
    for (int step = 0; step < 3; ++step) {
      run.step([&] { return cross_entropy(net(x), y); });
      if (evaluates) run.evaluate([&] { return checkpoint([&](const Tensor& in) { return net(in); }, x); });
    }
    return net.parameters()[0].detach().clone();
  };
  CHECK(same_bits(train(true), train(false)));
}

TEST_CASE("a module follows the recipe that is named for it") {
  const auto outputs = [](const std::vector<std::pair<std::string, std::string>>& modules) {
    manual_seed(1);
    nn::Sequential net(nn::Linear(32, 48), nn::ReLU(), nn::Linear(48, 10));
    Recipe r = amp::recipe("mxfp4");
    r.name = "test";
    r.quantization->modules = modules;
    RecipeRun run(r, net, adamw);
    const Tensor x = random({8, 32}, 1);
    const Tensor hidden = run.evaluate([&] { return net[0](x); });
    return std::pair(hidden, run.evaluate([&] { return net[2](relu(hidden)); }));
  };
  manual_seed(1);
  nn::Sequential net(nn::Linear(32, 48), nn::ReLU(), nn::Linear(48, 10));
  const NoGrad off;
  const Tensor hidden = net[0](random({8, 32}, 1));
  const auto coarse = outputs({});
  const auto first = outputs({{"first", "fp32"}});
  const auto last = outputs({{"2", "fp32"}});
  CHECK_FALSE(same_bits(coarse.first, hidden));
  CHECK(same_bits(first.first, hidden));
  CHECK_FALSE(same_bits(first.second, net[2](relu(first.first))));
  CHECK(same_bits(last.first, coarse.first));
  CHECK(same_bits(last.second, net[2](relu(last.first))));
  CHECK_FALSE(same_bits(outputs({{"first", "mxfp8"}}).first, coarse.first));
  CHECK(same_bits(outputs({{"0", "mxfp8"}, {"first", "fp32"}}).first, hidden));  // the later one counts
  CHECK(message_of([&] {
          outputs({{"head", "fp32"}});
        }) ==
        "recipe 'test': quantization: the model has no module 'head'; allowed are first, last, '' (the whole model), "
        "0, 1, 2");
}

TEST_CASE("what is kept between steps follows the module's recipe too") {
  Recipe r = amp::recipe("msamp-o1");
  r.name = "test";
  r.quantization->modules = {{"first", "fp32"}};
  manual_seed(1);
  nn::Sequential net(nn::Linear(32, 48), nn::ReLU(), nn::Linear(48, 10));
  const Tensor first = net.parameters()[0].detach().clone();
  const Tensor last = net.parameters()[2].detach().clone();
  RecipeRun run(r, net, adamw);
  CHECK(same_bits(net.parameters()[0].detach(), first));
  CHECK(same_bits(net.parameters()[2].detach(), fake_quantize(last, *r.quantization->weight)));
  CHECK_FALSE(same_bits(net.parameters()[2].detach(), last));
}

TEST_CASE("weight gradients that are not finite are left for the scaler to find") {
  Recipe r = amp::recipe("msamp-o1");
  r.name = "test";
  r.scaling = optim::GradScalerOptions{.init_scale = 1024};
  nn::Linear layer(8, 8);
  RecipeRun run(r, layer, adamw);
  const Tensor before = layer.weight.detach().clone();
  run.backward(run.forward([&] { return sum(layer(random({4, 8}, 1))); }));
  layer.weight.grad().data<float>()[3] = std::numeric_limits<float>::infinity();
  run.update();
  CHECK(run.loss_scale() == 512);
  CHECK(same_bits(layer.weight.detach(), before));
}

TEST_CASE("second derivatives: of high precision operands, and an error where codes were kept") {
  // All numbers are in [1, 2]: no sum cancels, so that every product's relative error is that of its operands, 2^-11
  // each, and of its sum (8 terms). g = 2 (x W) W^T is three products deep and the gradient of sum(g^2) three more.
  const auto positive = [](const Shape& sizes, std::uint64_t seed) {
    Generator g(seed);
    return (rand(sizes, {}, g) + 1).detach().set_requires_grad();
  };
  const Tensor x = positive({4, 8}, 1);
  const Tensor w = positive({8, 8}, 2);
  const auto second = [&](const std::optional<Quantization>& q) {
    Tensor y;
    {
      std::optional<amp::RecipeScope> scope;
      if (q) scope.emplace(with(*q));
      y = matmul(x, w);
    }
    const Tensor g = autograd::grad({sum(y * y)}, {x}, {}, {.create_graph = true})[0];
    return autograd::grad({sum(g * g)}, {x, w});
  };
  Quantization q = *amp::recipe("e5m10").quantization;
  q.save_codes = false;
  const auto got = second(q);
  const auto want = second({});
  for (std::size_t i = 0; i < 2; ++i) {
    const double error = max(abs(got[i] - want[i]) / want[i]).item();
    CHECK(error <= 6 * (2 * 0x1p-11 + 8 * 0x1p-24) * 1.01);
    CHECK(error > 0x1p-18);
  }
  CHECK(message_of([&] { second(amp::recipe("e5m10").quantization); }).find("saved as codes") != std::string::npos);
}

namespace {

// The digits in the order of the file, batch after batch.
Tensor digits_loss(nn::Module& model, std::int64_t step) {
  static const data::Dataset all = data::digits();
  const std::int64_t begin = 64 * step % (all.size() - 64);
  return cross_entropy(model(all.inputs.narrow(0, begin, 64)), all.targets.narrow(0, begin, 64));
}

}  // namespace

TEST_CASE("e8m23 gives the bits of fp32 through a training run of the digits' networks") {
  for (const bool cnn : {false, true}) {
    CAPTURE(cnn);
    const auto train = [&](const char* name) {
      manual_seed(0);
      const auto model = cnn ? lab::make_cnn(1, 8, 8, 10) : lab::make_mlp(64, 10);
      RecipeRun run(amp::recipe(name), *model, adamw);
      std::vector<Tensor> out;
      for (std::int64_t step = 0; step < (cnn ? 15 : 40); ++step)
        out.push_back(run.step([&] { return digits_loss(*model, step); }).loss);
      for (const Tensor& p : model->parameters()) out.push_back(p.detach().clone());
      return out;
    };
    const auto plain = train("fp32");
    const auto emulated = train("e8m23");
    const auto coarse = train("e8m10");
    REQUIRE(plain.size() == emulated.size());
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], emulated[i]));
    CHECK_FALSE(same_bits(plain.back(), coarse.back()));
  }
}

TEST_CASE("a run resumed in its middle repeats every bit: histories, draws, codes") {
  for (const char* name : {"fp8-delayed", "nvfp4", "msamp-o2", "e4m3:stochastic"}) {
    CAPTURE(name);
    const auto made = [] {
      manual_seed(5);
      return lab::make_mlp(64, 10);
    };
    Generator draws(11);
    const auto train = [&](RecipeRun& run, nn::Module& model, std::int64_t from, std::int64_t to) {
      const GeneratorScope scope(draws);
      for (; from < to; ++from) run.step([&] { return digits_loss(model, from); });
    };
    const auto model = made();
    const auto other = made();
    RecipeRun straight(amp::recipe(name), *model, adamw);
    train(straight, *model, 0, 6);
    StateDict saved;
    for (const auto& [key, value] : straight.state_dict())
      saved.set(key, std::holds_alternative<Tensor>(value) ? StateValue(std::get<Tensor>(value).clone()) : value);
    const StateDict generator = state_dict(draws);
    train(straight, *model, 6, 12);

    load_state_dict(draws, generator);
    RecipeRun resumed(amp::recipe(name), *other, adamw);
    resumed.load_state_dict(saved);
    train(resumed, *other, 6, 12);
    const auto a = model->parameters();
    const auto b = other->parameters();
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(same_bits(a[i], b[i]));
    const StateDict end = straight.state_dict();
    const StateDict again = resumed.state_dict();
    REQUIRE(end.size() == again.size());
    for (const auto& entry : end)
      if (const Tensor* t = std::get_if<Tensor>(&entry.value))
        CHECK_MESSAGE(same_bits(*t, again.tensor(entry.name)), entry.name);
  }
}

TEST_CASE("MS-AMP keeps weights on f16's grid, gradients on e4m3's and Adam's moments as codes") {
  manual_seed(2);
  const std::int64_t before = memory_stats()[Category::optimizer].current;
  nn::Linear layer(256, 256, {.bias = false});
  RecipeRun run(amp::recipe("msamp-o2"), layer, adamw);
  const Tensor x = random({4, 256}, 1);
  run.step([&] { return mse_loss(layer(x), x); });
  constexpr std::int64_t kNumel = 256 * 256;
  const std::int64_t moments = memory_stats()[Category::optimizer].current - before;
  CHECK(moments >= 3 * kNumel);  // e4m3 and f16, against 8 bytes in f32
  CHECK(moments <= 3 * kNumel + 512);
  const Quantization& q = *run.recipe().quantization;
  CHECK(same_bits(fake_quantize(layer.weight, *q.weight), layer.weight.detach()));
  CHECK(run.state_dict().contains("optimizer.params.0.exp_avg.codes"));
}

TEST_CASE("a quantised weight leaves its master alone, also after a resume") {
  Recipe r = amp::recipe("bf16-master");
  r.name = "test";
  r.quantization = Quantization{};
  r.quantization->weight = Quantizer{.format = format("e4m3fn"), .scaling = TensorScale{.power_of_two = true}};
  const auto made = [] {
    manual_seed(4);
    return std::make_unique<nn::Linear>(32, 32, nn::LinearOptions{.bias = false});
  };
  const Tensor x = random({8, 32}, 1);
  const auto train = [&](RecipeRun& run, nn::Linear& layer, int steps) {
    for (int i = 0; i < steps; ++i) run.step([&] { return mse_loss(layer(x), x); });
  };
  const auto layer = made();
  const auto other = made();
  const Tensor start = layer->weight.detach().clone();
  RecipeRun run(r, *layer, adamw);
  CHECK(same_bits(run.optimizer().master(layer->weight), start));
  CHECK_FALSE(same_bits(layer->weight.detach().to(DType::f32), start.to(DType::bf16).to(DType::f32)));
  train(run, *layer, 3);
  // Steps of 2e-3 are below e4m3's spacing near 0.17, 2^-6: without a master the weights would stand still.
  const Tensor master = run.optimizer().master(layer->weight);
  CHECK(max(abs(master - start)).item() > 0x1p-9);
  CHECK(same_bits(layer->weight.detach(), fake_quantize(master, *r.quantization->weight).to(DType::bf16)));
  StateDict saved;
  for (const auto& [key, value] : run.state_dict())
    saved.set(key, std::holds_alternative<Tensor>(value) ? StateValue(std::get<Tensor>(value).clone()) : value);
  train(run, *layer, 3);
  RecipeRun resumed(r, *other, adamw);
  resumed.load_state_dict(saved);
  train(resumed, *other, 3);
  CHECK(same_bits(layer->weight, other->weight));
  CHECK(same_bits(run.optimizer().master(layer->weight), resumed.optimizer().master(other->weight)));
}

TEST_CASE("a quantizer of masters rounds them after each step, and parameters follow") {
  Recipe r = amp::recipe("bf16-master");
  r.name = "test";
  r.quantization = Quantization{};
  r.quantization->master = Quantizer{.format = format("e5m10")};
  const Tensor x = random({8, 32}, 1);
  manual_seed(4);
  nn::Linear layer(32, 32, {.bias = false});
  RecipeRun run(r, layer, optim::SGDOptions{.lr = 0.5});
  Tensor expected = run.optimizer().master(layer.weight).clone();
  for (int step = 0; step < 3; ++step) {
    const Tensor weight = layer.weight.detach().clone().set_requires_grad();
    mse_loss(linear(x, weight.to(DType::f32)), x).backward();  // operands without a quantizer are f32
    expected = (expected - 0.5 * weight.grad().to(DType::f32)).to(DType::f16).to(DType::f32);
    run.step([&] { return mse_loss(layer(x), x); });
    const Tensor master = run.optimizer().master(layer.weight);
    CHECK(same_bits(master, expected));
    CHECK(same_bits(layer.weight.detach(), master.to(DType::bf16)));
  }
}

TEST_CASE("quantisation that cannot be is named") {
  const auto refused = [](const std::function<void(Recipe&)>& edit) {
    Recipe r = amp::recipe("fp8-delayed");
    r.name = "mine";
    edit(r);
    return message_of([&] { amp::check_valid(r); });
  };
  CHECK(refused([](Recipe&) {}) == "no error");
  CHECK(refused([](Recipe& r) { r.quantization->wgrad_x->format = format("e5m2"); }) ==
        "recipe 'mine': quantization, wgrad_x: delayed scaling keeps one history, so forward_x must have the same "
        "format, "
        "scaling and transform");
  CHECK(refused([](Recipe& r) {
          r.quantization->forward_w.reset();
        }).starts_with("recipe 'mine': quantization, dgrad_w: delayed scaling keeps one history"));
  CHECK(refused([](Recipe& r) {
          std::get<DelayedScale>(r.quantization->dgrad_dy->scaling).margin = 1;
        }).starts_with("recipe 'mine': quantization, wgrad_dy: delayed scaling keeps one history"));
  CHECK(refused([](Recipe& r) {
          for (auto* field : {&r.quantization->forward_x, &r.quantization->forward_w, &r.quantization->dgrad_dy,
                              &r.quantization->dgrad_w, &r.quantization->wgrad_x, &r.quantization->wgrad_dy})
            (*field)->hadamard = true;
          r.quantization->wgrad_x->signs = HadamardSigns::drawn;
          r.quantization->wgrad_dy->signs = HadamardSigns::drawn;
        }).starts_with("recipe 'mine': quantization, wgrad_x: delayed scaling keeps one history"));
  // x and W are staged in forward alone, along the axis of its product.
  const auto transform_all = [](Recipe& r) {
    for (auto* field : {&r.quantization->forward_x, &r.quantization->forward_w, &r.quantization->dgrad_dy,
                        &r.quantization->dgrad_w, &r.quantization->wgrad_x, &r.quantization->wgrad_dy})
      (*field)->hadamard = true;
  };
  CHECK(refused(transform_all) ==
        "recipe 'mine': quantization, wgrad_x: delayed scaling keeps one history, from the amaxes of forward_x, and a "
        "Hadamard transform along another axis has other numbers; forward_x and wgrad_x may have a delayed scale or "
        "a transform, not both");
  CHECK(refused([&](Recipe& r) {
          transform_all(r);
          r.quantization->wgrad_x->scaling = TensorScale{};
        }).starts_with("recipe 'mine': quantization, dgrad_w: delayed scaling keeps one history, from the amaxes of"));
  CHECK(refused([&](Recipe& r) {
          transform_all(r);
          r.quantization->wgrad_x->scaling = TensorScale{};
          r.quantization->dgrad_w->scaling = TensorScale{};
        }) == "no error");
  CHECK(refused([](Recipe& r) { r.quantization->dgrad_dy.reset(); }) == "no error");  // dy is staged by either
  CHECK(refused([](Recipe& r) { r.quantization->wgrad_x->scaling = RowScale{}; }) == "no error");
  CHECK(refused([](Recipe& r) { r.quantization->master = Quantizer{.format = format("bf16")}; }) ==
        "recipe 'mine': a quantizer of masters needs masters");
  CHECK(refused([](Recipe& r) { r.quantization->weight = r.quantization->forward_w; })
            .starts_with("recipe 'mine': quantization: gradients, weights, masters, moments and results take scales "
                         "from their own values"));
  CHECK(refused([](Recipe& r) {
          r.policy = {{OpId::linear, amp::CastPolicy::cast(DType::bf16)}};
        }) ==
        "recipe 'mine': the policy of linear is the quantisation's; leave it out of `policy`, or leave modules out by "
        "`modules`");
  for (const auto& [name, message] : std::vector<std::pair<std::string, std::string>>{
           {"e9m3", "recipe 'e9m3': format e9m3: 9 exponent bits; allowed are 1 to 8"},
           {"e4m24", "recipe 'e4m24': format e4m24: 24 mantissa bits; allowed are 0 to 23"},
           {"mxfp9", "no recipe 'mxfp9'; there are fp32, "},
           {"e4m", "recipe 'e4m': no format 'e4m'; there are "}})
    CHECK(message_of([&, n = name] { amp::recipe(n); }).starts_with(message));
  CHECK(message_of([] { amp::recipe("e4m3:nearest"); }).find("nearest-even") != std::string::npos);
}
