// The X-ray of block scales against arithmetic and against exhaustive search.
#include <doctest/doctest.h>
#include <gradual/gradual.h>
#include <gradual/inspect/block_xray.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

using namespace gradual;
using inspect::BlockXray, inspect::xray, inspect::XrayRow;

namespace {

constexpr const char* kRules[] = {"floor", "rceil", "ceil", "even"};  // in ScaleRule's order

Quantizer mx(const char* element, ScaleRule rule = ScaleRule::floor, int block = 32) {
  return {.format = format(element), .scaling = PowerBlocks{.block = block, .rule = rule}};
}
Quantizer nvfp4(bool square = false) {
  return {.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16, .square = square}};
}

// Sum of squares of x - y.
double error_of(const Tensor& x, const Tensor& y) {
  const auto a = x.to_vector<float>();
  const auto b = y.to_vector<float>();
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}

// The least error of one block over all powers of two.
double best_error(const Tensor& block, const Format& f) {
  double best = INFINITY;
  for (int e = -126; e <= 126; ++e)
    best = std::min(best, error_of(block, fake_quantize(block, {.format = f,
                                                                .overflow = Overflow::saturate,
                                                                .scaling = FixedScale{.value = std::ldexp(1.0, e)}})));
  return best;
}

}  // namespace

TEST_CASE("xray: of f64 numbers, not of their f32 roundings") {
  for (const Quantizer& q : {mx("e4m3fn", ScaleRule::rceil), mx("e2m1", ScaleRule::ceil), nvfp4()})
    for (const double scale : {1.0, 1e60, 1e-60}) {
      const int block = block_size(q.scaling);
      std::vector<double> numbers(static_cast<std::size_t>(2 * block), 0.3 * scale);
      numbers[0] = (1.5 + 0x1p-40) * scale;
      numbers[static_cast<std::size_t>(block)] = (1 - 0x1p-40) * scale;
      const Tensor x = from_data(numbers, {2, block}, {.dtype = DType::f64});
      const Tensor y = fake_quantize(x, q).to(DType::f64);
      double error = 0;
      double squares = 0;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double off = numbers[i] - y.to_vector<double>()[i];
        error += off * off;
        squares += numbers[i] * numbers[i];
      }
      CAPTURE(describe(q));
      CAPTURE(scale);
      const BlockXray found = xray(x, q);
      CHECK(found.running().squares == doctest::Approx(squares));
      CHECK(found.running().error == doctest::Approx(error));
      CHECK(found.running().nonfinite_blocks == 0);
      CHECK(found.running().zero_blocks == 0);
    }
}

TEST_CASE("xray: with amaxes spread evenly in the logarithm, floor clips what the largest significand leaves") {
  // The share of an octave above the largest significand: log2(2 / 1.5), log2(2 / 1.75), log2(2 / 1.875).
  constexpr int kBlocks = 10000;
  std::vector<float> values(kBlocks * 32, 0.01F);
  for (int b = 0; b < kBlocks; ++b) values[b * 32 + b % 32] = static_cast<float>(std::exp2(4.0 * b / kBlocks));
  const Tensor x = from_data(values, {kBlocks, 32});
  struct Case {
    const char* element;
    double significand, clipped;
  };
  for (const Case& c : {Case{"e2m1", 1.5, 41.5}, Case{"e4m3fn", 1.75, 19.3}, Case{"e2m3", 1.875, 9.3}}) {
    CAPTURE(c.element);
    const BlockXray found = xray(x, mx(c.element));
    CHECK(std::abs(found.running().clipped_blocks_percent() - 100 * std::log2(2 / c.significand)) <=
          0.04);  // 4 octaves
    CHECK(std::abs(found.running().clipped_blocks_percent() - c.clipped) < 0.1);
    CHECK(found.running().clipped == found.running().clipped_blocks);  // the largest element alone
    CHECK(found.of("rceil", 32).clipped_blocks == 0);
    CHECK(found.of("ceil", 32).clipped_blocks == 0);
    // Evenly spread: each of four octaves has a quarter of the scales, 0.01 is below all.
    const int emax = format(c.element).max_exponent();
    REQUIRE(found.running().scales.size() == 4);
    for (int e = 0; e < 4; ++e) CHECK(found.running().scales.at(e - emax) == kBlocks / 4);
  }
}

