// Why Low-Precision Transformer Training Fails: An Analysis on Flash Attention (Qiu and Yao 2025, arXiv 2510.04212).
//
// A row of attention whose maximum occurs more than once has numbers P = exp(S - max) of exactly 1. Then P V adds bf16
// numbers as they are. If the values of these keys have one sign, what the other keys add decides every tie in one
// direction: O has a bias. It is the same in delta = rowsum(dO O), and so in the gradient of the query's weight, where
// it adds up over the steps. With a shifted maximum no P of such a row is 1, and the errors point anywhere.
#include <gradual/amp/attention.h>

#include <cmath>
#include <cstdint>
#include <cstdio>

#include "paper.h"

using namespace gradual;

namespace {

constexpr const char* kUsage =
    "Flash attention in bf16 2025: repeated maxima give its rounding errors a bias; shifted maxima do not.\n"
    "  flash_bf16_2025\n  options: --seeds N  --draws N\n";

constexpr std::int64_t kQueries = 32;
constexpr std::int64_t kKeys = 32;
constexpr std::int64_t kSize = 16;

Tensor bf16(const Tensor& t) { return t.to(DType::bf16).to(DType::f32); }

// One batch: queries near one direction, which two equal keys have. All values are near -2.3, all gradients of O near
// one vector. All of these are bf16 numbers.
struct Batch {
  Tensor x = randn({kQueries, kSize}) * 0.3 + 1.0;  // what the query's weight multiplies
  Tensor q = bf16(randn({kQueries, kSize}) * 0.1 + 1.0).set_requires_grad();
  Tensor k;
  Tensor v = bf16(randn({kKeys, kSize}) * 0.2 - 2.3);
  Tensor dy = bf16(randn({kQueries, kSize}) * 0.3 - 1.0);

  Batch() {
    k = randn({kKeys, kSize}) * 0.3;
    k.narrow(0, 0, 2).fill_(2);
    k = bf16(k);
  }
};

struct Step {
  Tensor o, dw;  // f64
};
Step step(const Batch& b, const amp::AttentionPrecision* how) {
  const DType dtype = how ? DType::f32 : DType::f64;
  const Tensor q = b.q.detach().to(dtype).set_requires_grad();
  const Tensor k = b.k.to(dtype);
  const Tensor v = b.v.to(dtype);
  const Tensor o = how ? amp::attention_in_blocks(q, k, v, {}, {}, *how) : scaled_dot_product_attention(q, k, v);
  autograd::backward({o}, {b.dy.to(dtype)});
  return {o.detach().to(DType::f64), matmul(b.x.to(DType::f64).t(), q.grad().to(DType::f64))};
}

// Of the errors over all draws.
struct Errors {
  double o = 0;         // the mean error of O, relative
  double delta = 0;     // the mean error of delta in units of its root mean square
  double gradient = 0;  // the error of the mean gradient in units of the error of one
};
Errors measured(const amp::AttentionPrecision& how, std::uint64_t seed, long draws) {
  default_generator() = Generator(seed);
  double o = 0;
  double delta = 0;
  double delta_squares = 0;
  double squares = 0;
  Tensor sum = zeros({kSize, kSize}, {.dtype = DType::f64});
  for (long i = 0; i < draws; ++i) {
    const Batch b;
    const Step exact = step(b, nullptr);
    const Step got = step(b, &how);
    const Tensor error = got.o - exact.o;
    const Tensor of_delta = gradual::sum(error * b.dy.to(DType::f64), {1});
    o += (error / abs(exact.o)).mean().item();
    delta += of_delta.mean().item();
    delta_squares += square(of_delta).mean().item();
    const Tensor dw = got.dw - exact.dw;
    sum = sum + dw;
    squares += square(dw).sum().item();
  }
  const auto n = static_cast<double>(draws);
  return {o / n, delta / n / std::sqrt(delta_squares / n), norm(sum).item() / n / std::sqrt(squares / n)};
}

void body(example::Arguments& arguments) {
  const long seeds = arguments.number("--seeds", 3);
  const long draws = arguments.number("--draws", 256);
  arguments.done();
  std::printf("mean of %ld seeds, %ld batches each      O       delta    gradient of %ld batches\n", seeds, draws,
              draws);
  struct Way {
    const char* name;
    amp::AttentionPrecision how;
    Errors mean = {};
  };
  Way ways[] = {{"bf16-flash", *amp::recipe("bf16-flash").quantization->attention},
                {"bf16-flash-shifted", *amp::recipe("bf16-flash-shifted").quantization->attention},
                {"bf16-flash, running sums in f32", *amp::recipe("bf16-flash").quantization->attention}};
  ways[2].how.running.reset();
  for (auto& [name, how, mean] : ways) {
    for (long seed = 1; seed <= seeds; ++seed) {
      const Errors one = measured(how, static_cast<std::uint64_t>(seed), draws);
      mean.o += one.o / static_cast<double>(seeds);
      mean.delta += one.delta / static_cast<double>(seeds);
      mean.gradient += one.gradient / static_cast<double>(seeds);
    }
    std::printf("%-34s %+9.3f%% %+8.2f %8.2f\n", name, 100 * mean.o, mean.delta, mean.gradient);
  }
  const Errors& plain = ways[0].mean;
  const Errors& shifted = ways[1].mean;
  std::printf(
      "O: the mean error as a share of |O|. delta: the mean error in units of its root mean square. gradient: the\n"
      "error of the mean gradient in units of the error of one; without a bias 1/sqrt(%ld) = %.2f.\n"
      "\nThe paper: GPT-2 with bf16 flash attention diverges; in rows with repeated maxima the errors of O = P V all\n"
      "point one way, the error of the gradient has a low rank and grows over the steps; a shifted maximum trains.\n"
      "Here one head of %ld queries and keys, two of which are equal, and nothing is trained.\n\n",
      draws, 1 / std::sqrt(static_cast<double>(draws)), static_cast<long>(kQueries));
  example::claim(std::abs(plain.delta) > 0.5, "with repeated maxima the errors of delta point one way");
  example::claim(plain.gradient > 0.5, "so does the error of the gradient: its mean over batches stays");
  example::claim(std::abs(shifted.delta) < 0.2 && std::abs(shifted.o) < std::abs(plain.o) / 4,
                 "with a shifted maximum the bias is gone");
}

}  // namespace

int main(int argc, char** argv) { return example::run(argc, argv, body, kUsage, false); }
