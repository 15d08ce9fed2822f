// The shadow of whole steps: it changes no bit, its errors add up, its totals are those of a model trained in f64, and
// its attribution explains the difference of the losses.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/shadow.h>
#include <gradual/lab/models.h>
#include <gradual/lab/tasks.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <stdexcept>

using namespace gradual;
using inspect::ErrorSource;

namespace {

// A model of the lab, a batch of its data, and a run of a recipe.
struct Setup {
  data::Split split;
  std::shared_ptr<nn::Module> model;
  Tensor x, y;
  amp::RecipeRun run;

  Setup(const std::string& recipe, const std::string& name,
        const amp::MakeOptimizer& optimizer = optim::AdamWOptions{.lr = 2e-3})
      : split(lab::data_for(name == "gpt" ? "addition" : "digits").load(0)),
        model((default_generator().manual_seed(1), lab::model_for(name, split.train)())),
        x(split.train.inputs.narrow(0, 0, 32).contiguous()),
        y(split.train.targets.narrow(0, 0, 32).contiguous()),
        run(amp::recipe(recipe), *model, optimizer) {}
  Tensor loss() { return lab::classification_loss((*model)(x), y); }
  void train(int steps) {
    default_generator().manual_seed(2);
    for (int i = 0; i < steps; ++i) run.step([&] { return loss(); });
  }
  // The bits of all parameters.
  std::vector<std::uint64_t> bits() {
    std::vector<std::uint64_t> all;
    for (const auto& [name, p] : model->named_parameters())
      for (const double v : p.to_vector<double>()) all.push_back(std::bit_cast<std::uint64_t>(v));
    return all;
  }
};

double difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::f64);
  const Tensor y = b.to(DType::f64);
  return norm(x - y).item() / std::max(1e-300, norm(y).item());
}

}  // namespace

TEST_CASE("shadow: a step has the same bits with and without it, whatever the recipe") {
  for (const char* model : {"mlp", "cnn", "gpt"})
    for (const char* recipe : {"fp32", "amp-fp16", "bf16-pure", "fp16-master", "fp8-current", "mxfp4", "mxfp4-centered",
                               "fp8-smooth", "int4-lsq", "e4m3:stochastic", "pure:e8m6"}) {
      CAPTURE(std::string(model));
      CAPTURE(std::string(recipe));
      Setup alone(recipe, model);
      Setup seen(recipe, model);
      alone.train(2);
      inspect::Shadow shadow(*seen.model, &seen.run.optimizer(), {.attribution = true});
      {
        const ObserverScope scope(shadow);
        seen.train(2);
      }
      CHECK(alone.bits() == seen.bits());
      for (const inspect::ShadowRow& row : shadow.rows()) CHECK_MESSAGE(row.not_exact.empty(), row.op, row.not_exact);
    }
}

TEST_CASE("shadow: local and inherited errors sum to the total, element by element") {
  for (const char* recipe : {"amp-bf16", "fp8-current", "fp16-pure"}) {
    Setup s(recipe, "cnn");
    inspect::Shadow shadow(*s.model, &s.run.optimizer(), {.attribution = true});
    int rows = 0;
    shadow.tensors = [&](const inspect::ShadowRow& row, const Tensor& local, const Tensor& inherited,
                         const Tensor& total) {
      if (norm(total).item() == 0 || row.local.lost || row.total.lost) return;
      ++rows;
      CAPTURE(row.op);
      CHECK(difference(local + inherited, total) < 1e-9);
      // The rows hold the same.
      CHECK(row.total.squares == doctest::Approx(square(total).sum().item()).epsilon(1e-9));
    };
    const ObserverScope scope(shadow);
    s.train(1);
    CHECK(rows > 20);
  }
}

