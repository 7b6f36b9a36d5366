#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dkfac/comm/communicator.h"

#include "comm/transport/stream_order.h"
#include "core/shared/host_queue.h"

namespace dkfac::comm {

/// Validated collective call, as passed to a backend. It is over host memory unless the stream is a
/// CUDA stream.
struct HostCall {
  enum class Kind : std::uint8_t {
    all_reduce,
    reduce_scatter_v,
    all_gather_v,
    broadcast,
    exchange,
    barrier,
    split
  };
  Kind kind = Kind::barrier;
  CallInfo info;
  Stream stream = Stream::cpu();
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  int color = 0, key = 0;         ///< Arguments of a split.
  const std::byte* in = nullptr;  ///< Equal to out for all_reduce and broadcast.
  std::byte* out = nullptr;
  std::vector<std::int64_t> offsets;  ///< size + 1: segment r is [offsets[r], offsets[r + 1]).
  std::vector<Route> routes;          ///< Of an exchange, which has no segments.

  [[nodiscard]] std::int64_t count() const { return offsets.empty() ? 0 : offsets.back(); }
  [[nodiscard]] std::int64_t offset(int rank) const {
    return offsets[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::int64_t segment(int rank) const { return offset(rank + 1) - offset(rank); }
  [[nodiscard]] std::size_t element() const { return size_of(dtype); }
};

/// Returns the offsets of segments of these lengths, and their end.
[[nodiscard]] std::vector<std::int64_t> offsets_of(std::span<const std::int64_t> counts);
/// Returns offsets of `size` segments of `total` elements whose lengths differ by at most one.
[[nodiscard]] std::vector<std::int64_t> even_offsets(std::int64_t total, int size);

/// Rounds `bytes` down to a multiple of the largest element size, at least one such element.
[[nodiscard]] constexpr std::int64_t whole_elements(std::int64_t bytes) {
  return bytes < 8 ? 8 : bytes / 8 * 8;
}

/// Base of the host backends: every collective is a task on a host queue. A call on an inline
/// stream uses an internal queue and waits. The queue used last is drained before another one is
/// used, which keeps the order of calls over streams. Calls on device memory go to run_on_device()
/// once the queues are empty and the stream follows earlier device work.
class HostCommunicator : public Communicator {
 public:
  bool progress() override;

 protected:
  HostCommunicator(int rank, int size, Options options);

  [[nodiscard]] virtual std::unique_ptr<HostTask> make_task(HostCall call) = 0;
  /// Throws the failure of the group if it has failed. Never blocks.
  virtual void throw_if_failed() = 0;
  /// Enqueues the work of a call on its CUDA stream; called only if the backend supports the
  /// device.
  virtual void run_on_device(HostCall call);
  /// Runs the task after everything submitted so far and waits for it.
  void run(std::unique_ptr<HostTask> task);

  void do_all_reduce(TensorView x, ReduceOp op, Stream stream, CallInfo info) final;
  void do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts, TensorView out,
                           Stream stream, CallInfo info) final;
  void do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts, TensorView out,
                       Stream stream, CallInfo info) final;
  void do_broadcast(TensorView x, int root, Stream stream, CallInfo info) final;
  void do_exchange(ConstTensorView x, std::span<const Route> routes, TensorView out, Stream stream,
                   CallInfo info) final;
  void do_barrier(CallInfo info) final;

 private:
  void submit(HostCall call);
  void settle_before(const HostQueue& queue);

  std::shared_ptr<HostQueue> inline_queue_;
  std::weak_ptr<HostQueue> last_queue_;
  StreamOrder device_order_;
};

}  // namespace dkfac::comm
