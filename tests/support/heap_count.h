#pragma once

#include <atomic>
#include <cstdint>

/// Counts the heap allocations of a program. Linking heap_count.cpp replaces operator new and
/// aligned_alloc in every thread, including the libraries that the program calls.
namespace dkfac::testing::heap {

inline std::atomic<bool> counting{false};     ///< Whether the counters below run.
inline std::atomic<std::int64_t> objects{0};  ///< Calls of operator new.
inline std::atomic<std::int64_t> tensors{0};  ///< Calls of aligned_alloc: memory of tensors.

inline void start_count() {
  objects = tensors = 0;
  counting = true;
}

inline void stop_count() { counting = false; }

}  // namespace dkfac::testing::heap
