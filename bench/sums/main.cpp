// Dot products under an accumulator, for compare_mmasim.py: all rows of A with all rows of B.
//
//   gradual-sums ACCUMULATOR LENGTH A B OUT     files of f32: [rows, LENGTH], [columns, LENGTH], [rows, columns]
//   gradual-sums FORMAT SCALES LENGTH BLOCK A SCALES_OF_A B SCALES_OF_B OUT     block_scaled_matmul() of such files
#include <gradual/core/quantize/block_scaled_matmul.h>
#include <gradual/gradual.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

using namespace gradual;

namespace {

Tensor read_rows(const char* path, std::int64_t length) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw Error(std::string("cannot read ") + path);
  const std::int64_t numbers = static_cast<std::int64_t>(file.tellg()) / static_cast<std::int64_t>(sizeof(float));
  if (length < 1 || numbers % length != 0)
    throw Error(std::string(path) + " has " + std::to_string(numbers) + " numbers, no rows of " +
                std::to_string(length));
  std::vector<float> values(static_cast<std::size_t>(numbers));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), numbers * static_cast<std::int64_t>(sizeof(float)));
  return from_data(values, {numbers / length, length});
}

void write_sums(const char* path, const Tensor& sums) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(sums.data<float>()),
             sums.numel() * static_cast<std::int64_t>(sizeof(float)));
  if (!file) throw Error(std::string("cannot write ") + path);
}

void add_up(char** arguments) {
  const std::int64_t length = std::stoll(arguments[1]);
  const AccumulatorScope scope(accumulator(arguments[0]));
  write_sums(arguments[4], matmul(read_rows(arguments[2], length), read_rows(arguments[3], length).t()));
}

void add_up_scaled(char** arguments) {
  const Format values = format(arguments[0]);
  const Format scales = format(arguments[1]);
  const std::int64_t length = std::stoll(arguments[2]);
  const std::int64_t blocks = length / std::stoll(arguments[3]);
  const auto rows = [&](const char* numbers, const char* factors) {
    return BlockScaledRows{read_rows(numbers, length), read_rows(factors, blocks), values, scales};
  };
  write_sums(arguments[8], block_scaled_matmul(rows(arguments[4], arguments[5]), rows(arguments[6], arguments[7])));
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int kPlain = 6;
  constexpr int kScaled = 10;
  if (argc != kPlain && argc != kScaled) {
    std::fprintf(stderr,
                 "usage: gradual-sums ACCUMULATOR LENGTH A B OUT, or with scales: FORMAT SCALES LENGTH BLOCK A "
                 "SCALES_OF_A B SCALES_OF_B OUT\n");
    return 2;
  }
  try {
    if (argc == kPlain) add_up(argv + 1);
    else add_up_scaled(argv + 1);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gradual-sums: %s\n", e.what());
    return 1;
  }
  return 0;
}
