#pragma once

#include <cstdint>

/// Failures of the emulated device on request; a real one does not fail when asked, so that tests
/// of them skip there (is_emulated() of host_waits.h).
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

}  // namespace dkfac::testing
