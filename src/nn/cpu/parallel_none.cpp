#include "nn/cpu/parallel.h"

namespace dkfac::nn::cpu {

void run_ranges(std::int64_t count, std::int64_t /*parts*/, RangeBody body, const void* state) {
  body(state, 0, count);
}

}  // namespace dkfac::nn::cpu
