#include "comm/transport/host_communicator.h"

#include <utility>

#include "dkfac/core/error.h"

namespace dkfac::comm {

namespace {

HostCall call_of(HostCall::Kind kind, CallInfo info, const Stream& stream,
                 const ConstTensorView& in, const TensorView& out, DType dtype,
                 std::vector<std::int64_t> offsets) {
  HostCall call;
  call.kind = kind;
  call.stream = stream;
  call.info = std::move(info);
  call.dtype = dtype;
  call.in = static_cast<const std::byte*>(in.raw());
  call.out = static_cast<std::byte*>(out.raw());
  call.offsets = std::move(offsets);
  return call;
}

}  // namespace

std::vector<std::int64_t> offsets_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t count : counts) offsets.push_back(offsets.back() + count);
  return offsets;
}

std::vector<std::int64_t> even_offsets(std::int64_t total, int size) {
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t r = 0; r < size; ++r)
    offsets.push_back(offsets.back() + total / size + (r < total % size ? 1 : 0));
  return offsets;
}

HostCommunicator::HostCommunicator(int rank, int size, Options options)
    : Communicator(rank, size, options), inline_queue_(HostQueue::make()) {}

bool HostCommunicator::progress() {
  throw_if_failed();
  const std::shared_ptr<HostQueue> queue = last_queue_.lock();
  return queue == nullptr || queue->progress();
}

void HostCommunicator::settle_before(const HostQueue& queue) {
  const std::shared_ptr<HostQueue> last = last_queue_.lock();
  if (last != nullptr && last.get() != &queue) last->drain();
}

void HostCommunicator::run(std::unique_ptr<HostTask> task) {
  settle_before(*inline_queue_);
  last_queue_ = inline_queue_;
  inline_queue_->wait(inline_queue_->submit(std::move(task)));
}

void HostCommunicator::submit(HostCall call) {
  throw_if_failed();
  const Stream stream = call.stream;
  if (stream.device().is_cuda()) {
    if (const std::shared_ptr<HostQueue> last = last_queue_.lock()) last->drain();
    device_order_.enter(stream);
    run_on_device(std::move(call));
    device_order_.leave(stream);
    return;
  }
  if (stream.queue() == nullptr) return run(make_task(std::move(call)));
  settle_before(*stream.queue());
  last_queue_ = stream.queue()->weak_from_this();
  stream.queue()->submit(make_task(std::move(call)));
}

void HostCommunicator::run_on_device(HostCall call) {
  throw DeviceError(detail::concat("[", call.info.op, "] the ", backend(),
                                   " communicator has no device collectives"));
}

void HostCommunicator::do_all_reduce(TensorView x, ReduceOp op, Stream stream, CallInfo info) {
  HostCall call = call_of(HostCall::Kind::all_reduce, std::move(info), stream, x, x, x.dtype(),
                          even_offsets(x.numel(), size()));
  call.op = op;
  submit(std::move(call));
}

void HostCommunicator::do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts,
                                           TensorView out, Stream stream, CallInfo info) {
  submit(call_of(HostCall::Kind::reduce_scatter_v, std::move(info), stream, x, out, x.dtype(),
                 offsets_of(counts)));
}

void HostCommunicator::do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts,
                                       TensorView out, Stream stream, CallInfo info) {
  submit(call_of(HostCall::Kind::all_gather_v, std::move(info), stream, x, out, out.dtype(),
                 offsets_of(counts)));
}

void HostCommunicator::do_broadcast(TensorView x, int root, Stream stream, CallInfo info) {
  HostCall call =
      call_of(HostCall::Kind::broadcast, std::move(info), stream, x, x, x.dtype(), {0, x.numel()});
  call.root = root;
  submit(std::move(call));
}

void HostCommunicator::do_exchange(ConstTensorView x, std::span<const Route> routes, TensorView out,
                                   Stream stream, CallInfo info) {
  HostCall call = call_of(HostCall::Kind::exchange, std::move(info), stream, x, out, x.dtype(), {});
  call.routes.assign(routes.begin(), routes.end());
  submit(std::move(call));
}

void HostCommunicator::do_barrier(CallInfo info) {
  throw_if_failed();
  HostCall call;
  call.kind = HostCall::Kind::barrier;
  call.info = std::move(info);
  run(make_task(std::move(call)));
}

}  // namespace dkfac::comm
