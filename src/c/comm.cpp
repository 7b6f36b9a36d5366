#include <memory>
#include <string>

#include "dkfac/c/dkfac.h"
#include "dkfac/comm/communicator.h"
#include "dkfac/comm/external.h"
#include "dkfac/comm/on_device.h"
#include "dkfac/comm/tcp.h"

#include "c/make_comm.h"

namespace dkfac::c {
namespace {

/// Collectives by callbacks of a program in C.
class CallbackCollectives final : public comm::ExternalCollectives {
 public:
  explicit CallbackCollectives(const dkfac_comm_callbacks& callbacks) : callbacks_(callbacks) {}
  ~CallbackCollectives() override {
    if (callbacks_.release != nullptr) callbacks_.release(callbacks_.user);
  }
  CallbackCollectives(const CallbackCollectives&) = delete;
  CallbackCollectives& operator=(const CallbackCollectives&) = delete;

  void all_reduce(TensorView x, comm::ReduceOp op) override {
    check("all_reduce",
          callbacks_.all_reduce(callbacks_.user, x.raw(), x.numel(),
                                static_cast<std::int32_t>(x.dtype()), op == comm::ReduceOp::max));
  }
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    check("all_gather", callbacks_.all_gather(callbacks_.user, in.data(), out.data(),
                                              static_cast<std::int64_t>(in.size())));
  }
  void broadcast(std::span<std::byte> x, int root) override {
    check("broadcast", callbacks_.broadcast(callbacks_.user, x.data(),
                                            static_cast<std::int64_t>(x.size()), root));
  }
  void barrier() override { check("barrier", callbacks_.barrier(callbacks_.user)); }
  Group split(int color, int key) override;
  void abort(std::string_view reason) noexcept override {
    if (callbacks_.abort == nullptr) return;
    try {
      callbacks_.abort(callbacks_.user, std::string(reason).c_str());
    } catch (...) {  // No memory for the text, or a callback in C++ that throws.
    }
  }

 private:
  static void check(const char* what, int status) {
    if (status == 0) return;
    std::string reason = take_callback_error();
    if (reason.empty()) reason = detail::concat("status ", status);
    throw CommError(detail::concat("[", what, "] the callback failed: ", reason));
  }

  dkfac_comm_callbacks callbacks_;
};

dkfac_comm_callbacks checked(const dkfac_comm_callbacks* given, const char* operation) {
  const dkfac_comm_callbacks callbacks =
      known_fields(&required(given, operation, "callbacks"), dkfac_comm_callbacks{}, operation,
                   "dkfac_comm_callbacks", false);
  const auto need = [operation](bool present, const char* name) {
    DKFAC_CHECK(present, "[", operation, "] the callback ", name, " is null");
  };
  need(callbacks.all_reduce != nullptr, "all_reduce");
  need(callbacks.all_gather != nullptr, "all_gather");
  need(callbacks.broadcast != nullptr, "broadcast");
  need(callbacks.barrier != nullptr, "barrier");
  return callbacks;
}

comm::ExternalCollectives::Group CallbackCollectives::split(int color, int key) {
  if (callbacks_.split == nullptr) return ExternalCollectives::split(color, key);
  dkfac_comm_callbacks part{};
  part.struct_size = sizeof part;
  std::int32_t rank = 0, size = 1;
  check("split", callbacks_.split(callbacks_.user, color, key, &part, &rank, &size));
  if (color < 0) return {};
  return {std::make_shared<CallbackCollectives>(checked(&part, "split")), rank, size};
}

}  // namespace
}  // namespace dkfac::c

using namespace dkfac;

int dkfac_comm_self(const dkfac_comm_options* options, dkfac_comm** out) {
  return c::make_comm("dkfac_comm_self", out,
                      [&] { return comm::make_self(c::comm_options(options, "dkfac_comm_self")); });
}

int dkfac_comm_tcp(int32_t rank, int32_t size, const char* host, uint16_t port,
                   const dkfac_comm_options* options, dkfac_comm** out) {
  constexpr const char* kName = "dkfac_comm_tcp";
  return c::make_comm(kName, out, [&] {
    return comm::make_tcp(rank, size, &c::required(host, kName, "host"), port,
                          c::comm_options(options, kName), c::comm_secret(options, kName));
  });
}

int dkfac_comm_from_callbacks(int32_t rank, int32_t size, const dkfac_comm_callbacks* callbacks,
                              const dkfac_comm_options* options, dkfac_comm** out) {
  constexpr const char* kName = "dkfac_comm_from_callbacks";
  return c::make_comm(kName, out, [&] {
    const comm::Options comm_options = c::comm_options(options, kName);
    comm_options.validate();  // What fails later calls `release`.
    const dkfac_comm_callbacks checked = c::checked(callbacks, kName);
    DKFAC_CHECK(size >= 1 && rank >= 0 && rank < size, "[", kName, "] rank is ", rank, " of ", size,
                "; ranks are 0 to size - 1");
    return comm::make_external(rank, size, std::make_shared<c::CallbackCollectives>(checked),
                               comm_options);
  });
}

int dkfac_comm_on_device(dkfac_comm* host, dkfac_device device, dkfac_comm** out) {
  constexpr const char* kName = "dkfac_comm_on_device";
  return c::make_comm(kName, out, [&] {
    return comm::on_device(c::required(host, kName, "host").comm, c::device_of(device, kName));
  });
}

int dkfac_comm_all_reduce(dkfac_comm* comm, const dkfac_tensor* tensor, int32_t op) {
  constexpr const char* kName = "dkfac_comm_all_reduce";
  static_assert(static_cast<int>(comm::ReduceOp::sum) == DKFAC_REDUCE_SUM &&
                static_cast<int>(comm::ReduceOp::max) == DKFAC_REDUCE_MAX);
  return c::guarded([&] {
    comm::Communicator& group = *c::required(comm, kName, "comm").comm;
    const TensorView view = c::view_of(&c::required(tensor, kName, "tensor"), kName, "tensor");
    group.all_reduce(view, c::enum_of<comm::ReduceOp>(op, 2, kName, "op"),
                     c::stream_of(*tensor, kName), "tensor of the caller");
  });
}

int dkfac_comm_abort(dkfac_comm* comm, const char* reason) {
  return c::guarded([&] {
    c::required(comm, "dkfac_comm_abort", "comm")
        .comm->abort(reason == nullptr ? "no reason was given" : reason);
  });
}

void dkfac_comm_destroy(dkfac_comm* comm) { delete comm; }

int32_t dkfac_comm_rank(const dkfac_comm* comm) {
  return comm == nullptr ? -1 : comm->comm->rank();
}
int32_t dkfac_comm_size(const dkfac_comm* comm) {
  return comm == nullptr ? -1 : comm->comm->size();
}
int32_t dkfac_comm_can_use_secrets(void) { return comm::can_use_secrets() ? 1 : 0; }
const char* dkfac_comm_warning(const dkfac_comm* comm) {
  return comm == nullptr ? "" : comm->warning.c_str();
}
const char* dkfac_comm_backend(const dkfac_comm* comm) {
  return comm == nullptr ? "" : comm->comm->backend().data();  // Literals.
}
