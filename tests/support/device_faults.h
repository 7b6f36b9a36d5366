#pragma once

#include <cstdint>

/// What the emulated device does on request and a real one does not, so that tests of it skip there
/// (is_emulated() of host_waits.h).
namespace dkfac::testing {

/// For a scope, only this many bytes beside those in use.
class LittleMemory {
 public:
  explicit LittleMemory(std::int64_t bytes);
  ~LittleMemory();
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;
};

/// The matrix product that many calls from now fails, the next one being 1; once. 0: none.
void fail_product(int calls);

/// This thread sees that GPU alone, as cuda:0, as a process with CUDA_VISIBLE_DEVICES. -1: all.
void show_device(int device);

}  // namespace dkfac::testing
