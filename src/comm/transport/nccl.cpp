#include "dkfac/comm/nccl.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>

#include "dkfac/core/context.h"
#include "dkfac/core/error.h"
#include "dkfac/core/tensor.h"

#include "comm/backends.h"
#include "comm/call_info.h"
#include "comm/routed_messages.h"
#include "comm/transport/cuda/device_work.h"
#include "comm/transport/host_communicator.h"
#include "comm/transport/nccl_group.h"
#include "core/shared/cuda/device_guard.h"

namespace dkfac::comm {
namespace {

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
  }
  return ncclNumTypes;
}

bool went(ncclResult_t code) { return code == ncclSuccess || code == ncclInProgress; }

/// Buffer of the segments of all ranks.
struct Segments {
  std::byte* data;
  DType dtype;
  std::vector<std::int64_t> offsets;  ///< size + 1.

  [[nodiscard]] std::byte* at(int r) const {
    return data + offsets[static_cast<std::size_t>(r)] * static_cast<std::int64_t>(size_of(dtype));
  }
  [[nodiscard]] std::size_t count(int r) const {
    const auto i = static_cast<std::size_t>(r);
    return static_cast<std::size_t>(offsets[i + 1] - offsets[i]);
  }
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclGroup> group, NcclOptions nccl)
      : Communicator(group->bootstrap().rank(), group->bootstrap().size(),
                     group->bootstrap().options()),
        nccl_(nccl),
        group_(std::move(group)) {}
  ~NcclCommunicator() override { free_scratch(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  [[nodiscard]] bool failed() const override { return group_->failed(); }
  [[nodiscard]] bool supports(Device device) const override {
    return !device.is_cuda() || device == group_->device();
  }
  bool progress() override {
    group_->look();
    return on_host([](Communicator& host) { return host.progress(); });
  }

 protected:
  void do_all_reduce(TensorView x, ReduceOp op, Stream stream, CallInfo info) override;
  void do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts, TensorView out,
                           Stream stream, CallInfo info) override;
  void do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts, TensorView out,
                       Stream stream, CallInfo info) override;
  void do_broadcast(TensorView x, int root, Stream stream, CallInfo info) override;
  void do_exchange(ConstTensorView x, std::span<const Route> routes, TensorView out, Stream stream,
                   CallInfo info) override;
  void do_barrier(CallInfo info) override {
    on_host([&](Communicator& host) { host.barrier(info.name); });
  }
  std::shared_ptr<Communicator> do_split(int color, int key, CallInfo) override {
    auto part = group_->split(color, key);
    if (part == nullptr) return nullptr;
    return std::make_shared<NcclCommunicator>(std::move(part), nccl_);
  }
  void do_abort(std::string_view reason) noexcept override { group_->abort(reason); }

 private:
  /// Runs body(bootstrap) so that its failure leaves no NCCL kernel waiting.
  template <class Body>
  std::invoke_result_t<Body, Communicator&> on_host(Body body) {
    return group_->on_bootstrap(std::move(body));
  }
  [[nodiscard]] bool by_owners(DType dtype, ReduceOp op) const {
    return nccl_.owner_sums || op == ReduceOp::max || size_of(dtype) == 2;
  }
  /// Runs body(native stream) between begin() and end() of the group.
  template <class Body>
  void issue(const CallInfo& info, const Stream& stream, Body body);
  void compare(const CallInfo& info);
  void reduce_by_owners(const Segments& x, ReduceOp op, std::byte* out, const Stream& stream);
  void gather(const std::byte* mine, const Segments& out, const Stream& stream);
  std::byte* scratch(std::size_t bytes, const Stream& stream);
  void free_scratch() noexcept;

  NcclOptions nccl_;
  std::optional<Context> ctx_;  ///< Context of the scratch memory.
  Tensor scratch_;
  std::shared_ptr<NcclGroup> group_;  ///< Destroyed first: pending work is completed or aborted.
};

