#include <omp.h>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/cpu/free_threads.h"
#include "core/shared/parallel.h"

namespace dkfac {

int threads() noexcept { return omp_get_max_threads(); }

void set_threads(int count) {
  DKFAC_CHECK(count >= 1, "[set_threads] count is ", count, "; it must be >= 1");
  omp_set_num_threads(count);
}

int available_cores() noexcept { return omp_get_num_procs(); }

int cpu::free_threads() noexcept { return omp_in_parallel() != 0 ? 1 : omp_get_max_threads(); }

void cpu::run_parts(int parts, void (*body)(void* state, int part), void* state) {
#pragma omp parallel for schedule(static)
  for (int part = 0; part < parts; ++part) body(state, part);
}

}  // namespace dkfac
