// The main function of every test program. GRADUAL_TEST_BACKEND=eigen runs all cases on the reference of products and
// convolutions, without the fast kernels and oneDNN; the other names of CpuBackend serve too.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <gradual/core/ops/cpu_backend.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

using gradual::CpuBackend;

bool use_backend(std::string_view name) {
  for (const CpuBackend backend : {CpuBackend::eigen, CpuBackend::fast, CpuBackend::onednn}) {
    if (name != to_string(backend)) continue;
    gradual::set_cpu_backend(backend);
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* const name = std::getenv("GRADUAL_TEST_BACKEND"); name && !use_backend(name)) {
    std::fprintf(stderr, "GRADUAL_TEST_BACKEND is '%s'; allowed are eigen, fast and onednn\n", name);
    return 2;
  }
  doctest::Context context(argc, argv);
  return context.run();
}
