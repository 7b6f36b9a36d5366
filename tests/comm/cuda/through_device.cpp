#include <utility>

#include "comm/cuda/device_ranks.h"

namespace dkfac::comm::testing {
namespace {

std::int64_t offset_of(std::span<const std::int64_t> counts, int rank) {
  std::int64_t offset = 0;
  for (int r = 0; r < rank; ++r) offset += counts[static_cast<std::size_t>(r)];
  return offset;
}

/// Communicator of host memory that copies it to a device for each collective.
class ThroughDevice final : public Communicator {
 public:
  explicit ThroughDevice(std::shared_ptr<Communicator> inner)
      : Communicator(inner->rank(), inner->size(), inner->options()),
        inner_(std::move(inner)),
        ctx_(device_of(*inner_)) {}
  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }
  [[nodiscard]] bool failed() const override { return inner_->failed(); }
  bool progress() override { return inner_->progress(); }

 protected:
  void do_all_reduce(TensorView x, ReduceOp op, Stream, CallInfo info) override {
    Tensor d = to_device(x);
    inner_->all_reduce(d, op, ctx_.stream(), info.name);
    to_host(d, x);
  }
  void do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts, TensorView out,
                           Stream, CallInfo info) override {
    Tensor d = to_device(x);
    const std::int64_t offset = offset_of(counts, rank());
    const bool in_place = out.numel() > 0 && out.raw() == x.slice(0, offset, out.numel()).raw();
    Tensor apart = Tensor::empty(ctx_, {out.numel()}, x.dtype());
    const TensorView to = in_place ? d.view().slice(0, offset, out.numel()) : apart.view();
    inner_->reduce_scatter_v(d, counts, to, ctx_.stream(), info.name);
    to_host(to, out);
  }
  void do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts, TensorView out,
                       Stream, CallInfo info) override {
    Tensor d = to_device(out);
    const std::int64_t offset = offset_of(counts, rank());
    const bool in_place = x.numel() > 0 && x.raw() == out.slice(0, offset, x.numel()).raw();
    Tensor apart = to_device(x);
    inner_->all_gather_v(in_place ? d.view().slice(0, offset, x.numel()) : apart.view(), counts, d,
                         ctx_.stream(), info.name);
    to_host(d, out);
  }
  void do_broadcast(TensorView x, int root, Stream, CallInfo info) override {
    Tensor d = to_device(x);
    inner_->broadcast(d, root, ctx_.stream(), info.name);
    to_host(d, x);
  }
  void do_exchange(ConstTensorView x, std::span<const Route> routes, TensorView out, Stream,
                   CallInfo info) override {
    Tensor sent = to_device(x), received = to_device(out);
    inner_->exchange(sent, routes, received, ctx_.stream(), info.name);
    to_host(received, out);
  }
  void do_barrier(CallInfo info) override { inner_->barrier(info.name); }
  std::shared_ptr<Communicator> do_split(int color, int key, CallInfo) override {
    auto part = inner_->split(color, key);
    return part == nullptr ? nullptr : std::make_shared<ThroughDevice>(std::move(part));
  }
  void do_abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 private:
  Tensor to_device(ConstTensorView x) {
    Tensor d = Tensor::empty(ctx_, {x.numel()}, x.dtype());
    if (x.numel() > 0) ops::copy(ctx_, x.flat(), d);
    return d;
  }
  void to_host(ConstTensorView d, TensorView x) {
    ctx_.stream().synchronize();
    move(d.raw(), x.raw(), x.bytes());
    ctx_.stream().synchronize();
  }
  void move(const void* from, void* to, std::size_t bytes) {
    if (bytes == 0) return;
    EXPECT_EQ(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, ctx_.stream().native()),
              cudaSuccess);
  }

  std::shared_ptr<Communicator> inner_;
  Context ctx_;
};

}  // namespace

void run(int size, const Options& options, const Body& body) {
  run_ranks_of(size, options, [&](const std::shared_ptr<Communicator>& comm) {
    ThroughDevice through(comm);
    body(through);
  });
}

}  // namespace dkfac::comm::testing
