// A program of libFuzzer; READER is one of the functions of targets.h.
#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::READER({reinterpret_cast<const char*>(data), size});
  return 0;
}
