#include "nn/cpu/parallel.h"

namespace dkfac::nn::cpu {

void run_ranges(std::int64_t count, std::int64_t parts, RangeBody body, const void* state) {
#pragma omp parallel for schedule(static)
  for (std::int64_t part = 0; part < parts; ++part) {
    body(state, count * part / parts, count * (part + 1) / parts);
  }
}

}  // namespace dkfac::nn::cpu
