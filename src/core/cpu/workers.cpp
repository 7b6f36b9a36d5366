#include "core/shared/workers.h"

#include <exception>
#include <mutex>

#include "core/context_impl.h"
#include "core/shared/parallel.h"

namespace dkfac::cpu {

void run_workers(Context& ctx, int parts, void (*body)(void* state, Context& worker, int part),
                 void* state) {
  auto& workers = ctx.impl().workers;
  while (workers.size() < static_cast<std::size_t>(parts)) {
    workers.push_back(std::make_unique<Context>(
        ctx.device(), ContextOptions{.backend = ctx.backend(), .threads = 0}));
  }
  std::mutex mutex;
  std::exception_ptr error;
  parallel_parts(parts, [&](int part) {
    try {
      body(state, *workers[static_cast<std::size_t>(part)], part);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

}  // namespace dkfac::cpu