TEST_CASE("xray: errors, zeros and regret of a block by hand") {
  // 7.5 in e2m1: scale 1 clips it to 6, an error of 2.25; scale 2 makes it 3.75, rounds to 4, an error of 0.25. 0.25 is
  // a tie between 0 and 0.5 and becomes 0; 0.125 of scale 2 too.
  std::vector<float> values(8, 0.0F);
  values[3] = 7.5F;
  values[5] = -0.25F;
  const BlockXray x = xray(from_data(values, {1, 8}), mx("e2m1", ScaleRule::floor, 8));
  const XrayRow& floor = x.running();
  CHECK(floor.rule == "floor");
  CHECK(floor.block == 8);
  CHECK(floor.blocks == 1);
  CHECK(floor.elements == 2);
  CHECK(floor.clipped == 1);
  CHECK(floor.made_zero == 1);
  CHECK(floor.error == 2.25 + 0.0625);
  CHECK(floor.best_error == 0.25 + 0.0625);
  CHECK(floor.regret() == doctest::Approx(2.3125 / 0.3125));
  CHECK(floor.sqnr_db() == doctest::Approx(10 * std::log10((7.5 * 7.5 + 0.0625) / 2.3125)));
  CHECK(floor.scales == std::map<int, std::int64_t>{{0, 1}});
  CHECK(x.of("rceil", 8).error == 0.3125);
  CHECK(x.of("rceil", 8).regret() == 1);
  CHECK(x.of("rceil", 8).scales == std::map<int, std::int64_t>{{1, 1}});
}

TEST_CASE("xray: blocks of zeros and blocks that are not finite are left out") {
  std::vector<float> values(5 * 8, 1.0F);
  std::fill_n(values.begin() + 8, 8, 0.0F);
  values[17] = NAN;
  values[26] = INFINITY;
  const XrayRow r = xray(from_data(values, {5, 8}), mx("e4m3fn", ScaleRule::rceil, 8)).running();
  CHECK(r.blocks == 2);
  CHECK(r.zero_blocks == 1);
  CHECK(r.nonfinite_blocks == 2);
  CHECK(r.elements == 16);
  CHECK(r.error == 0);
  CHECK(r.regret() == 1);
  CHECK(xray(zeros({0, 8}), mx("e2m1")).running().blocks == 0);
}

TEST_CASE("xray: each row is what the edited quantizer gives, along any axis") {
  manual_seed(1);
  const Tensor x = randn({3, 40, 5}).to(DType::bf16) * exp(randn({3, 40, 1}) * 3);
  for (const int axis : {0, 1, 2, -1}) {
    const BlockXray found = xray(x, mx("e3m2"), axis);
    for (const int size : {8, 16, 32, 64, 128})
      for (int rule = 0; rule < 4; ++rule) {
        const Tensor y = fake_quantize(x, mx("e3m2", static_cast<ScaleRule>(rule), size), {.axis = axis});
        CHECK(found.of(kRules[rule], size).error == doctest::Approx(error_of(x, y)).epsilon(1e-12));
      }
  }
  const BlockXray tiles = xray(x.reshape({24, 25}), nvfp4(true));
  CHECK(tiles.running().rule == "nvfp4");
  CHECK(tiles.running().blocks == 4);
  CHECK(tiles.running().error ==
        doctest::Approx(error_of(x.reshape({24, 25}), fake_quantize(x.reshape({24, 25}), nvfp4(true)))));
}

TEST_CASE("xray: the best power of two is the best of all of them") {
  manual_seed(2);
  for (const char* element : {"e2m1", "e2m3", "e3m2", "e4m3fn"}) {
    const Tensor x = randn({12, 64}) * exp(randn({12, 64}) * 2);
    for (const int size : {8, 64}) {
      double best = 0;
      for (int r = 0; r < 12; ++r)
        for (int c = 0; c < 64; c += size) best += best_error(x.narrow(0, r, 1).narrow(1, c, size), format(element));
      const BlockXray found = xray(x, mx(element));
      CHECK(found.of("floor", size).best_error == doctest::Approx(best).epsilon(1e-12));
      for (const char* rule : kRules) CHECK(found.of(rule, size).regret() >= 1);
    }
  }
}

