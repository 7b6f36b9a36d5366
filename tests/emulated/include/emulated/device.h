#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct CUstream_st;

/// An emulated CUDA device: the entry points of the CUDA libraries that the library uses, over host
/// memory, for tests on machines without a GPU (DKFAC_CUDA=EMULATED).
///
/// It is as strict as a device, or stricter. Device memory is inaccessible except while work of the
/// device runs, so a stray access by the host ends in a segmentation fault. Fresh memory is full of
/// NaN, and writes past its end are detected when it is freed; under AddressSanitizer, work that
/// accesses memory past its end, or freed memory, is aborted at once. Streams are lazy: work runs
/// when a caller waits for it, so an order that was not requested does not occur. Recorded work
/// (stream capture) rejects what a device rejects, and more: memory, plain host memory, events from
/// outside. Memory that a graph may still use is not reused. DKFAC_EMULATED=eager runs all work at
/// once instead. Any number of host threads may use it. There is one device, or as many as
/// DKFAC_EMULATED_DEVICES, which differ in name only; DKFAC_EMULATED_MODELS=AAB has a letter for
/// the model of each, for callers that compare models.
namespace emulated {

using Ticket = std::uint64_t;  ///< Position of work on its stream, from 1.

/// Enqueues work on a stream; null is rejected, since the library never uses the default stream.
Ticket submit(CUstream_st* stream, std::function<void()> work);
/// Enqueues work that depends on more than its stream: it runs once ready() holds. ready() is
/// polled and must not block; it may advance() other streams.
Ticket submit_when(CUstream_st* stream, std::function<bool()> ready, std::function<void()> work);
/// As submit(), counted as a kernel.
Ticket launch(CUstream_st* stream, std::function<void()> work);
/// Runs the work of `stream` up to `ticket`, and the work of other streams that it depends on.
void run(CUstream_st* stream, Ticket ticket);
/// As run(), but stops where it would have to wait. Returns whether it reached `ticket`.
bool advance(CUstream_st* stream, Ticket ticket);
/// Returns the ticket of the last submission.
[[nodiscard]] Ticket last(CUstream_st* stream);
/// Called by work: lets other host threads run until `ready` holds. Throws std::runtime_error after
/// a minute.
void block_until(const std::function<bool()>& ready);
/// Wakes a block_until() of another thread; called after a change that it may wait for.
void notify();
/// Runs body as work of the device, with device memory accessible; for emulated libraries that read
/// device memory during a call.
void with_memory(const std::function<void()>& body);

[[nodiscard]] bool is_device_memory(const void* data);
[[nodiscard]] bool is_pinned_memory(const void* data);

/// Limits device memory to this size; 0: no limit.
void limit_memory(std::int64_t bytes);
/// Makes the `calls`-th product of cuBLAS from now fail, the next one being 1; once. 0: none.
void fail_product(int calls);
/// Counts a product. Returns whether this call fails because of fail_product().
[[nodiscard]] bool product_fails(bool aligned);

/// Restricts this thread to that device, as device 0, as CUDA_VISIBLE_DEVICES does for the
/// processes of a launcher; for ranks that are threads. -1: all devices.
void show_device(int device);

/// Makes all devices as they are before their first use. A context is then made where a thread
/// makes a device current, or a stream on it.
void forget_contexts();
[[nodiscard]] bool has_context(int device);

/// Counts of all threads since the start of the program.
struct Counters {
  std::int64_t host_waits = 0;  ///< Calls that block the host until the device is done.
  std::int64_t kernels = 0;     ///< Kernel launches.
  std::int64_t graph_launches = 0;
  std::int64_t products = 0;  ///< Calls of general products of cuBLAS; a batch is one.
  /// Those of two matrices, none a vector, where an operand or the result has rows in memory that
  /// do not all begin at multiples of 16 bytes.
  std::int64_t unaligned_products = 0;
  std::int64_t allocations = 0;  ///< Allocations of device or pinned memory, and frees of device
                                 ///< memory.
  std::int64_t live_bytes = 0;   ///< Device memory in use.
};
[[nodiscard]] Counters counters();

}  // namespace emulated