TEST_CASE("shadow: its totals are those of a model trained in f64") {
  for (const char* model : {"mlp", "cnn", "gpt"})
    for (const char* recipe : {"amp-bf16", "fp8-current", "fp16-master"}) {
      CAPTURE(std::string(model));
      CAPTURE(std::string(recipe));
      Setup s(recipe, model);
      Setup wide("fp32", model);
      wide.model->to(DType::f64);
      const bool floating = s.x.is_floating();
      const Tensor x = floating ? wide.x.to(DType::f64) : wide.x;
      inspect::Shadow shadow(*s.model, &s.run.optimizer(), {.attribution = true});
      std::map<std::string, Tensor> gradients;
      {
        const ObserverScope scope(shadow);
        s.run.backward(s.run.forward([&] { return s.loss(); }));
      }
      const double scale = s.run.loss_scale();
      const Tensor loss = lab::classification_loss((*wide.model)(x), wide.y);
      loss.backward();
      const auto ours = s.model->named_parameters();
      const auto exact = wide.model->named_parameters();
      REQUIRE(ours.size() == exact.size());
      for (std::size_t i = 0; i < ours.size(); ++i) {
        CAPTURE(ours[i].first);
        const Tensor shadowed = shadow.exact(ours[i].second.grad()) / scale;
        // A bias before batch norm has a gradient of 0, but for rounding.
        if (norm(exact[i].second.grad()).item() < 1e-12) continue;
        CHECK(difference(shadowed, exact[i].second.grad()) < 1e-9);
        // The step's own gradient is another one.
        if (ours[i].second.dim() > 1) CHECK(difference(ours[i].second.grad().to(DType::f64) / scale, shadowed) > 1e-6);
      }
      CHECK(shadow.attribution().exact_loss == doctest::Approx(loss.item()).epsilon(1e-12));
    }
}

TEST_CASE("shadow: shares of local errors explain the loss") {
  for (const char* model : {"mlp", "cnn", "gpt"})
    for (const char* recipe : {"fp32", "amp-bf16", "amp-fp16", "fp8-current", "pure:e8m6"}) {
      CAPTURE(std::string(model));
      CAPTURE(std::string(recipe));
      Setup s(recipe, model);
      s.train(20);
      inspect::Shadow shadow(*s.model, &s.run.optimizer(), {.attribution = true});
      {
        const ObserverScope scope(shadow);
        s.train(1);
      }
      const inspect::Attribution a = shadow.attribution();
      MESSAGE(std::string(model) << " " << std::string(recipe) << ": difference " << a.difference() << ", explained "
                                 << a.explained << ", to first order " << a.first_order << ", decided otherwise "
                                 << a.decisions);
      REQUIRE(!a.rows.empty());
      double shares = 0;
      for (const inspect::ShadowRow* row : a.rows) shares += std::abs(row->share);
      // What is left is small against what the ops contribute, which may cancel in the sum.
      CHECK(std::abs(a.explained - a.difference()) < 0.05 * shares + 1e-12);
      // It is below 5% of the difference, or the table says why.
      const bool small = std::abs(a.explained - a.difference()) < 0.05 * std::abs(a.difference());
      const std::string table = to_string(a);
      CHECK((small || table.find("decides otherwise: ") != std::string::npos ||
             table.find("of third order") != std::string::npos));
    }
}

TEST_CASE("shadow: the loss scale is in no number of the attribution, and SGD's update is that of f64") {
  Setup s("amp-fp16", "mlp", optim::SGDOptions{.lr = 0.1});
  Setup wide("fp32", "mlp");
  amp::RecipeRun& run = s.run;
  inspect::Shadow shadow(*s.model, &run.optimizer(), {.attribution = true});
  wide.model->load_state_dict(run.master_state_dict());
  wide.model->to(DType::f64);
  const double before = norm(wide.model->parameters()[0]).item();
  {
    const ObserverScope scope(shadow);
    run.step([&] { return s.loss(); });
  }
  optim::SGD sgd(wide.model->parameters(), {.lr = 0.1});
  const Tensor loss = lab::classification_loss((*wide.model)(wide.x.to(DType::f64)), wide.y);
  loss.backward();
  sgd.step();
  const inspect::Attribution a = shadow.attribution();
  CHECK(a.exact_loss == doctest::Approx(loss.item()).epsilon(1e-9));
  CHECK(a.loss == doctest::Approx(loss.item()).epsilon(1e-2));
  CHECK(norm(wide.model->parameters()[0]).item() != before);
  const auto ours = s.model->named_parameters();
  const auto exact = wide.model->named_parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) CHECK(difference(shadow.exact(ours[i].second), exact[i].second) < 1e-9);
}

TEST_CASE("shadow: of several steps the attribution is the last one's") {
  Setup s("amp-bf16", "mlp");
  inspect::Shadow shadow(*s.model, &s.run.optimizer(), {.attribution = true});
  const ObserverScope scope(shadow);
  s.train(3);
  const inspect::Attribution a = shadow.attribution();
  double shares = 0;
  for (const inspect::ShadowRow* row : a.rows) shares += std::abs(row->share);
  CHECK(std::abs(a.explained - a.difference()) < 0.05 * shares);
}

