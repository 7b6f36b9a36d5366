#pragma once

#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/threads.h"

#include "core/shared/parallel.h"

namespace dkfac::nn::cpu {

/// Elements per thread that repay a thread, for loops that touch each of them once.
inline constexpr std::int64_t kGrain = 16384;

/// Calls body(begin, end) over a partition of [0, count) into at most one range per thread, each of
/// at least `grain` indices. Only for bodies whose results do not depend on the partition.
template <class Body>
void parallel_for(std::int64_t count, std::int64_t grain, const Body& body) {
  if (count <= 0) return;
  const std::int64_t most = grain > 0 ? count / grain : count;
  const std::int64_t parts = most < threads() ? most : threads();
  if (parts <= 1) return body(std::int64_t{0}, count);
  dkfac::cpu::parallel_parts(static_cast<int>(parts), [&](int part) {
    body(count * part / parts, count * (part + 1) / parts);
  });
}

/// Indices per thread when each stands for `work` elements.
[[nodiscard]] inline std::int64_t grain_of(std::int64_t work) {
  return work >= kGrain ? 1 : kGrain / (work < 1 ? 1 : work);
}

/// Calls f(i) for i in [0, count), each of which stands for `work` elements, in parallel.
template <class F>
void each(std::int64_t count, std::int64_t work, const F& f) {
  parallel_for(count, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i);
  });
}
/// The same for functors that run on a device too.
template <class F>
void each(Context&, std::int64_t count, std::int64_t work, const F& f) {
  each(count, work, f);
}

}  // namespace dkfac::nn::cpu