TEST_CASE("xray: a block that suits 4 takes 4 over 6") {
  // The tensor's amax is 1536 = 256 * 6, so its scale is 1. A block of 16 times 4: scaled to 6 the block's scale 2/3 is
  // 0.6875 in e4m3, the elements 5.8 become 6, which is 4.125; scaled to 4 the scale is 1, and nothing is lost.
  std::vector<float> values(32, 4.0F);
  std::fill_n(values.begin() + 16, 16, 1536.0F);
  const BlockXray x = xray(from_data(values, {32}), nvfp4());
  const XrayRow& adaptive = x.of("four-over-six", 16);
  CHECK(adaptive.blocks == 2);
  CHECK(adaptive.error == 0);
  CHECK(adaptive.scales == std::map<int, std::int64_t>{{0, 1}, {8, 1}});
  // nvfp4: the tensor's scale is 2688 / 1536 = 1.75, the block's 4 * 1.75 / 6 = 1.1667 is 1.125 in e4m3: 4 * 1.75 /
  // 1.125 = 6.2 is clipped to 6, and 6 * 1.125 / 1.75 is 3.857.
  CHECK(x.running().error == doctest::Approx(16 * (4 - 6 * 1.125 / 1.75) * (4 - 6 * 1.125 / 1.75)).epsilon(1e-5));
  CHECK(x.running().clipped == 16);
  CHECK(x.running().clipped_blocks == 1);

  manual_seed(3);
  const BlockXray normal = xray(randn({64, 256}), nvfp4());
  CHECK(normal.of("four-over-six", 16).error < 0.95 * normal.of("nvfp4", 16).error);
}

TEST_CASE("xray: bad quantizers and rows that are not there") {
  const Tensor x = ones({4});
  CHECK_THROWS_WITH_AS(xray(x, {.format = format("e4m3fn"), .scaling = TensorScale{}}),
                       doctest::Contains("has no scales of blocks; allowed are the kinds block and nvfp4"), Error);
  CHECK_THROWS_WITH_AS(xray(x, mx("e2m1")).of("round", 32), doctest::Contains("floor 8, ceil 8"), Error);
  CHECK_THROWS_AS(xray(ones({4}, {.dtype = DType::i64}), mx("e2m1")), Error);
}

TEST_CASE("an X-ray of a step has each operand by layer and name, and changes no bit") {
  const auto after = [](inspect::XrayObserver* xrays, const char* recipe) {
    manual_seed(4);
    nn::Sequential net(nn::Conv2d(2, 8, 3, {.padding = 1}), nn::ReLU(), nn::Flatten(), nn::Linear(8 * 16, 32),
                       nn::ReLU(), nn::Linear(32, 4));
    amp::RecipeRun run(amp::recipe(recipe), net, optim::AdamWOptions{.lr = 1e-2});
    const Tensor x = randn({6, 2, 4, 4});
    const Tensor y = zeros({6}, DType::i64);
    for (int i = 0; i < 2; ++i) {
      std::optional<ObserverScope> scope;
      if (xrays) scope.emplace(*xrays);
      run.step([&] { return cross_entropy(net(x), y); });
    }
    std::vector<float> all;
    for (const Tensor& p : net.parameters())
      for (const float v : p.to_vector<float>()) all.push_back(v);
    return all;
  };
  for (const char* recipe : {"mxfp4", "nvfp4", "fp8-block128", "quartet2"}) {
    CAPTURE(recipe);
    inspect::XrayObserver xrays;
    CHECK(after(&xrays, recipe) == after(nullptr, recipe));
    std::vector<std::string> sites;
    for (const auto& s : xrays.sites()) sites.push_back(s.layer + " " + s.operand);
    std::ranges::sort(sites);
    // The first layer hands no error back.
    std::vector<std::string> expected;
    for (const char* layer : {"0", "3", "5"})
      for (const char* operand : {"forward_x", "forward_w", "dgrad_dy", "dgrad_w", "wgrad_x", "wgrad_dy"})
        if (*layer != '0' || std::string(operand).substr(0, 5) != "dgrad")
          expected.push_back(std::string(layer) + " " + operand);
    std::ranges::sort(expected);
    CHECK(sites == expected);
    // Two steps of [6, 128]: its relu makes zeros.
    const auto& all = xrays.sites();
    const XrayRow& r = std::ranges::find_if(all, [](const auto& s) {
                         return s.layer == "3" && s.operand == "forward_x";
                       })->xray.running();
    CHECK(r.elements < 2 * 6 * 128);
    CHECK(r.elements > 2 * 6 * 32);
  }
}

