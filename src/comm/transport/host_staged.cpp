#include <exception>
#include <utility>

#include "dkfac/comm/on_device.h"
#include "dkfac/core/error.h"

#include "comm/transport/cuda/device_work.h"
#include "comm/transport/stream_order.h"

namespace dkfac::comm {
namespace {

class HostStagedCommunicator final : public Communicator {
 public:
  explicit HostStagedCommunicator(std::shared_ptr<Communicator> inner)
      : Communicator(inner->rank(), inner->size(), inner->options()), inner_(std::move(inner)) {}
  ~HostStagedCommunicator() override {
    try {
      order_.settle();  // Pending copies may still read the memory that is freed next.
    } catch (const std::exception&) {
      // Freeing it synchronizes, too.
    }
  }
  HostStagedCommunicator(const HostStagedCommunicator&) = delete;
  HostStagedCommunicator& operator=(const HostStagedCommunicator&) = delete;

  [[nodiscard]] std::string_view backend() const override { return "host_staged"; }
  [[nodiscard]] bool failed() const override { return inner_->failed(); }
  [[nodiscard]] bool supports(Device device) const override {
    return !device.is_cuda() || cuda::is_built();
  }
  [[nodiscard]] bool overlaps() const override { return inner_->overlaps(); }
  bool progress() override { return inner_->progress(); }

 protected:
  void do_all_reduce(TensorView x, ReduceOp op, Stream stream, CallInfo info) override {
    if (!stream.device().is_cuda()) return inner_->all_reduce(x, op, stream, info.name);
    const TensorView whole = host(whole_, x);
    stage(stream, {x, whole}, {whole, x},
          [&] { inner_->all_reduce(whole, op, Stream::cpu(), info.name); });
  }
  void do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts, TensorView out,
                           Stream stream, CallInfo info) override {
    if (!stream.device().is_cuda())
      return inner_->reduce_scatter_v(x, counts, out, stream, info.name);
    const TensorView whole = host(whole_, x), part = host(part_, out);
    stage(stream, {x, whole}, {part, out},
          [&] { inner_->reduce_scatter_v(whole, counts, part, Stream::cpu(), info.name); });
  }
  void do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts, TensorView out,
                       Stream stream, CallInfo info) override {
    if (!stream.device().is_cuda()) return inner_->all_gather_v(x, counts, out, stream, info.name);
    const TensorView whole = host(whole_, out), part = host(part_, x);
    stage(stream, {x, part}, {whole, out},
          [&] { inner_->all_gather_v(part, counts, whole, Stream::cpu(), info.name); });
  }
  void do_broadcast(TensorView x, int root, Stream stream, CallInfo info) override {
    if (!stream.device().is_cuda()) return inner_->broadcast(x, root, stream, info.name);
    const TensorView whole = host(whole_, x), nothing;
    const bool sends = rank() == root;
    stage(stream, {sends ? x : nothing, sends ? whole : nothing},
          {sends ? nothing : whole, sends ? nothing : x},
          [&] { inner_->broadcast(whole, root, Stream::cpu(), info.name); });
  }
  void do_exchange(ConstTensorView x, std::span<const Route> routes, TensorView out, Stream stream,
                   CallInfo info) override {
    if (!stream.device().is_cuda()) return inner_->exchange(x, routes, out, stream, info.name);
    const TensorView sent = host(whole_, x), received = host(part_, out);
    stage(stream, {x, sent}, {received, out},
          [&] { inner_->exchange(sent, routes, received, Stream::cpu(), info.name); });
  }
  void do_barrier(CallInfo info) override { inner_->barrier(info.name); }
  std::shared_ptr<Communicator> do_split(int color, int key, CallInfo) override {
    auto part = inner_->split(color, key);
    return part == nullptr ? nullptr : make_host_staged(std::move(part));
  }
  void do_abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 private:
  struct Copy {
    ConstTensorView from;
    TensorView to;
  };

  TensorView host(cuda::PinnedMemory& memory, const ConstTensorView& like) {
    if (like.numel() == 0) return {nullptr, like.dtype(), {0}};
    if (memory.bytes() < like.bytes()) order_.settle();  // before it is freed
    return {memory.at_least(like.device(), like.bytes()), like.dtype(), {like.numel()}};
  }

  /// Copies to the host, runs body(), and copies back. The copy back of the previous call may still
  /// read the buffers, so the stream first follows it.
  template <class Body>
  void stage(const Stream& stream, const Copy& down, const Copy& up, Body body) {
    order_.enter(stream);
    cuda::copy(stream, down.from.raw(), down.to.raw(), down.from.bytes());
    order_.leave(stream);  // In case synchronize() throws.
    stream.synchronize();
    body();
    cuda::copy(stream, up.from.raw(), up.to.raw(), up.to.bytes());
    order_.leave(stream);
  }

  std::shared_ptr<Communicator> inner_;
  cuda::PinnedMemory whole_, part_;
  StreamOrder order_;
};

}  // namespace

std::shared_ptr<Communicator> make_host_staged(std::shared_ptr<Communicator> inner) {
  DKFAC_CHECK(inner != nullptr, "[make_host_staged] the communicator is null");
  return std::make_shared<HostStagedCommunicator>(std::move(inner));
}

}  // namespace dkfac::comm
