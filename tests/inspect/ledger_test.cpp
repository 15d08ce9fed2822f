// The ledger, what it says of tensors, and the update meter.
#include <doctest/doctest.h>
#include <gradual/core/formats/accumulator.h>
#include <gradual/gradual.h>
#include <gradual/inspect/ledger.h>
#include <gradual/inspect/update_meter.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

using namespace gradual;
using inspect::Ledger, inspect::LedgerRow, inspect::Numbers;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<std::string> lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> all;
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

const LedgerRow* row_of(const Ledger& ledger, const std::string& site) {
  const auto found = std::ranges::find_if(ledger.rows(), [&](const LedgerRow& r) { return r.site() == site; });
  return found == ledger.rows().end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("numbers of a tensor: zeros, subnormals of its own dtype, NaN, Inf and the range") {
  const Tensor x = tensor({0.0, -0.0, 0x1p-15, 0x1p-14, -8.0, kInf, -kInf, kNaN});
  const Numbers f32 = inspect::numbers_of(x);
  const Numbers f16 = inspect::numbers_of(x.to(DType::f16));
  const Numbers f64 = inspect::numbers_of(x.to(DType::f64));
  for (const Numbers& n : {f32, f16, f64}) {
    CHECK(n.elements == 8);
    CHECK(n.zeros == 2);
    CHECK(n.inf == 2);
    CHECK(n.nan == 1);
    CHECK(n.least == 0x1p-15);
    CHECK(n.largest == 8);
  }
  CHECK(f32.subnormal == 0);
  CHECK(f16.subnormal == 1);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e5m2}) {  // more than a block and a chunk
    constexpr std::int64_t kTimes = 50001;
    const Numbers many = inspect::numbers_of(x.to(dtype).expand({kTimes, 8}));
    CHECK(many.elements == 8 * kTimes);
    CHECK(many.zeros == 2 * kTimes);
    CHECK(many.subnormal == (dtype == DType::f16 || dtype == DType::f8e5m2 ? kTimes : 0));
    CHECK(many.inf == 2 * kTimes);
    CHECK(many.nan == kTimes);
    CHECK(many.least == 0x1p-15);
    CHECK(many.largest == 8);
  }
  CHECK(inspect::numbers_of(tensor({5e-324, 1.0}, {.dtype = DType::f64})).subnormal == 1);
  CHECK(inspect::numbers_of(zeros({3, 0})).elements == 0);
  CHECK(inspect::numbers_of(Tensor()).elements == 0);
  CHECK(inspect::numbers_of(ones({4, 3}).transpose(0, 1)).elements == 12);
}

TEST_CASE("a ledger has a row for each op of a step, and one for each parameter of the optimizer's call") {
  manual_seed(0);
  nn::Sequential net(nn::Linear(8, 16), nn::ReLU(), nn::Linear(16, 4));
  amp::RecipeRun run(amp::recipe("amp-fp16"), net, optim::AdamWOptions{.lr = 1e-3});
  const Tensor x = randn({5, 8});
  const Tensor y = zeros({5}, DType::i64);
  Ledger ledger(net);
  {
    const ObserverScope scope(ledger);
    run.step([&] { return cross_entropy(net(x), y); });
  }
  for (const char* name : {"0.weight", "0.bias", "2.weight", "2.bias"}) {
    const LedgerRow* row = row_of(ledger, std::string("adam_step_ of ") + name);
    REQUIRE(row);
    CHECK(row->phase == Phase::optimizer);
    CHECK(row->state.size() == 2);
    CHECK(row->numbers.elements > 0);
  }
  const auto count = [&](Phase phase) {
    return std::ranges::count_if(ledger.rows(), [&](const LedgerRow& r) { return r.phase == phase; });
  };
  CHECK(count(Phase::forward) >= 6);
  CHECK(count(Phase::backward) >= 6);
  const auto cast =
      std::ranges::find_if(ledger.rows(), [](const LedgerRow& r) { return r.op == "cast" && r.to == DType::f16; });
  REQUIRE(cast != ledger.rows().end());
  CHECK(cast->cause.find("amp") != std::string::npos);
  CHECK(cast->sqnr_db > 60);
  CHECK(cast->sqnr_db < 90);
  CHECK(ledger.first_nonfinite() == nullptr);

  const auto csv = lines(ledger.to_csv());
  const auto jsonl = lines(ledger.to_jsonl());
  REQUIRE(jsonl.size() == ledger.rows().size());
  CHECK(csv.size() == jsonl.size() + 1);
  CHECK(csv[0].starts_with("number,phase,op,parameter,"));
  for (std::size_t i = 0; i < jsonl.size(); ++i) CHECK(nlohmann::json::parse(jsonl[i]).at("number") == i);
  CHECK(ledger.to_string().find("adam_step_ of 2.weight") != std::string::npos);
}

