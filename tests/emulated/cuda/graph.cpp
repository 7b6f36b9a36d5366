#include "graph.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "emulated/library_faults.h"
#include "state.h"

/// Recorded work in the order of its recording.
struct CUgraph_st {
  std::vector<emulated::Node> nodes;
};

/// Recorded work in an order in which it may run: of the nodes that are ready the latest first, so
/// that an order that was not requested does not occur.
struct CUgraphExec_st {
  std::vector<emulated::Node> nodes;
};

namespace emulated {
namespace {

using Lock = std::scoped_lock<DeviceMutex>;
thread_local std::shared_ptr<Capture> capture_here;

cudaError_t broken(Capture& capture) {
  capture.broken = true;
  return cudaErrorStreamCaptureUnsupported;
}

/// Returns which nodes precede these, themselves included.
std::vector<bool> all_before(const Capture& capture, const std::vector<std::size_t>& last) {
  std::vector<bool> before(capture.nodes.size());
  for (const std::size_t node : last) before[node] = true;
  for (std::size_t i = capture.nodes.size(); i-- > 0;) {
    if (!before[i]) continue;
    for (const std::size_t node : capture.nodes[i].after) before[node] = true;
  }
  return before;
}

bool all_joined(const Capture& capture) {
  const std::vector<bool> before = all_before(capture, capture.origin->last);
  for (const CUstream_st* stream : capture.streams)
    for (const std::size_t node : stream->last)
      if (!before[node]) return false;
  return true;
}

void finish(Capture& capture) {
  capture.over = true;
  for (CUstream_st* stream : capture.streams) {
    stream->capture.reset();
    stream->last.clear();
  }
  capture_here.reset();
}

std::vector<Node> latest_first(const std::vector<Node>& nodes) {
  std::vector<std::size_t> missing(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) missing[i] = nodes[i].after.size();
  std::set<std::size_t> free;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (missing[i] == 0) free.insert(i);
  std::vector<std::vector<std::size_t>> followers(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (const std::size_t node : nodes[i].after) followers[node].push_back(i);
  std::vector<Node> out;
  while (!free.empty()) {
    const std::size_t next = *free.rbegin();
    free.erase(next);
    out.push_back(nodes[next]);
    for (const std::size_t follower : followers[next])
      if (--missing[follower] == 0) free.insert(follower);
  }
  return out;
}

}  // namespace

cudaError_t refuse_while_recording() {
  const Lock lock(state().mutex);
  return capture_here == nullptr ? cudaSuccess : broken(*capture_here);
}

cudaError_t refuse_while_recorded(CUstream_st* stream) {
  const Lock lock(state().mutex);
  if (stream->capture != nullptr) return broken(*stream->capture);
  return refuse_while_recording();
}

cudaError_t refuse_while_anything_is_recorded() {
  const Lock lock(state().mutex);
  cudaError_t code = cudaSuccess;
  for (CUstream_st* stream : state().streams)
    if (stream->capture != nullptr) code = broken(*stream->capture);
  return code;
}

void record(CUstream_st* stream, std::function<bool()> ready, std::function<void()> work) {
  Capture& capture = *stream->capture;
  capture.nodes.push_back({std::move(ready), std::move(work), stream->last});
  stream->last = {capture.nodes.size() - 1};
}

void record_event(CUevent_st* event, CUstream_st* stream) {
  event->stream = nullptr;
  event->capture = stream->capture;
  event->last = stream->last;
}

cudaError_t wait_for_recorded(CUstream_st* stream, CUevent_st* event) {
  const auto& capture = event->capture;
  // An event outside a recording cannot be waited for: it would have occurred before, or never.
  if (capture == nullptr) {
    stream->capture->broken = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (capture->over) return cudaErrorCapturedEvent;
  if (stream->capture == nullptr) {
    stream->capture = capture;
    capture->streams.insert(stream);
  } else if (stream->capture != capture) {
    stream->capture->broken = capture->broken = true;
    return cudaErrorStreamCaptureMerge;
  }
  std::set<std::size_t> last(stream->last.begin(), stream->last.end());
  last.insert(event->last.begin(), event->last.end());
  stream->last.assign(last.begin(), last.end());
  return cudaSuccess;
}

}  // namespace emulated

using emulated::Capture;
using emulated::capture_here;
using emulated::Lock;
using emulated::state;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock(state().mutex);
  if (mode != cudaStreamCaptureModeThreadLocal)
    return cudaErrorInvalidValue;  // The library uses
                                   // no other mode.
  if (stream->capture != nullptr || capture_here != nullptr) return cudaErrorIllegalState;
  capture_here = std::make_shared<Capture>();
  capture_here->origin = stream;
  capture_here->owner = std::this_thread::get_id();
  capture_here->streams.insert(stream);
  stream->capture = capture_here;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(state().mutex);
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->owner != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  const bool joined = emulated::all_joined(*capture);
  emulated::finish(*capture);
  if (capture->broken) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{capture->nodes};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock(state().mutex);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->broken  ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph,
                                          unsigned long long) {
  const Lock lock(state().mutex);
  if (emulated::libraries_starve()) return cudaErrorMemoryAllocation;
  *ready = new CUgraphExec_st{emulated::latest_first(graph->nodes)};
  state().memory.keep_freed();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(state().mutex);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  const Lock lock(state().mutex);
  delete ready;  // Launches have copies of the work.
  state().memory.reuse_freed();
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  const Lock lock(state().mutex);
  if (const cudaError_t code = emulated::refuse_while_recorded(stream); code != cudaSuccess)
    return code;
  ++state().counters.graph_launches;
  for (const emulated::Node& node : ready->nodes)
    emulated::submit_when(stream, node.ready, node.work);
  emulated::submit(stream, [] { state().memory.check_freed(); });
  return cudaSuccess;
}

}  // extern "C"
