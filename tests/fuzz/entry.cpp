// Entry point of libFuzzer for the one target that DKFAC_FUZZ_TARGET names.
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dkfac::fuzz::DKFAC_FUZZ_TARGET({data, size});
  return 0;
}
