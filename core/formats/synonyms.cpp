#include "synonyms.h"

namespace gradual {

std::span<const Synonym> format_synonyms() {
  static const std::vector<Synonym> kAll = {
      {{"fp8", "f8", "float8"}, {"fp8", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "f8e4m3fn", "f8e5m2"}},
      {{"e4m3", "fp8_e4m3", "fp8e4m3", "fp8e4m3fn", "float8_e4m3", "float8_e4m3fn"}, {"e4m3fn", "f8e4m3fn"}},
      {{"e5m2", "fp8_e5m2", "fp8e5m2", "float8_e5m2"}, {"e5m2", "f8e5m2"}},
      {{"mxfp8"}, {"e4m3fn", "e5m2"}},
      {{"fp6", "f6", "float6", "mxfp6"}, {"mxfp6", "e2m3fn", "e3m2fn"}},
      {{"fp4", "f4", "float4", "mxfp4", "nvfp4"}, {"mxfp4", "nvfp4", "e2m1fn"}},
      {{"mx", "mxfp"}, {"mxfp8", "mxfp6", "mxfp4"}},
      {{"half", "float16", "f16", "fp16"}, {"fp16", "f16"}},
      {{"bfloat16", "bfloat"}, {"bf16"}},
      {{"float", "single", "full", "float32", "f32", "fp32"}, {"fp32", "f32"}},
      {{"double", "float64", "fp64"}, {"f64"}},
      {{"mixed", "mixed-precision", "autocast"}, {"amp"}},
      {{"int64", "long"}, {"i64"}},
      {{"int32", "int"}, {"i32"}},
      {{"uint8", "byte"}, {"u8"}},
  };
  return kAll;
}

}  // namespace gradual
