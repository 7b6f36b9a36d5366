#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "dkfac/core/stream.h"

/// What core needs of a device runtime. Without CUDA every function but device_count() throws
/// DeviceError. Nothing but the three synchronize() blocks the host.
namespace dkfac::cuda {

[[nodiscard]] int device_count() noexcept;  ///< 0 without CUDA or without a device.

/// Throws DeviceError when there is no such device. The functions below that make something for a
/// device check it before they do; those that take a stream or an event rely on it.
void check_device(Device device);

/// Device memory of a pool that keeps what it has, for work that follows on `stream`. Null when
/// there is none left.
[[nodiscard]] std::byte* allocate(Device device, CUstream_st* stream, std::size_t bytes);
/// "1.5 of 79.2 GiB are free", for errors.
[[nodiscard]] std::string describe_memory(Device device);
/// Once all that has been put so far on streams in use has run, and no recording is under way.
void release(Device device, std::byte* bytes) noexcept;
/// Host memory that copies reach without a detour, of a pool that keeps what it has; null when
/// there is none left.
[[nodiscard]] std::byte* allocate_pinned(Device device, std::size_t bytes);
/// For others once all that has been put so far on streams in use has run; does not wait for that.
void release_pinned(Device device, std::byte* bytes) noexcept;

/// A stream that is not ours counts as in use from here to as many leave_stream(): release() and
/// release_pinned() wait for it. It must not be destroyed before. Throws InvalidArgument for
/// cudaStreamPerThread, which means another stream in another thread.
void use_stream(Device device, CUstream_st* stream);
void leave_stream(Device device, CUstream_st* stream) noexcept;

/// In use until it is destroyed.
[[nodiscard]] CUstream_st* create_stream(Device device, Priority priority = Priority::normal);
/// Work that is still to be done is done.
void destroy_stream(Device device, CUstream_st* stream) noexcept;
void synchronize(Device device, CUstream_st* stream);

[[nodiscard]] CUevent_st* create_event(Device device);
void destroy_event(Device device, CUevent_st* event) noexcept;
void record(Device device, CUevent_st* event, CUstream_st* stream);
[[nodiscard]] bool done(Device device, CUevent_st* event);
void synchronize(Device device, CUevent_st* event);
void stream_wait(Device device, CUstream_st* stream, CUevent_st* event);

/// Around the recording of what is put on `stream` (core/captured.h), by one thread: until
/// end_capture() this thread gets no memory of the device, and what anybody lets go of is kept.
void begin_capture(Device device, CUstream_st* stream);
/// Ends it. What was recorded, ready to be launched; throws DeviceError when there is nothing that
/// could be.
[[nodiscard]] std::shared_ptr<void> end_capture(Device device, CUstream_st* stream);
/// Ends it and forgets what was recorded.
void drop_capture(Device device, CUstream_st* stream) noexcept;
void launch_captured(Device device, const std::shared_ptr<void>& graph, CUstream_st* stream);

/// Parts of begin_capture() that memory has to do with: of this thread, any number of them.
void hold_memory(Device device);
void let_memory_go(Device device) noexcept;

}  // namespace dkfac::cuda
