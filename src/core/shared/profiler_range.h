#pragma once

namespace dkfac {

/// Marks the work of the calling thread between begin_range() and the matching end_range() as an
/// NVTX range (Nsight Systems). Ranges nest. Costs a few nanoseconds without a profiler, and
/// nothing in a build without CUDA. The profiler copies `name`.
void begin_range(const char* name) noexcept;
void end_range() noexcept;

/// Starts and stops the collection of a profiler that waits for it (nsys profile -c
/// cudaProfilerApi, ncu --profile-from-start off). Without such a profiler, or in a build without
/// CUDA, they do nothing. They do not synchronize with the device.
void start_profiler() noexcept;
void stop_profiler() noexcept;

}  // namespace dkfac