void NcclCommunicator::compare(const CallInfo& info) {
  if (options().check != Check::full) return;
  const CallDigest mine = digest_of(info);
  std::vector<std::int32_t> words(2), all(2 * static_cast<std::size_t>(size()));
  std::memcpy(words.data(), &mine.hash, sizeof mine.hash);
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), 2);
  on_host([&](Communicator& host) {
    host.all_gather_v(view_of(words.data(), {2}), counts, view_of(all.data(), {2 * size()}),
                      Stream::cpu(), "calls");
  });
  std::vector<CallDigest> digests(static_cast<std::size_t>(size()));
  bool same = true;
  for (std::size_t r = 0; r < digests.size(); ++r) {
    std::memcpy(&digests[r].hash, &all[2 * r], sizeof mine.hash);
    same = same && digests[r].hash == mine.hash;
  }
  if (same) return;
  const std::vector<std::string> texts =
      on_host([&](Communicator& host) { return all_gather_strings(host, mine.text); });
  for (std::size_t r = 0; r < digests.size(); ++r) digests[r].text = texts[r];
  group_->fail(disagreement(digests));
}

template <class Body>
void NcclCommunicator::issue(const CallInfo& info, const Stream& stream, Body body) {
  const dkfac::cuda::DeviceGuard guard(group_->device());
  group_->begin(group_, info, stream);
  compare(info);
  try {
    body(stream.native());
  } catch (...) {
    group_->give_up(stream);
    throw;
  }
  group_->end(info, stream);
}

/// Frees scratch memory after the streams that have used it. They need not belong to a context, so
/// the memory pool does not know them; the context's own stream follows them instead.
void NcclCommunicator::free_scratch() noexcept {
  if (ctx_) group_->let_follow(ctx_->stream());
  scratch_ = Tensor();
}

std::byte* NcclCommunicator::scratch(std::size_t bytes, const Stream& stream) {
  if (bytes > scratch_.bytes()) {
    free_scratch();
    if (!ctx_) ctx_.emplace(group_->device());
    scratch_ = Tensor::empty(*ctx_, {static_cast<std::int64_t>((bytes + 7) / 8)}, DType::f64);
    Event made(group_->device());  // The memory is first available on the context's stream.
    made.record(ctx_->stream());
    stream.wait(made);
  }
  return static_cast<std::byte*>(scratch_.view().raw());
}

void NcclCommunicator::reduce_by_owners(const Segments& x, ReduceOp op, std::byte* out,
                                        const Stream& stream) {
  const std::size_t mine = x.count(rank()), bytes = mine * size_of(x.dtype);
  std::byte* parts = scratch(bytes * static_cast<std::size_t>(size() - 1), stream);
  std::vector<const std::byte*> inputs;
  for (int r = 0, k = 0; r < size(); ++r)
    inputs.push_back(r == rank() ? x.at(r) : parts + bytes * static_cast<std::size_t>(k++));
  const ncclDataType_t type = type_of(x.dtype);
  group_->group([&](ncclComm_t comm) {
    ncclResult_t code = ncclSuccess;
    for (int r = 0; r < size() && went(code); ++r) {
      if (r == rank()) continue;
      if (x.count(r) > 0) code = ncclSend(x.at(r), x.count(r), type, r, comm, stream.native());
      if (mine > 0 && went(code))
        code = ncclRecv(const_cast<std::byte*>(inputs[static_cast<std::size_t>(r)]), mine, type, r,
                        comm, stream.native());
    }
    return code;
  });
  if (mine > 0)
    cuda::reduce(stream, op, x.dtype, inputs, static_cast<std::int64_t>(mine), std::array{out});
}

void NcclCommunicator::gather(const std::byte* mine, const Segments& out, const Stream& stream) {
  group_->group([&](ncclComm_t comm) {
    ncclResult_t code = ncclSuccess;
    for (int r = 0; r < size() && went(code); ++r)
      if (out.count(r) > 0)
        code = ncclBroadcast(r == rank() ? mine : out.at(r), out.at(r), out.count(r),
                             type_of(out.dtype), r, comm, stream.native());
    return code;
  });
}

void NcclCommunicator::do_all_reduce(TensorView x, ReduceOp op, Stream stream, CallInfo info) {
  if (!stream.device().is_cuda())
    return on_host([&](Communicator& host) { host.all_reduce(x, op, stream, info.name); });
  issue(info, stream, [&](CUstream_st* native) {
    if (x.numel() == 0) return;
    auto* data = static_cast<std::byte*>(x.raw());
    if (by_owners(x.dtype(), op)) {
      const Segments segments{data, x.dtype(), even_offsets(x.numel(), size())};
      reduce_by_owners(segments, op, segments.at(rank()), stream);
      return gather(segments.at(rank()), segments, stream);
    }
    group_->group([&](ncclComm_t comm) {
      return ncclAllReduce(data, data, static_cast<std::size_t>(x.numel()), type_of(x.dtype()),
                           ncclSum, comm, native);
    });
  });
}

