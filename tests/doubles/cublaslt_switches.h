// What tests ask of the emulated cuBLASLt, and tell it.
#pragma once

namespace gradual::cuda::emulator {

struct CublasLt {
  // Faults that a library may have: each is one that cuda/ has to notice.
  bool relu_drops_nan = false;        // as fmax(x, 0) does
  bool narrow_row_sums = false;       // bias gradients are added up in the output's type
  bool refuses_to_run = false;        // cublasLtMatmul takes nothing that the heuristic promised
  bool refuses_best = false;          // nor that it promised first, of what adds up as it should
  bool knows_no_algorithm = false;    // the heuristic finds nothing
  bool calls_bias_invalid = false;    // and says so of an epilogue with a bias
  bool calls_scales_invalid = false;  // of f8, as where a GPU has no instructions for them
  bool fails_in_capture = false;      // the heuristic does, while a stream is captured
  // Counted until somebody sets them back.
  int heuristics = 0, products = 0;
};
CublasLt& cublaslt();  // of this thread

}  // namespace gradual::cuda::emulator