TEST_CASE("xray: parts, coded and searched scales have the rules of their format and the bits of the quantizer") {
  Quantizer hif4 = amp::recipe("hif4").quantization->forward_x.value();
  Quantizer parted = mx("e2m1");  // shared microexponents
  parted.scaling = PowerParts{.block = 32, .part = 2};
  Quantizer searched = nvfp4();
  set_rule(searched.scaling, CodedRule::four_over_six);
  const auto coded = [](CodedRule rule) {
    return Quantizer{.format = format("e2m1"), .scaling = CodedBlocks{.block = 16, .rule = rule}};
  };
  const auto two_levels = [](CodedRule rule) {
    return Quantizer{.format = format("e2m1"), .scaling = Nvfp4Blocks{.block = 16, .rule = rule}};
  };
  const Quantizer eden{.format = format("e2m1"), .scaling = EdenBlocks{}};
  struct Case {
    Quantizer quantizer;
    std::vector<std::string> rules;
  };
  const Tensor x = mul(randn({6, 128}), exp(mul(randn({6, 128}), 2)));
  for (const Case& c :
       {Case{hif4, {"ue6m2"}}, Case{parted, {"floor", "ceil", "rceil", "even"}},
        Case{searched, {"four-over-six", "nvfp4", "least-squares"}},
        Case{coded(CodedRule::up), {"up", "e4m3fn", "four-over-six", "least-squares"}},
        Case{coded(CodedRule::stochastic), {"stochastic", "e4m3fn", "four-over-six", "least-squares"}},
        Case{two_levels(CodedRule::up), {"up", "nvfp4", "four-over-six", "least-squares"}},
        Case{two_levels(CodedRule::stochastic), {"stochastic", "nvfp4", "four-over-six", "least-squares"}},
        Case{eden, {"ms-eden"}},
        Case{mx("e2m1", ScaleRule::least_squares), {"floor", "ceil", "rceil", "even", "least-squares"}}}) {
    CAPTURE(describe(c.quantizer));
    const BlockXray all = xray(x, c.quantizer);
    std::vector<std::string> rules;
    for (const XrayRow& r : all.rows)
      if (r.block == block_size(c.quantizer.scaling)) rules.push_back(r.rule);
    CHECK(rules == c.rules);
    const Tensor y = fake_quantize(x, c.quantizer);
    CHECK(all.running().error == doctest::Approx(error_of(x, y)).epsilon(1e-12));
    for (const int block : {16, 64}) {
      Quantizer other = c.quantizer;
      set_block(other.scaling, block);
      const XrayRow& row = all.of(all.running().rule, block);
      CHECK(row.error == doctest::Approx(error_of(x, fake_quantize(x, other))).epsilon(1e-12));
      CHECK(row.runs == (block == block_size(c.quantizer.scaling)));
    }
    // What clips is beyond the largest value of its own part, so its code is the largest.
    const auto beyond = inspect::beyond_range(x, c.quantizer, -1, x).to(DType::i64).to_vector<std::int64_t>();
    CHECK(std::count(beyond.begin(), beyond.end(), 1) == all.running().clipped);
    const auto codes = quantize(x, c.quantizer).decode().to_vector<float>();
    for (std::size_t i = 0; i < codes.size(); ++i)
      if (beyond[i] == 1) CHECK(std::abs(codes[i]) == doctest::Approx(c.quantizer.format.max()));
  }
}