TEST_CASE("a cast's SQNR is that of its elements") {
  const Tensor x = tensor({1.0, 1.0 + 0x1p-12});
  Ledger ledger;
  {
    const ObserverScope scope(ledger);
    static_cast<void>(x.to(DType::f16));
  }
  const double noise = 0x1p-24;
  const double signal = 1 + std::pow(1 + 0x1p-12, 2);
  CHECK(ledger.rows()[0].sqnr_db == doctest::Approx(10 * std::log10(signal / noise)));
}

TEST_CASE("the first row that makes NaN or Inf is found, and not what inherits it") {
  Ledger ledger;
  {
    const ObserverScope scope(ledger);
    const Tensor x = full({4}, 1e5) * 1;
    const Tensor half = x.to(DType::f16);
    static_cast<void>(half * 2 - half);
  }
  REQUIRE(ledger.first_nonfinite());
  CHECK(ledger.first_nonfinite()->op == "cast");
  CHECK(ledger.first_nonfinite()->counts.overflow == 4);

  Ledger in_place;
  Tensor x = full({4}, 4e4, DType::f16);
  {
    const ObserverScope scope(in_place);
    x.mul_(2);
    x.mul_(0);
  }
  CHECK(in_place.first_nonfinite()->number == 0);
}

TEST_CASE("the update meter: what vanishes in bf16, and what masters, Kahan and stochastic updates keep") {
  // A weight of 1 and an update of 1/2048: below half an ulp of bf16 (1/256).
  const auto updates = [](optim::LowPrecisionUpdate update) {
    nn::Linear layer(64, 64, {.bias = false});
    {
      const NoGrad off;
      layer.weight.fill_(1);
    }
    layer.to(DType::bf16);
    optim::SGD sgd({optim::named_group(layer.named_parameters())}, {.lr = 1, .precision = {.update = update}});
    inspect::UpdateMeter meter(layer);
    const ObserverScope scope(meter);
    for (int i = 0; i < 4; ++i) {
      layer.weight.set_grad(full({64, 64}, -0x1p-11, DType::bf16));
      sgd.step();
    }
    inspect::Update all;
    for (const inspect::Update& u : meter.updates()) all += u;
    return all;
  };
  using enum optim::LowPrecisionUpdate;
  const inspect::Update lost = updates(none);
  CHECK(lost.parameter == "weight");
  CHECK(lost.elements == 4 * 64 * 64);
  CHECK(lost.intended == lost.elements);
  CHECK(lost.vanished == lost.elements);
  CHECK(lost.arriving() == 0);
  CHECK(lost.ratio() == doctest::Approx(0x1p-11));
  for (const auto update : {masters, kahan}) {
    CHECK(updates(update).vanished == 0);
    CHECK(updates(update).arriving() == doctest::Approx(1));
  }
  CHECK(updates(stochastic).arriving() == doctest::Approx(1).epsilon(0.1));
  CHECK(updates(stochastic).vanished_percent() > 80);
}

TEST_CASE("a ledger and a meter change no bit, Adam with weight decay") {
  const auto after = [](bool observed) {
    manual_seed(3);
    nn::Sequential net(nn::Linear(8, 16), nn::Dropout(0.2), nn::ReLU(), nn::Linear(16, 4));
    amp::RecipeRun run(amp::recipe("bf16-pure"), net, optim::AdamWOptions{.lr = 1e-2});
    const Tensor x = randn({5, 8});
    const Tensor y = zeros({5}, DType::i64);
    for (int i = 0; i < 3; ++i) {
      Ledger ledger(net);
      inspect::UpdateMeter meter(net);
      std::optional<ObserverScope> a, b;
      if (observed) {
        a.emplace(ledger);
        b.emplace(meter);
      }
      run.step([&] { return cross_entropy(net(x), y); });
      if (observed) CHECK(meter.updates().size() == 4);
    }
    std::vector<float> all;
    for (const Tensor& p : net.parameters())
      for (const float v : p.to_vector<float>()) all.push_back(v);
    return all;
  };
  CHECK(after(false) == after(true));
}

