// Tensor cores: which products they take, and what sixteen bytes a parameter are.
#include <gradual/gradual.h>

#include <cstdio>

using namespace gradual;

namespace {

// Whether tensor cores could take a product of [m, k] and [k, n]: the shapes and types alone decide, so a CPU will do.
void ask(std::int64_t m, std::int64_t k, std::int64_t n, DType dtype) {
  Profile profile;
  {
    const ObserverScope scope(profile);
    matmul(ones({m, k}, dtype), ones({k, n}, dtype));
  }
  for (const Profile::Entry& e : profile.by_op())
    if (e.name == "matmul") {
      const std::string shape = "[" + std::to_string(m) + ", " + std::to_string(k) + "] [" + std::to_string(k) + ", " +
                                std::to_string(n) + "]";
      std::printf("%-20s %-4s %s\n", shape.c_str(), to_string(dtype).data(), e.tensor_cores.c_str());
    }
}

// Bytes for each parameter of one layer, after 20 steps of Adam and another backward, as the allocator counts them.
void show_memory(const char* recipe, std::int64_t batch) {
  constexpr std::int64_t kSide = 512;
  nn::Linear layer(kSide, kSide, {.bias = false});
  const Tensor x = ones({batch, kSide}) * 0.01;
  amp::RecipeRun run(amp::recipe(recipe), layer, optim::AdamOptions{});
  for (int i = 0; i < 20; ++i) run.step([&] { return square(layer(x)).mean(); });
  reset_peak_memory();
  run.backward(run.forward([&] { return square(layer(x)).mean(); }));
  const MemoryStats m = memory_stats();
  const auto each = [&](std::int64_t bytes) { return static_cast<double>(bytes) / (kSide * kSide); };
  std::printf("%-12s %6ld", recipe, static_cast<long>(batch));
  for (const Category c : {Category::parameters, Category::gradients, Category::masters, Category::optimizer})
    std::printf(" %9.1f", each(m[c].current));
  std::printf(" %11.2f\n", each(m[Category::activations].peak));
}

}  // namespace

int main() {
  std::printf("operands             type tensor cores\n");
  for (const DType t : {DType::f32, DType::f16, DType::bf16}) ask(64, 64, 64, t);
  ask(64, 63, 64, DType::f16);
  ask(63, 64, 64, DType::f16);
  ask(64, 64, 10, DType::f16);
  {
    const MatmulPrecisionScope tf32(MatmulPrecision::tf32);
    ask(64, 64, 64, DType::f32);
    ask(64, 62, 64, DType::f32);
  }

  std::printf("\nrecipe        batch parameter  gradient    master  moments  activations\n");
  for (const std::int64_t batch : {64, 1024})
    for (const char* recipe : {"fp32", "amp-fp16", "fp16-master", "fp16-pure"}) show_memory(recipe, batch);
}
