#pragma once

#include <memory>
#include <type_traits>

#include "dkfac/core/context.h"

namespace dkfac::cpu {

/// Calls body(state, worker, part) for every part in [0, parts), over the calling thread's OpenMP
/// threads. Each part has its own Context, whose scratch `ctx` keeps, so it may call any operation;
/// libraries run single-threaded in it. The first exception is rethrown at the end.
void run_workers(Context& ctx, int parts, void (*body)(void* state, Context& worker, int part),
                 void* state);

/// Calls body(worker, part) for every part in [0, parts), in parallel; a single part runs on `ctx`.
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
