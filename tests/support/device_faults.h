#pragma once

#include <cstdint>

/// Faults that the emulated device injects on request and a real one cannot, where their tests are
/// skipped (is_emulated() of host_waits.h).
namespace dkfac::testing {

/// For a scope, only this many bytes beside those in use.
class LittleMemory {
 public:
  explicit LittleMemory(std::int64_t bytes);
  ~LittleMemory();
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;
};

/// For a scope, libraries and graphs find no memory for themselves until pools of memory have been
/// trimmed that often.
class StarvingLibraries {
 public:
  explicit StarvingLibraries(int trims);
  ~StarvingLibraries();
  StarvingLibraries(const StarvingLibraries&) = delete;
  StarvingLibraries& operator=(const StarvingLibraries&) = delete;
};

/// For a scope, there are two devices, and one that was not used before has no memory pools.
class NoMemoryPools {
 public:
  NoMemoryPools();
  ~NoMemoryPools();
  NoMemoryPools(const NoMemoryPools&) = delete;
  NoMemoryPools& operator=(const NoMemoryPools&) = delete;
};

/// For a scope, there are three devices, none of which has been used.
class UnusedDevices {
 public:
  UnusedDevices();
  ~UnusedDevices();
  UnusedDevices(const UnusedDevices&) = delete;
  UnusedDevices& operator=(const UnusedDevices&) = delete;
  [[nodiscard]] static bool has_context(int device);
};

/// The matrix product that many calls from now fails, the next one being 1; once. 0: none.
void fail_product(int calls);

/// This thread sees that GPU alone, as cuda:0, as a process with CUDA_VISIBLE_DEVICES. -1: all.
void show_device(int device);

}  // namespace dkfac::testing
