#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct CUstream_st;

/// A CUDA device that is not there: the entry points of the CUDA libraries that we use, over host
/// memory, for tests on machines without a GPU (DKFAC_CUDA=EMULATED).
///
/// It is as unforgiving as a device, and more so. Device memory cannot be touched from the host: it
/// is inaccessible but while work of the device runs, so a stray access ends in a segmentation
/// fault. Fresh memory is full of NaN, and writing past its end is found when it is freed; under
/// AddressSanitizer work that reads or writes past its end, or what has been freed, ends at once.
/// Streams are lazy: work runs when something waits for it, so an order that was not requested is
/// not there. Work that is recorded (stream capture) refuses what a device refuses, and more:
/// memory, plain host memory, events from outside. Memory that a graph may still hold is not used
/// again. DKFAC_EMULATED=eager runs everything at once instead. Any number of host threads; one
/// device, or as many as DKFAC_EMULATED_DEVICES says, which differ in name only;
/// DKFAC_EMULATED_MODELS=AAB has a letter for the model of each, for what asks whether they are
/// alike.
namespace emulated {

using Ticket = std::uint64_t;  ///< Position of work on its stream, from 1.

/// Puts work on a stream; null is refused, since nothing of ours uses the default stream.
Ticket submit(CUstream_st* stream, std::function<void()> work);
/// Work that has to wait for something besides its stream: it runs once ready() holds. ready() is
/// asked now and then and must not block; it may advance() other streams.
Ticket submit_when(CUstream_st* stream, std::function<bool()> ready, std::function<void()> work);
/// As submit(), counted as a kernel.
Ticket launch(CUstream_st* stream, std::function<void()> work);
/// Runs the work of `stream` up to `ticket`, and what it waits for on other streams.
void run(CUstream_st* stream, Ticket ticket);
/// As run(), but goes only as far as nothing has to be waited for; true when it came to `ticket`.
bool advance(CUstream_st* stream, Ticket ticket);
/// The ticket of what was submitted last.
[[nodiscard]] Ticket last(CUstream_st* stream);
/// From within work: lets other host threads go on until `ready` holds. Throws std::runtime_error
/// after a minute.
void block_until(const std::function<bool()>& ready);
/// After a change that a block_until() of another thread may wait for.
void notify();
/// Runs body with device memory open, as work of the device; for the fakes of libraries that read
/// device memory on the host's time.
void with_memory(const std::function<void()>& body);

[[nodiscard]] bool is_device_memory(const void* data);
[[nodiscard]] bool is_pinned_memory(const void* data);

/// Failures on request. Of device memory no more than this is there; 0: as much as there is.
void limit_memory(std::int64_t bytes);
/// The product of cuBLAS that many calls from now fails, the next one being 1; once. 0: none.
void fail_product(int calls);
/// Of the above: whether this call fails.
[[nodiscard]] bool product_fails();

/// From now on this thread sees that device alone, as device 0: what CUDA_VISIBLE_DEVICES does to
/// the processes of a launcher, for ranks that are threads. -1: all there are.
void show_device(int device);

/// Since the start of the program, of all threads.
struct Counters {
  std::int64_t host_waits = 0;  ///< Calls that block the host until the device is done.
  std::int64_t kernels = 0;     ///< Launches.
  std::int64_t graph_launches = 0;
  std::int64_t allocations = 0;  ///< Of device or pinned memory; frees of the former count too.
  std::int64_t live_bytes = 0;   ///< Of device memory.
};
[[nodiscard]] Counters counters();

}  // namespace emulated
