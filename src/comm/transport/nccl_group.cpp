#include "comm/transport/nccl_group.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <exception>

#include "core/shared/backoff.h"
#include "core/shared/cuda/device_guard.h"

namespace dkfac::comm {
namespace {

/// Broadcasts NCCL's id of the group, which rank 0 makes.
ncclUniqueId broadcast_id(Communicator& bootstrap) {
  ncclUniqueId id{};
  static_assert(sizeof id % sizeof(std::int32_t) == 0);
  std::array<std::int32_t, sizeof id / sizeof(std::int32_t)> words{};
  ncclResult_t code = ncclSuccess;
  if (bootstrap.rank() == 0) {
    code = ncclGetUniqueId(&id);
    std::memcpy(words.data(), &id, sizeof id);
  }
  if (code != ncclSuccess) {
    const std::string text = detail::concat("[make_nccl] ncclGetUniqueId failed with code ", code,
                                            " (", ncclGetErrorString(code), ")");
    bootstrap.abort(text);
    throw CommError(text);
  }
  bootstrap.broadcast(view_of(words.data(), {static_cast<std::int64_t>(words.size())}), 0,
                      Stream::cpu(), "id of NCCL");
  std::memcpy(&id, words.data(), sizeof id);
  return id;
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<Communicator> bootstrap, Device device)
    : bootstrap_(std::move(bootstrap)), device_(device), current_("make_nccl") {
  const ncclUniqueId id = broadcast_id(*bootstrap_);
  const dkfac::cuda::DeviceGuard guard(device_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that waiting for a missing rank can be abandoned
  try {
    settle(ncclCommInitRankConfig(&comm_, bootstrap_->size(), id, bootstrap_->rank(), &config),
           "ncclCommInitRankConfig");
  } catch (...) {
    drop();
    throw;
  }
}

NcclGroup::~NcclGroup() {
  if (comm_ == nullptr) return;
  const dkfac::cuda::DeviceGuard guard(device_);
  if (std::uncaught_exceptions() > 0 && !pending_.empty() && !failed()) {
    abort("an exception is on its way while collectives are pending");
  } else if (!failed()) {
    try {
      current_ = "end of the NCCL communicator";
      settle(ncclCommFinalize(comm_), "ncclCommFinalize");
      (void)ncclCommDestroy(std::exchange(comm_, nullptr));
    } catch (const std::exception&) {
      // Aborted below or already; a destructor cannot report it.
    }
  }
  drop();
}

int NcclGroup::count_over_ranks(bool yes) {
  std::int32_t count = yes ? 1 : 0;
  on_bootstrap([&](Communicator& host) {
    host.all_reduce(view_of(&count, {1}), ReduceOp::sum, Stream::cpu(), "split of NCCL");
  });
  return count;
}

std::shared_ptr<NcclGroup> NcclGroup::split(int color, int key) {
  look();
  current_ = "split";
  Backoff backoff;
  while (!pending_.empty()) backoff.poll([&] { look(); });
  // All ranks reach this collective, so no rank has pending work afterwards.
  auto part = on_bootstrap([&](Communicator& host) { return host.split(color, key); });
  const std::shared_ptr<NcclGroup> made(
      part == nullptr ? nullptr : new NcclGroup(std::move(part), device_, Empty{}));
  const dkfac::cuda::DeviceGuard guard(device_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t none = nullptr;
  const ncclResult_t code = ncclCommSplit(comm_, made == nullptr ? NCCL_SPLIT_NOCOLOR : color,
                                          made == nullptr ? 0 : made->bootstrap().rank(),
                                          made == nullptr ? &none : &made->comm_, &config);
  const bool refused = code != ncclSuccess && code != ncclInProgress;
  const int refusals = count_over_ranks(refused);
  if (refusals == bootstrap_->size())
    return made == nullptr ? nullptr : std::make_shared<NcclGroup>(made->bootstrap_, device_);
  if (refused) check(code, "ncclCommSplit");
  if (refusals > 0)
    fail(detail::concat("[split] rank ", bootstrap_->rank(), ": ncclCommSplit failed on ", refusals,
                        " of ", bootstrap_->size(), " ranks; look there, and set NCCL_DEBUG=INFO"));
  settle(code, "ncclCommSplit");
  if (made != nullptr) made->settle(ncclInProgress, "ncclCommSplit");
  return made;
}

/// Aborts NCCL. It blocks until NCCL's kernels have ended, so peers are notified first.
void NcclGroup::drop() noexcept {
  if (comm_ == nullptr) return;
  const dkfac::cuda::DeviceGuard guard(device_);
  (void)ncclCommAbort(std::exchange(comm_, nullptr));
}

void NcclGroup::fail_here(std::string text) {
  if (failure_.empty()) failure_ = std::move(text);
  drop();
  throw CommError(failure_);
}

void NcclGroup::fail(std::string text) {
  if (failure_.empty()) bootstrap_->abort(text);
  fail_here(std::move(text));
}

void NcclGroup::abort(std::string_view reason) noexcept {
  if (failure_.empty())
    failure_ = detail::concat("[abort] rank ", bootstrap_->rank(), " aborted the group: ", reason);
  bootstrap_->abort(reason);
  drop();
}

void NcclGroup::check(ncclResult_t code, const char* call) {
  if (code == ncclSuccess) return;
  fail(detail::concat("[", current_, "] rank ", bootstrap_->rank(), ": ", call,
                      " failed with code ", code, " (", ncclGetErrorString(code), "; ",
                      ncclGetLastError(comm_),
                      "); look for a rank that ended, and set NCCL_DEBUG=INFO"));
}

void NcclGroup::settle(ncclComm_t comm, ncclResult_t code, const char* call) {
  Deadline deadline(bootstrap_->options().timeout_s);
  deadline.start();
  Backoff backoff;
  while (code == ncclInProgress) {
    backoff.poll([&] {
      look_at_peers();
      check(ncclCommGetAsyncError(comm, &code), "ncclCommGetAsyncError");
    });
    if (code == ncclInProgress && deadline.passed())
      fail(detail::concat("[", current_, "] rank ", bootstrap_->rank(), " waited ",
                          deadline.seconds(), " s (timeout_s) in ", call,
                          "; a rank has not come to it: look there, or raise the limit"));
  }
  check(code, call);
}

void NcclGroup::look_at_peers() {
  if (!failure_.empty()) throw CommError(failure_);
  on_bootstrap([](Communicator& host) { (void)host.progress(); });
}

void NcclGroup::look_at_pending() {
  while (!pending_.empty() && pending_.front().event.done()) {
    free_events_.push_back(std::move(pending_.front().event));
    pending_.pop_front();
  }
  if (pending_.empty()) return;
  Pending& first = pending_.front();
  first.deadline.start();
  if (first.deadline.passed())
    fail(detail::concat("[", first.info.op, "] rank ", bootstrap_->rank(), " waited ",
                        first.deadline.seconds(), " s (timeout_s) for ", first.info.describe(),
                        " on ", device_,
                        "; a rank has ended, is late, or issued another call: look there, compare "
                        "calls (Check::full), or raise the limit"));
}

void NcclGroup::look() {
  look_at_peers();
  ncclResult_t code = ncclSuccess;
  check(ncclCommGetAsyncError(comm_, &code), "ncclCommGetAsyncError");
  if (code != ncclInProgress) check(code, "a collective under way");
  look_at_pending();
}

void NcclGroup::poll() {
  // Another thread may use the communicator now, and NCCL allows one at a time.
  if (user_ == std::this_thread::get_id()) look();
}

void NcclGroup::begin(const std::shared_ptr<NcclGroup>& self, const CallInfo& info,
                      const Stream& stream) {
  current_ = info.describe();
  user_ = std::this_thread::get_id();
  watch_waits(self);
  look();
  order_.enter(stream);
}

void NcclGroup::end(const CallInfo& info, const Stream& stream) {
  order_.leave(stream);
  Event event(device_);
  if (!free_events_.empty()) {
    event = std::move(free_events_.back());
    free_events_.pop_back();
  }
  event.record(stream);
  pending_.push_back({info, std::move(event), Deadline(bootstrap_->options().timeout_s)});
}

void NcclGroup::give_up(const Stream& stream) noexcept {
  try {
    order_.leave(stream);
  } catch (const std::exception&) {
    // The CUDA runtime has failed and accepts no more work, so there is nothing to order.
  }
}

void NcclGroup::let_follow(const Stream& stream) const noexcept {
  try {
    order_.enter(stream);
  } catch (const std::exception&) {
    // The CUDA runtime has failed, as in give_up().
  }
}

}  // namespace dkfac::comm