TEST_CASE(
    "where a NaN came from: through what each op reads, past a mask that is meant and an Inf that comes to nothing") {
  const auto origin = [](const Ledger& ledger) {
    const auto last =
        std::find_if(ledger.rows().rbegin(), ledger.rows().rend(), [](const auto& r) { return !r.finite(); });
    REQUIRE(last != ledger.rows().rend());
    return *ledger.origin(*last);
  };
  const Tensor x = tensor({0.5, -1.0, 2.0, -3.0});
  Ledger masked, read, made;
  {
    const ObserverScope scope(masked);
    static_cast<void>(softmax(where(lt(x, 0), Operand(-kInf), x), 0));
  }
  CHECK(masked.first_nonfinite() == nullptr);
  {
    const ObserverScope scope(made);
    const Tensor harmless = 1 / (x.to(DType::f16) * 60000);
    const Tensor large = x.to(DType::f16) * 50000;
    static_cast<void>(harmless + (large - large));
  }
  CHECK(made.first_nonfinite()->number < origin(made).number);  // 2 * 60000 comes to nothing
  CHECK(origin(made).op == "mul");
  CHECK(!origin(made).nonfinite_inputs);
  const Tensor bad = tensor({kNaN, 1.0, 1.0, 1.0});
  {
    const ObserverScope scope(read);
    static_cast<void>(exp(x * bad) * 2);
  }
  CHECK(origin(read).op == "mul");
  CHECK(origin(read).number == 0);
  CHECK(origin(read).nonfinite_inputs);
}

TEST_CASE("a ledger tells what a sum drops: against f32 sums, and of an addition in half") {
  Ledger ledger;
  const Tensor ones64 = ones({1, 64});
  const Tensor wide = full({64, 1}, 1 + 0x1p-4);
  {
    const ObserverScope scope(ledger);
    const AccumulatorScope narrow(accumulator("e5m2"));
    static_cast<void>(matmul(ones64, wide));
  }
  CHECK(ledger.rows()[0].accumulator == "e5m2");
  CHECK(ledger.rows()[0].accumulation_db < 3);  // the sum stays at 8
  Ledger unfused;
  for (const char* const name : {"f32/product=e5m2", "fp16-acc/product=e5m2"}) {
    const ObserverScope scope(unfused);
    const AccumulatorScope rounds_products(accumulator(name));
    static_cast<void>(matmul(ones64, wide));
    static_cast<void>(sum(wide));
    static_cast<void>(mean(wide));
  }
  std::vector<std::string> named;
  for (const LedgerRow& row : unfused.rows()) named.push_back(row.accumulator);
  CHECK(named == std::vector<std::string>{"f32/product=e5m2", "", "", "fp16-acc/product=e5m2", "fp16-acc", "fp16-acc"});
  Ledger sums;
  {
    const ObserverScope scope(sums);
    const Tensor a = tensor({256.0, 256.0, 1.0, 0.0}).to(DType::bf16);
    const Tensor b = tensor({0.5, 2.0, 1.0, 1.0}).to(DType::bf16);
    static_cast<void>(a + b);
    static_cast<void>(b + 1e-9);  // what an eps is for
  }
  const auto& rows = sums.rows();
  REQUIRE(rows.size() == 4);
  CHECK(rows[2].added == 3);
  CHECK(rows[2].swamped == 1);
  CHECK(rows[3].added == 0);
}

