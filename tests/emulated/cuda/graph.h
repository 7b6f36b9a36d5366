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

/// Work that is recorded, and what it has to follow.
struct Node {
  std::function<bool()> ready;
  std::function<void()> work;
  std::vector<std::size_t> after;
};

/// A recording under way: of one stream, and of those that followed it.
struct Capture {
  CUstream_st* origin = nullptr;
  std::thread::id owner;
  bool broken = false;  ///< A call was made that cannot be recorded.
  bool over = false;
  std::vector<Node> nodes;
  std::set<CUstream_st*> streams;
};

/// What cannot be done while this thread records, as the device says it: the recording is lost.
/// cudaSuccess when it does not record.
[[nodiscard]] cudaError_t refuse_while_recording();
/// The same for what cannot be done to this stream while anybody records it.
[[nodiscard]] cudaError_t refuse_while_recorded(CUstream_st* stream);

/// The same for what waits for the whole device: recordings of all threads are lost.
[[nodiscard]] cudaError_t refuse_while_anything_is_recorded();

/// Records work instead of running it. The stream is being recorded.
void record(CUstream_st* stream, std::function<bool()> ready, std::function<void()> work);
/// cudaEventRecord() and cudaStreamWaitEvent() where one of the two belongs to a recording.
void record_event(CUevent_st* event, CUstream_st* stream);
[[nodiscard]] cudaError_t wait_for_recorded(CUstream_st* stream, CUevent_st* event);

}  // namespace emulated