TEST_CASE("shadow: the table by layer has an op's own error next to errors from before it") {
  Setup s("fp16-master", "cnn");
  inspect::Shadow shadow(*s.model, &s.run.optimizer(), {.attribution = true});
  const ObserverScope scope(shadow);
  s.train(2);
  const std::string table = shadow.by_layer();
  CHECK(table.find("\n1                         forward w before") != std::string::npos);  // the norm's parameters
  CHECK(table.find("\n1                         forward  ") != std::string::npos);
}

TEST_CASE("shadow: a backward that starts otherwise has no attribution") {
  const auto message = [](auto backward) {
    Setup s("amp-bf16", "mlp");
    inspect::Shadow shadow(*s.model, nullptr, {.attribution = true});
    {
      const ObserverScope scope(shadow);
      backward(s);
    }
    try {
      static_cast<void>(shadow.attribution());
    } catch (const Error& e) { return std::string(e.what()); }
    return std::string();
  };
  CHECK(message([](Setup& s) {
          (*s.model)(s.x).backward(ones({32, 10}, {}));
        }).find("a loss of one element") != std::string::npos);
  CHECK(message([](Setup& s) { s.loss().reshape({1}).backward(); }).empty());  // a view of the loss is the loss
}

TEST_CASE("shadow: the parts of a quantised contraction are its local error") {
  Setup s("fp8-current", "mlp");
  inspect::Shadow shadow(*s.model, &s.run.optimizer(), {.attribution = true});
  {
    const ObserverScope scope(shadow);
    s.train(1);
  }
  std::map<inspect::Product, int> products;
  for (const inspect::ShadowRow& row : shadow.rows()) {
    if (!row.quantised) continue;
    REQUIRE(row.product);
    ++products[*row.product];
    REQUIRE(row.parts.size() == 4);
    CHECK(row.parts[0].source == (*row.product == inspect::Product::forward ? ErrorSource::x : ErrorSource::dy));
    CHECK(row.parts[1].source == (*row.product == inspect::Product::wgrad ? ErrorSource::x : ErrorSource::w));
    // e4m3 rounds each operand to a relative 2^-4 at most, and dy to e5m2; f32 sums add little.
    const double part = std::sqrt(row.parts[0].squares / row.local.exact_squares);
    CHECK(part > 1e-3);
    CHECK(part < 0.2);
    CHECK(std::sqrt(row.parts[2].squares / row.local.exact_squares) < 1e-5);
  }
  CHECK(products == std::map<inspect::Product, int>{
                        {inspect::Product::forward, 3}, {inspect::Product::dgrad, 2}, {inspect::Product::wgrad, 3}});
}

TEST_CASE("shadow: the parts of a quantised product are those of f64, beyond the range of f32 too") {
  const Tensor x = randn({16, 64});
  const Tensor w = randn({32, 64}).set_requires_grad();
  const auto squares = [](const Tensor& error) { return square(error).sum().item(); };
  for (const char* name : {"fp8-current", "mxfp4", "mx:e3m2"})
    for (const double size : {1.0, 1e22}) {  // products of 1e44 are Inf in f32
      CAPTURE(std::string(name));
      CAPTURE(size);
      const amp::Recipe recipe = amp::recipe(name);
      const Tensor a = x * size;
      const Tensor b = (w.detach() * size).set_requires_grad();
      inspect::Shadow shadow;
      Tensor local;
      shadow.tensors = [&](const inspect::ShadowRow&, const Tensor& error, const Tensor&, const Tensor&) {
        local = error;
      };
      Tensor y;
      {
        const amp::RecipeScope scope(recipe, Device::cpu());
        const ObserverScope observing(shadow);
        y = linear(a, b);
      }
      REQUIRE(shadow.rows().size() == 1);
      const auto& parts = shadow.rows()[0].parts;
      REQUIRE(parts.size() == 4);
      const auto rounded = [](const Tensor& t, const std::optional<Quantizer>& q) {
        return fake_quantize(t.detach(), *q, {.axis = -1}).to(DType::f64);
      };
      const Tensor a64 = a.to(DType::f64);
      const Tensor b64 = b.detach().to(DType::f64);
      const Tensor aq = rounded(a, recipe.quantization->forward_x);
      const Tensor bq = rounded(b, recipe.quantization->forward_w);
      const Tensor of_x = linear(aq - a64, b64);
      const Tensor of_w = linear(aq, bq - b64);
      CHECK(parts[0].squares == doctest::Approx(squares(of_x)).epsilon(1e-5));
      CHECK(parts[1].squares == doctest::Approx(squares(of_w)).epsilon(1e-5));
      if (size == 1) CHECK(difference(local, y.detach().to(DType::f64) - linear(a64, b64)) < 1e-5);
    }
}

