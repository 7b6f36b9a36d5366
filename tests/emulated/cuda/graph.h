#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

struct CUstream_st;

namespace emulated {

/// Recorded work, and the nodes that it follows.
struct Node {
  std::function<bool()> ready;
  std::function<void()> work;
  std::vector<std::size_t> after;
};

/// A recording in progress: of one stream, and of those that followed it.
struct Capture {
  CUstream_st* origin = nullptr;
  std::thread::id owner;
  bool broken = false;  ///< Whether a call was made that cannot be captured.
  bool over = false;
  std::vector<Node> nodes;
  std::set<CUstream_st*> streams;
};

/// Returns the error of a call that is not allowed while this thread records, and invalidates the
/// recording. cudaSuccess when the thread does not record.
[[nodiscard]] cudaError_t refuse_while_recording();
/// As refuse_while_recording(), for a call that is not allowed on this stream while any thread
/// records it.
[[nodiscard]] cudaError_t refuse_while_recorded(CUstream_st* stream);

/// As refuse_while_recording(), for a call that waits for the whole device: recordings of all
/// threads are invalidated.
[[nodiscard]] cudaError_t refuse_while_anything_is_recorded();

/// Records work instead of running it. The stream is being recorded.
void record(CUstream_st* stream, std::function<bool()> ready, std::function<void()> work);
/// cudaEventRecord() and cudaStreamWaitEvent() where one of the two belongs to a recording.
void record_event(CUevent_st* event, CUstream_st* stream);
[[nodiscard]] cudaError_t wait_for_recorded(CUstream_st* stream, CUevent_st* event);

}  // namespace emulated
