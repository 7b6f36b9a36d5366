#include <memory>

#include <cuda_runtime_api.h>

#include "dkfac/core/error.h"

#include "core/cuda/runtime.h"
#include "core/shared/cuda/device_guard.h"
#include "core/shared/cuda/handles.h"
#include "core/shared/cuda/trim.h"

namespace dkfac::cuda {
namespace {

/// Captured graph and its executable. Pending launches may outlive it.
struct Graph {
  Device device;
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t ready = nullptr;

  explicit Graph(Device on) : device(on) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    const DeviceGuard guard(device);
    if (ready != nullptr) (void)cudaGraphExecDestroy(ready);
    if (captured != nullptr) (void)cudaGraphDestroy(captured);
  }
};

/// Ends hold_memory() in any case, also if the capture failed.
struct MemoryGoes {
  Device device;
  ~MemoryGoes() { let_memory_go(device); }
};

}  // namespace

void begin_capture(Device device, CUstream_st* stream) {
  const DeviceGuard guard(device);
  hold_memory(device);
  // Restricts this thread only: other ranks may use the device meanwhile.
  const cudaError_t code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (code != cudaSuccess) let_memory_go(device);
  check_runtime(code, "cudaStreamBeginCapture");
}

std::shared_ptr<void> end_capture(Device device, CUstream_st* stream) {
  const DeviceGuard guard(device);
  const auto graph = std::make_shared<Graph>(device);
  {
    const MemoryGoes after{device};
    check_runtime(cudaStreamEndCapture(stream, &graph->captured), "cudaStreamEndCapture");
  }
  const auto instantiate = [&] {
    return cudaGraphInstantiateWithFlags(&graph->ready, graph->captured, 0);
  };
  check_runtime(with_memory(device, instantiate, cudaErrorMemoryAllocation),
                "cudaGraphInstantiateWithFlags");
  return graph;
}

void drop_capture(Device device, CUstream_st* stream) noexcept {
  const DeviceGuard guard(device);
  cudaGraph_t captured = nullptr;
  (void)cudaStreamEndCapture(stream, &captured);
  if (captured != nullptr) (void)cudaGraphDestroy(captured);
  (void)cudaGetLastError();  // The error is already being reported.
  let_memory_go(device);
}

bool is_captured(Device device, CUstream_st* stream) {
  const DeviceGuard guard(device);
  auto status = cudaStreamCaptureStatusNone;
  check_runtime(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void launch_captured(Device device, const std::shared_ptr<void>& graph, CUstream_st* stream) {
  const DeviceGuard guard(device);
  check_runtime(cudaGraphLaunch(static_cast<const Graph*>(graph.get())->ready, stream),
                "cudaGraphLaunch");
}

}  // namespace dkfac::cuda
