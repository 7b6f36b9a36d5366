#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "dkfac/core/threads.h"

namespace dkfac::cpu {

/// Calls body(state, part) for every part in [0, parts), over the calling thread's OpenMP threads
/// (one after the other in a build without OpenMP, or inside a parallel region). Must not throw.
void run_parts(int parts, void (*body)(void* state, int part), void* state);

/// Calls body(part) for every part in [0, parts), in parallel.
template <class Body>
void parallel_parts(int parts, Body&& body) {
  if (parts == 1) return body(0);
  using Plain = std::remove_reference_t<Body>;
  run_parts(
      parts, [](void* state, int part) { (*static_cast<Plain*>(state))(part); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

/// Least number of elements per thread, for loops that touch each element once.
inline constexpr std::int64_t kGrain = 32768;

/// Calls body(begin, end) over a partition of [0, n): one range per thread, of at least `grain`
/// elements, split at multiples of 64 elements so that no two threads write to one cache line.
template <class Body>
void parallel_ranges(std::int64_t n, std::int64_t grain, Body&& body) {
  const std::int64_t parts = std::clamp<std::int64_t>(n / grain, 1, threads());
  if (parts == 1) return n > 0 ? body(std::int64_t{0}, n) : void();
  const std::int64_t each = (n / parts + 64) / 64 * 64;
  parallel_parts(static_cast<int>(parts), [&](int part) {
    const std::int64_t begin = std::min(part * each, n);
    const std::int64_t end = std::min(begin + each, n);
    if (begin < end) body(begin, end);
  });
}

}  // namespace dkfac::cpu