TEST_CASE("an X-ray as CSV") {
  inspect::XrayObserver xrays;
  {
    const ObserverScope scope(xrays);
    fake_quantize(randn({4, 64}), mx("e2m1"));
    quantize(randn({4, 64}), nvfp4());
    fake_quantize(randn({4, 64}), {.format = format("e4m3fn"), .scaling = TensorScale{}});
  }
  REQUIRE(xrays.sites().size() == 2);  // the third has no blocks
  CHECK(xrays.sites()[0].operand == "kept");
  std::istringstream csv(xrays.to_csv());
  std::string line;
  std::getline(csv, line);
  CHECK(line.starts_with("layer,operand,quantizer,rule,block,runs,blocks"));
  int rows = 0;
  int running = 0;
  for (; std::getline(csv, line); ++rows) running += line.find(",true,") != std::string::npos;
  CHECK(rows == 5 * 4 + 5 * 6);
  CHECK(running == 2);
  for (const auto& site : xrays.sites())
    for (const XrayRow& row : site.xray.rows) {
      CHECK(row.elements == 256);
      std::int64_t blocks = 0;
      for (const auto& [exponent, n] : row.scales) blocks += n;
      CHECK(row.blocks == blocks);
    }
}

TEST_CASE("the X-ray keeps blocks one by one, and without other rules the same row") {
  Generator generator(5);
  const GeneratorScope scope(generator);
  const Tensor x = randn({40, 100});  // rows of 4 blocks, the last one shorter
  const BlockXray all = xray(x, mx("e2m1"));
  const BlockXray own = xray(x, mx("e2m1"), -1, false);
  REQUIRE(own.rows.size() == 1);
  CHECK(own.rows[0].error == all.running().error);
  CHECK(own.columns == 4);
  REQUIRE(own.blocks.size() == 160);
  double error = 0;
  double best = 0;
  std::int64_t clipped = 0;
  for (const BlockXray::Block& b : own.blocks) {
    error += b.error;
    best += b.best_error;
    clipped += b.clipped > 0;
  }
  CHECK(error == doctest::Approx(own.rows[0].error));
  CHECK(best == doctest::Approx(own.rows[0].best_error));
  CHECK(clipped == own.rows[0].clipped_blocks);
  // The second row of blocks alone: its blocks are the same.
  const BlockXray row = xray(narrow(x, 0, 1, 1), mx("e2m1"), -1, false);
  for (std::size_t i = 0; i < 4; ++i) CHECK(row.blocks.at(i).error == own.blocks[4 + i].error);
  CHECK(xray(randn({500, 320}), mx("e2m1"), -1, false).blocks.size() <= 1024);
}

TEST_CASE("xray: the squared error is that of a common factor, of elements that become zero, and of the grid") {
  default_generator().manual_seed(1);
  const Tensor x = randn({16, 64});
  for (const Quantizer& q : {mx("e2m1"), mx("e2m1", ScaleRule::rceil), nvfp4(),
                             Quantizer{.format = format("e2m1"), .scaling = CodedBlocks{.block = 16}}}) {
    CAPTURE(describe(q));
    const XrayRow row = xray(x, q, -1, false).running();
    const auto from = x.to_vector<float>();
    const auto to = fake_quantize(x, q).to_vector<float>();
    double along = 0;
    double squares = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      along += (double{to[i]} - from[i]) * from[i];
      squares += double{from[i]} * from[i];
    }
    const double gain = along / squares;
    double scale = 0;
    double dead = 0;
    double grid = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      const double rest = double{to[i]} - (1 + gain) * from[i];
      scale += gain * from[i] * gain * from[i];
      (to[i] == 0 ? dead : grid) += rest * rest;
    }
    const double all = scale + dead + grid;
    CHECK(row.gain() == doctest::Approx(gain).epsilon(1e-9));
    CHECK(row.parts().scale == doctest::Approx(100 * scale / all));
    CHECK(row.parts().dead_zone == doctest::Approx(100 * dead / all));
    CHECK(row.parts().grid == doctest::Approx(100 * grid / all));
  }
  CHECK(xray(full({1, 32}, 2.0), mx("e2m1"), -1, false).running().parts().grid == 0);  // exact
  const std::string table = [&] {
    inspect::XrayObserver xrays;
    const ObserverScope scope(xrays);
    fake_quantize(x, mx("e2m1"));
    return xrays.to_csv();
  }();
  CHECK(table.find(",regret,gain,gain_interval,scale_percent,dead_zone_percent,grid_percent,scales\n") !=
        std::string::npos);
}
