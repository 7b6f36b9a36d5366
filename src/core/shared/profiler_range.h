#pragma once

namespace dkfac {

/// Names what the calling thread does from begin_range() to the end_range() that goes with it, for
/// profilers that follow NVTX (Nsight Systems). Ranges nest. Costs a few nanoseconds when nobody
/// listens, and nothing in a build without CUDA. `name` is copied by who listens.
void begin_range(const char* name) noexcept;
void end_range() noexcept;

}  // namespace dkfac
