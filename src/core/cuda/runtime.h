#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "dkfac/core/stream.h"

/// Interface of core to the CUDA runtime. Without CUDA every function except device_count() throws
/// DeviceError. Only the synchronize() functions block the host.
namespace dkfac::cuda {

[[nodiscard]] int device_count() noexcept;  ///< 0 without CUDA or without a device.

/// Throws DeviceError if the device does not exist. The functions below that create something for a
/// device check this first; those that accept a stream or an event rely on it.
void check_device(Device device);

/// Allocates device memory, from a pool that keeps freed memory, for later work on `stream`.
/// Returns null when there is none left.
[[nodiscard]] std::byte* allocate(Device device, CUstream_st* stream, std::size_t bytes);
/// Describes free memory for error messages: "1.5 of 79.2 GiB are free".
[[nodiscard]] std::string describe_memory(Device device);
[[nodiscard]] std::optional<double> free_memory(Device device);  ///< Bytes; none if unknown.
/// Releases device memory once all work enqueued so far on streams in use has run and no capture
/// is in progress.
void release(Device device, std::byte* bytes) noexcept;
/// Allocates pinned host memory from a pool that keeps freed memory; null when there is none left.
[[nodiscard]] std::byte* allocate_pinned(Device device, std::size_t bytes);
/// Releases pinned memory, without blocking, for reuse once all work enqueued so far on streams in
/// use has run.
void release_pinned(Device device, std::byte* bytes) noexcept;

/// Registers a stream of the caller as in use until a matching leave_stream(): release() and
/// release_pinned() are ordered after its work. It must not be destroyed before. Throws
/// InvalidArgument for cudaStreamPerThread, which is a different stream in every thread.
void use_stream(Device device, CUstream_st* stream);
void leave_stream(Device device, CUstream_st* stream) noexcept;

/// Creates a stream, which is in use until it is destroyed.
[[nodiscard]] CUstream_st* create_stream(Device device, Priority priority = Priority::normal);
/// Destroys a stream; its pending work still completes.
void destroy_stream(Device device, CUstream_st* stream) noexcept;
void synchronize(Device device, CUstream_st* stream);

[[nodiscard]] CUevent_st* create_event(Device device);
void destroy_event(Device device, CUevent_st* event) noexcept;
void record(Device device, CUevent_st* event, CUstream_st* stream);
[[nodiscard]] bool done(Device device, CUevent_st* event);
void synchronize(Device device, CUevent_st* event);
void stream_wait(Device device, CUstream_st* stream, CUevent_st* event);

/// Begins to capture the work of this thread on `stream` (core/shared/captured.h). Until
/// end_capture() this thread cannot allocate device memory, and memory released by any thread is
/// kept.
void begin_capture(Device device, CUstream_st* stream);
/// Ends the capture and returns the executable graph. Throws DeviceError if the capture is
/// invalid.
[[nodiscard]] std::shared_ptr<void> end_capture(Device device, CUstream_st* stream);
/// Ends the capture and discards it.
void drop_capture(Device device, CUstream_st* stream) noexcept;
[[nodiscard]] bool is_captured(Device device, CUstream_st* stream);
void launch_captured(Device device, const std::shared_ptr<void>& graph, CUstream_st* stream);

/// Memory part of begin_capture() and end_capture(): forbids allocations of this thread and defers
/// releases; nests.
void hold_memory(Device device);
void let_memory_go(Device device) noexcept;

}  // namespace dkfac::cuda