TEST_CASE("shadow: a rewrite whose product is not linear in its operands") {
  const Tensor x = randn({16, 64});
  const Tensor w = randn({32, 64}).set_requires_grad();
  const Quantizer e3m2 = *amp::recipe("mx:e3m2").quantization->forward_x;
  const auto quantised = [&e3m2](const Tensor& t) { return fake_quantize(t, e3m2, {.axis = -1}); };
  amp::PolicyTable table;
  table.set("linear", amp::CastPolicy::rewrite("relu of it", [&](const OpCall& call) -> Outputs {
              return {{linear_relu(quantised(call[0]), quantised(call[1]))}};
            }));
  inspect::Shadow shadow;
  Tensor local, y;
  shadow.tensors = [&](const inspect::ShadowRow&, const Tensor& error, const Tensor&, const Tensor&) { local = error; };
  {
    const amp::Autocast scope({.table = table});
    const ObserverScope observing(shadow);
    y = linear(x, w);
  }
  REQUIRE(shadow.rows().size() == 1);
  CHECK(shadow.rows()[0].parts.size() == 4);
  const Tensor exact = relu(linear(x.to(DType::f64), w.detach().to(DType::f64)));
  CHECK(difference(local, y.detach().to(DType::f64) - exact) < 1e-9);
}

TEST_CASE("shadow: a step after one that an exception left is observed as any other") {
  struct Fails final : Function {
    bool fails = true;
    std::vector<Tensor> forward(const std::vector<Tensor>& inputs) override {
      const Tensor y = relu(inputs[0]);
      if (fails) throw std::runtime_error("planted");
      return {y};
    }
    std::vector<Tensor> backward(const std::vector<Tensor>& grads) override { return {grads[0]}; }
  };
  Tensor w = full({4, 4}, 0.3, {.dtype = DType::f32}).set_requires_grad();
  const auto step = [&w](bool fails) {
    auto function = std::make_shared<Fails>();
    function->fails = fails;
    sum(apply(function, {mul(w, w)})[0]).backward();
  };
  const auto table = [&](bool fails) {
    inspect::Shadow shadow({.attribution = true});
    const ObserverScope scope(shadow);
    if (fails) CHECK_THROWS_AS(step(true), std::runtime_error);
    const std::size_t first = shadow.rows().size();
    w.zero_grad();
    step(false);
    CHECK(shadow.attribution().difference() != 0);
    std::string rows;
    for (std::size_t i = first; i < shadow.rows().size(); ++i) {
      const inspect::ShadowRow& r = shadow.rows()[i];
      rows += r.op + " " + std::to_string(r.local.squares) + " " + std::to_string(r.share) + "\n";
    }
    return rows;
  };
  CHECK(table(true) == table(false));
}

TEST_CASE("shadow: what another observer saw recorded makes no later op a recorded one") {
  const Tensor w = full({8, 8}, 0.3, {.dtype = DType::bf16}).set_requires_grad();
  const Tensor x = full({8, 8}, 0.7, {});
  Observer other;
  {
    const ObserverScope scope(other);
    static_cast<void>(mul(w, w));
  }
  inspect::Shadow shadow({.attribution = true});
  {
    const ObserverScope scope(shadow);
    sum(matmul(x.to(DType::bf16), w)).backward();
  }
  const auto product = std::ranges::find(shadow.rows(), "matmul", &inspect::ShadowRow::op);
  REQUIRE(product != shadow.rows().end());
  CHECK(std::ranges::count(product->parts, ErrorSource::x_before, &inspect::ErrorPart::source) == 1);
}

TEST_CASE("shadow: the numbers of tensors that no longer exist are freed") {
  inspect::Shadow shadow;
  const ObserverScope scope(shadow);
  const std::int64_t before = memory_stats().total.current;
  for (int i = 13; i <= 19; ++i) static_cast<void>(ones({std::int64_t{1} << i}) + 1);
  static_cast<void>(ones({1}) + 1);
  CHECK(memory_stats().total.current - before < 1 << 18);  // of 16 MiB
}

TEST_CASE("shadow: without a backward there is no attribution") {
  CHECK_THROWS_WITH_AS(static_cast<void>(inspect::Shadow().attribution()), doctest::Contains(".attribution = true"),
                       Error);
  const inspect::Shadow shadow({.attribution = true});
  CHECK_THROWS_WITH_AS(static_cast<void>(shadow.attribution()), doctest::Contains("no backward was observed"), Error);
}
