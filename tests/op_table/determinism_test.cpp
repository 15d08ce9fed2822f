// The same bits twice, for any number of threads, and by every instruction set.
#include <doctest/doctest.h>

#include <cstdlib>

#include <gradual/core/observe/observer.h>
#include <gradual/core/ops/cpu_backend.h>
#include <gradual/core/support/threads.h>
#include <gradual/cuda/cuda.h>
#include "op_table.h"
#include "support/cpu_backends.h"
#include "support/cpu_isas.h"
#include "support/gpu.h"

namespace gradual::test {
namespace {

std::vector<std::vector<std::byte>> bits(const Sample& sample, int threads) {
  const ThreadsScope scope(threads);
  std::vector<std::vector<std::byte>> out;
  for (const Tensor& t : sample.call(fresh(sample.inputs)))
    out.push_back(t.defined() ? bytes_of(t) : std::vector<std::byte>{});
  return out;
}

void check_bits() {
  for (const Row* row : rows_under_test()) {
    for (DType dtype : row->dtypes) {
      // A dtype of each path: one that computes in itself, one that is widened and narrowed, integers, f8.
      if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::i64 && dtype != DType::f8e4m3fn) continue;
      for (const Sample& sample : samples_of(*row, dtype)) {
        const auto one = bits(sample, 1);
        const std::string where = describe(*row, sample, sample.inputs, "contiguous");
        if (bits(sample, 1) != one) expect_none("a second call gave other bits", where);
        for (int threads : {2, 3})
          if (sample.large && bits(sample, threads) != one)
            expect_none(std::to_string(threads) + " threads gave other bits", where);
      }
    }
  }
}

TEST_CASE("the same bits twice, and with one, two and three threads" * doctest::test_suite("slow")) {
  for (const CpuBackend backend : testing::cpu_backends()) {
    if (backend == CpuBackend::onednn) continue;
    const CpuBackendScope scope(backend);
    check_bits();
  }
  CHECK(num_threads() >= 1);
}

class Onlooker final : public Observer {
 public:
  explicit Onlooker(bool counts) : counts_(counts) {}
  bool wants_counts() const override { return counts_; }

 private:
  bool counts_;
};

TEST_CASE("the same bits with and without observers, and with and without counting" * doctest::test_suite("slow")) {
  for (const CpuBackend backend : testing::cpu_backends()) {
    const CpuBackendScope scope(backend);
    int compared = 0;
    for (const Row* row : rows_under_test())
      for (const DType dtype : row->dtypes) {
        if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) continue;
        for (const Sample& sample : samples_of(*row, dtype)) {
          const auto alone = bits(sample, 1);
          for (const bool counts : {false, true}) {
            Onlooker onlooker(counts);
            const ObserverScope watched(onlooker);
            ++compared;
            if (bits(sample, 1) != alone)
              expect_none(counts ? "counting changed bits" : "an observer changed bits",
                          describe(*row, sample, sample.inputs, std::string(to_string(backend))));
          }
        }
      }
    if (!std::getenv("GRADUAL_TEST_OP")) CHECK(compared > 0);
  }
}

TEST_CASE("CUDA: the same bits twice" * doctest::test_suite("slow")) {
  if (!have_gpu()) return;
  for (const Row* row : rows_under_test()) {
    for (const DType dtype : row->dtypes) {
      if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::i64) continue;
      for (const Sample& sample : samples_of(*row, dtype)) {
        const auto bits = [&] {
          Tensors inputs;
          for (const Tensor& t : fresh(sample.inputs)) inputs.push_back(with_storage_on(Device::cuda(), t));
          std::vector<std::vector<std::byte>> all;
          for (const Tensor& t : sample.call(inputs))
            all.push_back(t.defined() ? bytes_of(t) : std::vector<std::byte>{});
          return all;
        };
        if (bits() != bits())
          expect_none("a second call gave other bits", describe(*row, sample, sample.inputs, "CUDA"));
      }
    }
  }
}

// But for products: the order of their sums follows the registers.
TEST_CASE("the same bits by every instruction set" * doctest::test_suite("slow")) {
  for (const Row* row : rows_under_test()) {
    if (op_info(row->op).kind == OpKind::Contraction || row->op == OpId::scaled_dot_product_attention) continue;
    for (const DType dtype : row->dtypes) {
      for (const Sample& sample : samples_of(*row, dtype)) {
        std::optional<std::vector<std::vector<std::byte>>> slowest;
        reference::for_each_isa([&](CpuIsa isa) {
          const auto here = bits(sample, 1);
          if (!slowest) slowest = here;
          if (here != *slowest)
            expect_none(
                std::string(to_string(isa)) + " gave other bits than " + std::string(to_string(cpu_isas().front())),
                describe(*row, sample, sample.inputs, "contiguous"));
        });
        CHECK(slowest.has_value());
      }
    }
  }
}

TEST_CASE("the same in deterministic mode with oneDNN") {
  if (!has_onednn()) {
    MESSAGE("skipped: " << onednn_description());
    return;
  }
  set_deterministic(true);
  check_bits();
  set_deterministic(false);
}

}  // namespace
}  // namespace gradual::test
