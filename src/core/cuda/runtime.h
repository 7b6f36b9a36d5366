#pragma once

#include <cstddef>

#include "dkfac/core/device.h"

struct CUstream_st;
struct CUevent_st;

/// What core needs of a device runtime. Without CUDA every function but device_count() throws
/// DeviceError.
namespace dkfac::cuda {

[[nodiscard]] int device_count() noexcept;  ///< 0 without CUDA.

[[nodiscard]] std::byte* allocate(Device device, std::size_t bytes);
void release(Device device, std::byte* bytes) noexcept;

[[nodiscard]] CUstream_st* create_stream(Device device);
void destroy_stream(Device device, CUstream_st* stream) noexcept;
void synchronize(Device device, CUstream_st* stream);

[[nodiscard]] CUevent_st* create_event(Device device);
void destroy_event(Device device, CUevent_st* event) noexcept;
void record(Device device, CUevent_st* event, CUstream_st* stream);
[[nodiscard]] bool done(Device device, CUevent_st* event);
void synchronize(Device device, CUevent_st* event);
void stream_wait(Device device, CUstream_st* stream, CUevent_st* event);

}  // namespace dkfac::cuda
