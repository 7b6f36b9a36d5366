#pragma once

/// Lengths of tests under ThreadSanitizer, which takes twenty times as long for each access to
/// memory. It looks for races between the ranks' threads, and a few steps have all that many have.
/// Every other build runs in full.
namespace dkfac::testing {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kShortRuns = true;
#else
inline constexpr bool kShortRuns = false;
#endif

template <class T>
constexpr T short_or_full(T shortened, T full) {
  return kShortRuns ? shortened : full;
}

}  // namespace dkfac::testing
