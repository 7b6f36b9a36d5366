#pragma once

#include <functional>
#include <memory>

#include <cuda_runtime_api.h>

#include "dkfac/core/context.h"
#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "comm/conformance.h"

/// Conformance suite over device memory. A backend's test defines sizes() and run_ranks_of(); run()
/// of conformance.h passes the suite communicators of host memory whose collectives use a device,
/// and conformance_device_test.cpp uses the device itself.
namespace dkfac::comm::testing {

using OwningBody = std::function<void(const std::shared_ptr<Communicator>&)>;

/// Runs body once per rank over a new communicator of `size` ranks that supports Device::cuda().
void run_ranks_of(int size, const Options& options, const OwningBody& body);

/// Returns the first device that the communicator supports.
[[nodiscard]] inline Device device_of(const Communicator& comm) {
  for (const Device device : available_devices())
    if (device.is_cuda() && comm.supports(device)) return device;
  return Device::cuda();
}

/// Copies `values` to x on the stream of ctx.
template <class T>
void put(Context& ctx, TensorView x, const std::vector<T>& values) {
  ops::copy(ctx, view_of(values.data(), x.shape()), x);
}

/// A copy of `values` on the device of ctx.
template <class T>
[[nodiscard]] Tensor on_device(Context& ctx, const std::vector<T>& values) {
  Tensor x = Tensor::empty(ctx, {static_cast<std::int64_t>(values.size())}, dtype_of<T>);
  put(ctx, x, values);
  return x;
}

/// Returns device values after synchronizing the stream of ctx.
template <class T>
[[nodiscard]] std::vector<T> on_host(Context& ctx, ConstTensorView x) {
  std::vector<T> values(static_cast<std::size_t>(x.numel()));
  ctx.stream().synchronize();
  EXPECT_EQ(
      cudaMemcpyAsync(values.data(), x.raw(), x.bytes(), cudaMemcpyDefault, ctx.stream().native()),
      cudaSuccess);
  ctx.stream().synchronize();
  return values;
}

}  // namespace dkfac::comm::testing