TEST_CASE("a ledger's files have the optimizer's state") {
  manual_seed(0);
  nn::Linear net(8, 4);
  amp::Recipe r = amp::recipe("fp16-pure");
  amp::RecipeRun run(r, net, optim::AdamWOptions{.lr = 1e-3});
  Ledger ledger(net);
  {
    const ObserverScope scope(ledger);
    run.step([&] { return cross_entropy(net(full({5, 8}, 1e-3)), zeros({5}, DType::i64)); });
  }
  const LedgerRow* row = row_of(ledger, "adam_step_ of weight");
  REQUIRE(row);
  CHECK(row->state_dtype == DType::f16);
  CHECK(row->eps_is_zero);
  CHECK(row->lost_moments > 0);
  const auto j = nlohmann::json::parse(lines(ledger.to_jsonl())[static_cast<std::size_t>(row->number)]);
  CHECK(j.at("state").size() == 2);
  CHECK(j.at("state_dtype") == "f16");
  CHECK(j.at("eps") == 1e-8);
  CHECK(j.at("eps_is_zero") == true);
  CHECK(lines(ledger.to_csv())[0].find(",state,state_dtype,eps,eps_is_zero,lost_moments") != std::string::npos);
}

TEST_CASE("bias: the mean error and the part of the numbers in it, with intervals, by their definitions") {
  const Tensor exact = tensor({1.0, -2.0, 3.0, 5.0});
  const inspect::ErrorSum shrunk = inspect::error_of(exact * 0.75, exact);
  CHECK(shrunk.gain() == -0.25);
  const double size = std::sqrt(39.0 / 4);
  CHECK(shrunk.bias() == doctest::Approx(-0.25 * 7 / 4 / size));
  const inspect::ErrorSum shifted = inspect::error_of(exact + 0.5, exact);
  CHECK(shifted.bias() == doctest::Approx(0.5 / size));
  CHECK(shifted.bias_interval() == doctest::Approx(0));  // all errors are the same
  CHECK(shifted.gain() == doctest::Approx(0.5 * 7 / 39));
  CHECK(inspect::error_of(exact, exact).gain() == 0);
  CHECK(inspect::ErrorSum{}.bias() == 0);
}

TEST_CASE("bias: stochastic rounding has none within its interval; floor's scales make numbers smaller") {
  int outside = 0;
  constexpr int kDraws = 100;
  const Tensor x = randn({64, 64});
  const Quantizer nearest{.format = format("e2m1"), .scaling = PowerBlocks{}};
  Quantizer stochastic{.format = format("e2m1"), .rounding = {.mode = RoundingMode::stochastic}};
  stochastic.scaling = PowerBlocks{.rule = ScaleRule::rceil};  // clips nothing
  for (std::uint64_t k = 0; k < kDraws; ++k) {
    const inspect::ErrorSum e = inspect::error_of(fake_quantize(x, stochastic, {.key = {.seed = 1, .stream = k}}), x);
    outside += std::abs(e.gain()) > e.gain_interval();
    outside += std::abs(e.bias()) > e.bias_interval();
  }
  CHECK(outside < 2 * kDraws * 12 / 100);  // 5% are expected
  const inspect::ErrorSum e = inspect::error_of(fake_quantize(x, nearest), x);
  CHECK(e.gain() < -2 * e.gain_interval());
}

TEST_CASE("bias: the ledger has that of casts and of quantised operands") {
  default_generator().manual_seed(1);
  nn::Linear layer(64, 8);
  amp::RecipeRun run(amp::recipe("mxfp4"), layer, optim::SGDOptions{.lr = 0.1});
  const Tensor x = randn({32, 64});
  Ledger ledger(layer);
  {
    const ObserverScope scope(ledger);
    run.step([&] { return square(layer(x)).mean(); });
  }
  int quantised = 0;
  for (const LedgerRow& r : ledger.rows()) {
    if (std::isnan(r.sqnr_db)) {
      CHECK(std::isnan(r.gain));
      continue;
    }
    ++quantised;
    CHECK(std::isfinite(r.gain));
    CHECK(std::isfinite(r.bias_interval));
  }
  CHECK(quantised >= 4);
  const inspect::ErrorSum e = inspect::error_of(fake_quantize(x, *run.recipe().quantization->forward_x), x);
  const auto of_x = std::ranges::find_if(ledger.rows(), [&](const LedgerRow& r) { return r.gain == e.gain(); });
  REQUIRE(of_x != ledger.rows().end());
  CHECK(of_x->bias == e.bias());
  CHECK(lines(ledger.to_csv())[0].find(",sqnr_db,bias,bias_interval,gain,gain_interval,") != std::string::npos);
}
