#include <algorithm>
#include <thread>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/cpu/free_threads.h"
#include "core/shared/parallel.h"

namespace dkfac {

int threads() noexcept { return 1; }

void set_threads(int count) {
  DKFAC_CHECK(count >= 1, "[set_threads] count is ", count, "; it must be >= 1");
}

int available_cores() noexcept {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int cpu::free_threads() noexcept { return 1; }

void cpu::run_parts(int parts, void (*body)(void* state, int part), void* state) {
  for (int part = 0; part < parts; ++part) body(state, part);
}

}  // namespace dkfac
