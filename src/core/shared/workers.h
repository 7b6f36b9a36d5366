#pragma once

#include <memory>
#include <type_traits>

#include "dkfac/core/context.h"

namespace dkfac::cpu {

/// Calls body(state, worker, part) for every part in [0, parts), over the calling thread's OpenMP
/// threads. Each part has a Context of its own, whose scratch `ctx` keeps, so that it may call any
/// operation; libraries run on one thread there. The first exception is rethrown at the end.
void run_workers(Context& ctx, int parts, void (*body)(void* state, Context& worker, int part),
                 void* state);

/// body(worker, part) for every part in [0, parts), in parallel; one part runs on ctx itself.
template <class Body>
void parallel_workers(Context& ctx, int parts, Body&& body) {
  if (parts == 1) return body(ctx, 0);
  using Plain = std::remove_reference_t<Body>;
  run_workers(
      ctx, parts,
      [](void* state, Context& worker, int part) { (*static_cast<Plain*>(state))(worker, part); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

}  // namespace dkfac::cpu
