// Switches and counters by which tests control the emulated cuBLASLt.
#pragma once

namespace gradual::cuda::emulator {

struct CublasLt {
  // Faults that a library may have and that cuda/ must notice.
  bool relu_drops_nan = false;        // as fmax(x, 0) does
  bool narrow_row_sums = false;       // sums bias gradients in the output's type
  bool refuses_to_run = false;        // cublasLtMatmul refuses every proposed algorithm
  bool refuses_best = false;          // cublasLtMatmul refuses the first allowed algorithm
  bool knows_no_algorithm = false;    // the heuristic finds nothing
  bool calls_bias_invalid = false;    // the heuristic reports epilogues with a bias as invalid
  bool calls_scales_invalid = false;  // the same for scales of f8, as on GPUs without f8
  bool fails_in_capture = false;      // the heuristic fails while a stream is captured
  // Counters; tests reset them.
  int heuristics = 0;
  int products = 0;
};
CublasLt& cublaslt();  // this thread's

}  // namespace gradual::cuda::emulator