void NcclCommunicator::do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts,
                                           TensorView out, Stream stream, CallInfo info) {
  if (!stream.device().is_cuda())
    return on_host(
        [&](Communicator& host) { host.reduce_scatter_v(x, counts, out, stream, info.name); });
  issue(info, stream, [&](CUstream_st* native) {
    if (x.numel() == 0) return;
    const Segments segments{static_cast<std::byte*>(x.raw()), x.dtype(), offsets_of(counts)};
    auto* result = static_cast<std::byte*>(out.raw());
    if (by_owners(x.dtype(), ReduceOp::sum))
      return reduce_by_owners(segments, ReduceOp::sum, result, stream);
    group_->group([&](ncclComm_t comm) {
      ncclResult_t code = ncclSuccess;
      for (int r = 0; r < size() && went(code); ++r)
        if (segments.count(r) > 0)
          code = ncclReduce(segments.at(r), r == rank() ? result : segments.at(r),
                            segments.count(r), type_of(x.dtype()), ncclSum, r, comm, native);
      return code;
    });
  });
}

void NcclCommunicator::do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts,
                                       TensorView out, Stream stream, CallInfo info) {
  if (!stream.device().is_cuda())
    return on_host(
        [&](Communicator& host) { host.all_gather_v(x, counts, out, stream, info.name); });
  issue(info, stream, [&](CUstream_st*) {
    if (out.numel() == 0) return;
    gather(static_cast<const std::byte*>(x.raw()),
           {static_cast<std::byte*>(out.raw()), out.dtype(), offsets_of(counts)}, stream);
  });
}

void NcclCommunicator::do_broadcast(TensorView x, int root, Stream stream, CallInfo info) {
  if (!stream.device().is_cuda())
    return on_host([&](Communicator& host) { host.broadcast(x, root, stream, info.name); });
  issue(info, stream, [&](CUstream_st* native) {
    if (x.numel() == 0) return;
    group_->group([&](ncclComm_t comm) {
      return ncclBroadcast(x.raw(), x.raw(), static_cast<std::size_t>(x.numel()),
                           type_of(x.dtype()), root, comm, native);
    });
  });
}

void NcclCommunicator::do_exchange(ConstTensorView x, std::span<const Route> routes, TensorView out,
                                   Stream stream, CallInfo info) {
  if (!stream.device().is_cuda())
    return on_host([&](Communicator& host) { host.exchange(x, routes, out, stream, info.name); });
  issue(info, stream, [&](CUstream_st* native) {
    const std::vector<RoutedMessage> messages = messages_of(routes, rank());
    if (x.numel() == 0 && out.numel() == 0) return;
    const auto* in = static_cast<const std::byte*>(x.raw());
    auto* received = static_cast<std::byte*>(out.raw());
    const auto bytes = [&](std::int64_t n) {
      return static_cast<std::size_t>(n) * size_of(x.dtype());
    };
    group_->group([&](ncclComm_t comm) {
      ncclResult_t code = ncclSuccess;
      for (const RoutedMessage& m : messages) {
        const auto count = static_cast<std::size_t>(m.route.count);
        if (count == 0 || !went(code)) continue;
        code = m.route.from == rank() ? ncclSend(in + bytes(m.sent_at), count, type_of(x.dtype()),
                                                 m.route.to, comm, native)
                                      : ncclRecv(received + bytes(m.received_at), count,
                                                 type_of(x.dtype()), m.route.from, comm, native);
      }
      return code;
    });
  });
}

}  // namespace

bool has_nccl() noexcept { return true; }

int nccl_version() noexcept {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

std::shared_ptr<Communicator> connect_nccl(std::shared_ptr<Communicator> bootstrap, Device device,
                                           NcclOptions options) {
  return std::make_shared<NcclCommunicator>(
      std::make_shared<NcclGroup>(std::move(bootstrap), device), options);
}

}  // namespace dkfac::comm
